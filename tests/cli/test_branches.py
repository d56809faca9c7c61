"""``perdure fork``, ``rewind``, ``merge`` and ``tag``: the past is a place to go to, from the command line too."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from tests.cli import desk

if TYPE_CHECKING:
    from tests.cli.conftest import Command

POINT = [
    "session", "branch", "line", "step", "id", "parent", "kind", "status", "at", "owner", "schema", "digest", "details",
]  # fmt: skip
NASTY = "\x1b]0;x\x07<script>alert(1)</script>"


def state(command: Command, place: str) -> dict[str, Any]:
    return command("show", place, "--json").json["state"]["value"]


def branches(command: Command, session: str = "trip") -> dict[str, object]:
    return command("show", session, "--json").json["session"]["branches"]


def editor(folder: Path, code: str) -> str:
    """A program that edits the file it is given."""
    path = folder / "editor.sh"
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_fork_is_a_name_for_a_place(command: Command, trip: Path):
    made = command("fork", "trip@2", "other", "--json").json
    assert list(made) == POINT
    assert (made["branch"], made["kind"]) == ("other", "fork")
    assert state(command, "trip@other")["vars"] == {"city": "Porto"}
    assert state(command, "trip")["vars"] == {"city": "Madrid"}
    assert command("fork", "trip@2").out.startswith("trip: branch from-2 from step 2; it is at step ")
    assert "branch from-2-2 " in command("fork", "trip@2").out


def test_a_fork_changes_what_it_is_told_to_and_nothing_else(command: Command, trip: Path):
    Path("plan.json").write_text('{"days": [1, 2]}')
    Path("note.txt").write_text("line\nline")
    made = command(
        "fork", "trip@3", "other", "--set", "vars.city=Faro", "--add", "vars.n=2", "--add", "vars.plan=@plan.json",
        "--add", "vars.note=@note.txt", "--add", "vars.at=@@home", "--set", "messages.-1.content=a day in Faro",
        "--add", "/vars/a.b=1", "--json",
    )  # fmt: skip
    assert made.code == 0, made.err
    new = state(command, "trip@other")
    assert new["vars"] == {
        "city": "Faro", "n": 2, "plan": {"days": [1, 2]}, "note": "line\nline", "at": "@home", "a.b": 1,
    }  # fmt: skip
    said = [m["content"] for m in new["messages"]]  # type: ignore[attr-defined]
    assert said == ["a day in Lisbon", "a day in Porto", "a day in Faro"]
    command("fork", "trip@other", "less", "--unset", "vars.plan", "--unset", "messages.0")
    less = state(command, "trip@less")
    assert "plan" not in less["vars"]  # type: ignore[operator]
    assert len(less["messages"]) == 2  # type: ignore[arg-type]
    assert state(command, "trip")["vars"] == {"city": "Madrid"}


def test_said_takes_the_place_of_the_last_message(command: Command, trip: Path):
    assert command("fork", "trip", "other", "--set", f"said={NASTY}").code == 0
    assert state(command, "trip@other")["messages"][-1] == {"role": "user", "content": NASTY}  # type: ignore[index]
    shown = command("show", "trip@other").out
    assert "\x1b" not in shown


def test_a_place_may_be_a_tag_a_branch_or_an_id(command: Command, trip: Path):
    tip = command("show", "trip", "--json").json["state"]["checkpoint"]["id"]
    for place, city in (("early", "Lisbon"), ("cheaper", "Porto"), (tip, "Madrid"), (tip[:10], "Madrid")):
        name = f"of-{place[:8]}-{len(place)}"
        assert command("fork", f"trip@{place}", name, "--add", "vars.x=1").code == 0, place
        assert state(command, f"trip@{name}")["vars"]["city"] == city  # type: ignore[index]


def test_the_editor_changes_the_state(command: Command, trip: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EDITOR", editor(trip.parent, "sed -i s/Madrid/Toledo/ $1"))
    monkeypatch.delenv("VISUAL", raising=False)
    assert command("fork", "trip", "other", "--edit").code == 0
    assert state(command, "trip@other")["vars"] == {"city": "Toledo"}
    monkeypatch.setenv("EDITOR", editor(trip.parent, "sed -i s/AAE=/AAI=/ $1"))
    assert command("fork", "visit", "other", "--edit").code == 0
    assert state(command, "visit@other")["vars"] == {"blob": {"$bytes": "AAI="}}


@pytest.mark.parametrize(
    "code", ["exit 3", "true", "echo '[1]' > $1", "echo '{' > $1", "echo '{\"a\": NaN}' > $1", "rm $1"]
)
def test_an_editor_that_fails_or_changes_nothing_leaves_no_branch(
    command: Command, trip: Path, monkeypatch: pytest.MonkeyPatch, code: str
):
    monkeypatch.setenv("VISUAL", editor(trip.parent, code))
    before = branches(command)
    found = command("fork", "trip", "other", "--edit")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert branches(command) == before


@pytest.mark.parametrize(
    "edit",
    [
        "vars",
        "=1",
        "vars.ctiy=Porto",
        "var.city=Porto",
        "vars.a.b=1",
        "messages.7.content=x",
        "messages.x=1",
        "vars.city.x=1",
        "x=@nowhere",
        "x=@.",
    ],
)
def test_edits_that_do_not_fit_leave_no_branch(command: Command, trip: Path, edit: str):
    before = branches(command)
    found = command("fork", "trip", "other", "--set", edit)
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert branches(command) == before


def test_a_slip_of_the_finger_adds_nothing(command: Command, trip: Path):
    found = command("fork", "trip", "other", "--set", "vars.ctiy=Porto")
    assert found.code == 2
    assert "the state has no 'vars.ctiy' (there is vars.city): --add 'vars.ctiy=...' makes it" in found.err
    assert "(there is said)" in command("fork", "trip", "other", "--set", "sayd=Hello").err
    assert command("fork", "trip", "other", "--add", "vars.ctiy=Porto").code == 0
    assert state(command, "trip@other")["vars"] == {"city": "Madrid", "ctiy": "Porto"}


def test_a_branch_before_an_outcome_does_not_have_it(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DESK_LEDGER", str(tmp_path / "ledger"))
    asyncio.run(desk.agent.run(f"sqlite:///{tmp_path}/agents.db", session="s", message="book 7"))
    (step,) = [c["step"] for c in command("log", "s", "--json").json["items"] if c["kind"] == "done"]
    assert command("fork", f"s@{step}", "without", "--before").code == 0
    found = command("resolve", "s", "--branch", "without", "--json").json
    assert [e["status"] for e in found["effects"]] == ["started"], "the outcome is there"
    assert "booked 7" not in str(state(command, "s@without")["messages"])
    ran = command("run", "tests.cli.desk", "s", "--branch", "without", "--json").json
    assert (ran["status"], ran["text"]) == ("done", "booked 7"), ran
    assert len((tmp_path / "ledger").read_text().splitlines()) == 1, "the branch has changed the world"


def test_what_is_taken_or_not_there_is_refused(command: Command, trip: Path):
    assert command("fork", "trip", "cheaper").code == 4
    assert command("fork", "trip", "x" * 2000).code == 2
    assert command("fork", "trip", "tags/x").code == 2
    assert command("fork", "nobody", "x").code == 1
    assert command("fork", "trip@99", "x").code == 1
    assert command("fork", "trip", "x", "--set", "system=polite").code == 2, "no agent has worked on it"
    assert "x" not in branches(command)
    with perdure.open(f"sqlite:///{trip}") as db, db.session("trip"):
        assert command("fork", "trip", "x").code == 4
        assert command("rewind", "trip@1").code == 4
        assert command("tag", "trip@1", "x").code == 4
        assert command("merge", "trip", "cheaper").code == 4


def test_other_instructions_are_the_agents_on_the_branch(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DESK_LEDGER", str(tmp_path / "ledger"))
    asyncio.run(desk.agent.run(f"sqlite:///{tmp_path}/agents.db", session="s", message="book 7"))
    done = (tmp_path / "ledger").read_text()
    Path("prompt.txt").write_text("Be polite.")
    made = command("fork", "s@1", "better", "--before", "--set", "system=@prompt.txt")
    assert made.code == 0, made.err
    ran = command("run", "tests.cli.desk", "s", "--branch", "better", "--json")
    assert (ran.code, ran.json["text"]) == (0, "With pleasure: booked 7")
    assert (tmp_path / "ledger").read_text() == done, "the branch has changed the world"
    command("fork", "s@1", "other", "--before", "--set", "said=book 8", "--add", "vars.tried=1")
    ran = command("resume", "tests.cli.desk", "s", "--branch", "other", "--effects", "reuse", "--json")
    assert ran.json["text"] == "booked 8"
    assert state(command, "s@other")["vars"] == {"tried": 1}
    assert len((tmp_path / "ledger").read_text().splitlines()) == 2


def typed_in(text: str, command: str) -> list[str]:
    """The command that a text suggests, as words."""
    found = re.search(rf"perdure ({command} [^,;:\n]*?)(?: has it asked anew|$)", text, re.MULTILINE)
    assert found is not None, text
    return shlex.split(found[1])


def test_a_branch_that_has_answered_goes_on_with_a_message_of_its_own(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DESK_LEDGER", str(tmp_path / "ledger"))
    asyncio.run(desk.agent.run(f"sqlite:///{tmp_path}/agents.db", session="s", message="book 7"))
    main = command("log", "s", "--json").json["items"]
    command("fork", "s@1", "alt", "--before")
    assert command("run", "tests.cli.desk", "s", "--branch", "alt").code == 0
    words = typed_in(command("why", "s", "--branch", "alt").out, "run")
    assert words == ["run", "APP", "s", "MESSAGE", "--branch", "alt"]
    filled = [{"APP": "tests.cli.desk", "MESSAGE": "hello"}.get(word, word) for word in words]
    ran = command(*filled, "--json").json
    assert (ran["status"], ran["text"]) == ("done", "You said: hello")
    assert command("log", "s", "--json").json["items"] == main, "main was written"
    again = command(*filled, "--json").json
    assert again["step"] > ran["step"], "it was answered: it is said once more"


def test_a_message_on_a_branch_without_an_answer_is_not_said_twice(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DESK_LEDGER", str(tmp_path / "ledger"))
    asyncio.run(desk.agent.run(f"sqlite:///{tmp_path}/agents.db", session="s", message="hello"))
    command("fork", "s", "b")
    for _ in range(2):
        assert command("run", "tests.cli.desk", "s", "break", "--branch", "b").code == 1
    said = [m for m in state(command, "s@b")["messages"] if m["role"] == "user"]
    assert [m["content"] for m in said] == ["hello", "break"]
    assert command("run", "tests.cli.desk", "s", "break", "--branch", "b", "--again").code == 1
    assert len(state(command, "s@b")["messages"]) == 4
    waits = ("run", "tests.cli.desk", "s", "refund 7", "--branch", "b", "--effects", "reuse")
    for _ in range(2):
        assert "waiting_approval" in command(*waits).out
    assert [m["content"] for m in state(command, "s@b")["messages"] if m["role"] == "user"][-2:] == [
        "break",
        "refund 7",
    ]


async def branched(url: str, **where: Any) -> None:
    """Branch off with other words of the user."""
    async with perdure.open_async(url) as db:
        await perdure.branch_off(db, "s", "n", said="book 8", **where)


def test_what_is_said_in_place_of_something_answered_is_refused_and_what_works_is_told(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DESK_LEDGER", str(tmp_path / "ledger"))
    url = f"sqlite:///{tmp_path}/agents.db"
    asyncio.run(desk.agent.run(url, session="s", message="hello"))
    asyncio.run(desk.agent.run(url, session="s", message="book 7"))
    assert command("log", "s", "--json").json["items"][0]["step"] == 4
    for words in (["s"], ["s@4"], ["s@4", "--before"], ["s@3"], ["s@3", "--before"], ["s@2"]):
        # A call is an answer, too: it was decided on before the new words.
        refused = command("fork", *words[:1], "n", *words[1:], "--set", "said=book 8")
        assert (refused.code, "at step 2" in refused.err) == (2, True), (words, refused)
        assert "n" not in branches(command, "s")
        at, before = int(words[0].partition("@")[2] or 4), "--before" in words
        with pytest.raises(perdure.InvalidInput, match=r"nobody would hear .* at=2 and before=True"):
            asyncio.run(branched(url, at=at, before=before))
    words = [word.replace("TEXT", "book 8") for word in typed_in(refused.err, "fork")]
    assert command(*words).out.startswith("s: branch from-2 before step 2, changed")
    ran = command("run", "tests.cli.desk", "s", "--branch", "from-2", "--effects", "reuse", "--json").json
    assert ran["text"] == "booked 8"
    # Of a place on another branch it is that branch's step, also where the branch is named by the place alone.
    refused = command("fork", "s@from-2", "n", "--set", "said=book 9").err
    words = [word.replace("TEXT", "book 9") for word in typed_in(refused, "fork")]
    assert words[-4:] == ["--branch", "from-2", "--set", "said=book 9"]
    command(*words[:2], "third", *words[2:])
    ran = command("run", "tests.cli.desk", "s", "--branch", "third", "--effects", "reuse", "--json").json
    assert ran["text"] == "booked 9"


def test_a_rewind_goes_on_from_there_and_names_what_it_left(command: Command, trip: Path):
    tip = command("show", "trip", "--json").json["state"]["checkpoint"]["id"]
    found = command("rewind", "trip@1")
    assert found.code == 0
    assert found.out.rstrip().endswith(f"it has left step 3, {tip}")
    assert state(command, "trip")["vars"] == {"city": "Lisbon"}
    assert state(command, f"trip@{tip}")["vars"] == {"city": "Madrid"}
    assert command("fork", f"trip@{tip}", "saved", "--add", "vars.n=1").code == 0
    assert state(command, "trip@saved")["vars"] == {"city": "Madrid", "n": 1}
    refused = command("fork", f"trip@{tip}", "x", "--before")
    assert (refused.code, "rewind" in refused.err) == (2, True)
    made = command("rewind", "trip@early", "--json").json
    assert (list(made), made["kind"]) == (POINT, "rewind")
    assert command("rewind", "trip").code == 2
    assert command("rewind", "trip@99").code == 1


def test_a_merge_brings_in_what_the_other_changed(command: Command, trip: Path):
    made = command("merge", "trip", "cheaper", "--json").json
    assert list(made) == ["merged", "conflicts"]
    assert (list(made["merged"]), made["conflicts"]) == (POINT, [])
    for other in ("cheaper", "main", "1"):
        again = command("merge", "trip", other)
        assert (again.code, again.out) == (0, f"trip: nothing to merge: main has all that {other} has changed\n")
        assert command("merge", "trip", other, "--json").json == {"merged": None, "conflicts": []}
    assert command("log", "trip", "--json").json["items"][0]["id"] == made["merged"]["id"]
    assert state(command, "trip")["vars"] == {"city": "Madrid", "budget": 600}


def test_a_merge_with_conflicts_writes_nothing_and_lists_them(command: Command, trip: Path):
    command("fork", "trip@2", "south", "--set", f"vars.city={NASTY}")
    before = command("show", "trip", "--json").json["state"]["checkpoint"]["id"]
    found = command("merge", "trip", "south")
    assert found.code == 1
    assert "vars" in found.out
    assert found.out.splitlines()[-1].endswith("say --prefer ours, theirs or both (of lists that only grew)")
    both = command("merge", "trip", "south", "--prefer", "both")
    assert both.code == 1
    assert both.out.splitlines()[-1].endswith("only of lists that grew: say --prefer ours or theirs")
    assert "\x1b" not in found.out
    listed = command("merge", "trip", "south", "--json")
    assert (listed.code, listed.json["merged"], len(listed.json["conflicts"])) == (1, None, 1)
    assert command("show", "trip", "--json").json["state"]["checkpoint"]["id"] == before
    assert command("merge", "trip", "south", "--prefer", "mine").code == 2
    assert command("merge", "trip", "south", "--prefer", "theirs").code == 0
    assert state(command, "trip")["vars"] == {"city": NASTY}
    assert command("merge", "trip", "nowhere").code == 1


def test_a_tag_never_moves(command: Command, trip: Path):
    made = command("tag", "trip@2", "good", "--json").json
    assert (list(made), made["kind"]) == (POINT, "tag")
    assert command("tag", "trip", "last").out == "trip: step 3 is tagged last\n"
    command("rewind", "trip@1")
    assert state(command, "trip@good")["vars"] == {"city": "Porto"}
    assert command("tag", "trip@1", "good").code == 4
    assert command("tag", "trip@77", "x").code == 1
    assert json.loads(command("ls", "--json").out)["items"][0]["tags"]["good"]["step"] == 2
