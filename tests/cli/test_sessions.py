"""The command line: what ``ls``, ``show``, ``log`` and ``diff`` show."""

from __future__ import annotations

import re
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import apsw
import pytest

import perdure
from perdure.system.times import parse_timestamp

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command


def test_ls_lists_sessions_with_what_waits_for_them(command: Command, trip: Path):
    lines = command("ls").out.splitlines()
    assert lines[0].split()[:4] == ["SESSION", "OWNER", "STATUS", "STEP"]
    assert lines[1].split()[:6] == ["trip", "ana", "idle", "3", "2", "1"]
    assert "never" in lines[2]


def test_ls_as_json_has_the_documented_shape(command: Command, trip: Path):
    answer = command("ls", "--json").json
    assert list(answer) == ["items", "next"]
    first = answer["items"][0]
    assert list(first) == [
        "id", "owner", "agent", "status", "error", "label", "created_at", "updated_at", "expires_at", "step",
        "branches", "tags", "inbox", "writer",
    ]  # fmt: skip
    assert (first["id"], first["step"], first["inbox"], first["writer"]) == ("trip", 3, 1, None)
    assert first["branches"]["cheaper"]["step"] == 4
    assert first["tags"]["early"]["step"] == 1
    assert answer["items"][1]["expires_at"] is None
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["created_at"])


def test_ls_filters_and_pages(command: Command, trip: Path):
    assert [s["id"] for s in command("ls", "--owner", "bea", "--json").json["items"]] == ["visit"]
    assert command("ls", "--status", "failed").out == "no session matches\n"
    page = command("ls", "--limit", "1", "--json").json
    assert page["next"] == "trip"
    assert [s["id"] for s in command("ls", "--after", "trip", "--json").json["items"]] == ["visit"]
    assert "perdure ls --after trip" in command("ls", "--limit", "1").out


def test_ls_shows_agents_and_chooses_by_them(command: Command, trip: Path):
    assert "AGENT" not in command("ls").out
    with perdure.open(str(trip)) as db:
        db.create("call-1", agent="support", owner="cleo")
        db.create("call-2", agent="billing", owner="dan%")
    lines = command("ls").out.splitlines()
    assert lines[0].split()[:4] == ["SESSION", "OWNER", "AGENT", "STATUS"]
    assert lines[1].split()[:4] == ["call-1", "cleo", "support", "idle"]
    assert lines[3].split()[:4] == ["trip", "ana", "-", "idle"]

    def ids(*options: str) -> list[str]:
        return [s["id"] for s in command("ls", "--json", *options).json["items"]]

    assert ids("--agent", "support") == ["call-1"]
    assert ids("--error", "") == ["call-1", "call-2", "trip", "visit"]
    assert command("ls", "--error", "ModelError").out == "no session matches\n"
    assert ids("--search", "n%") == ["call-2"]
    assert ids("--search", "call") == ["call-1", "call-2"]
    (first,) = command("ls", "--json", "--agent", "support").json["items"]
    assert (first["agent"], first["error"]) == ("support", "")


def test_ls_shows_the_newest_first_page_by_page(command: Command, trip: Path):
    everything = command("ls", "--newest", "--json").json["items"]
    assert [s["updated_at"] for s in everything] == sorted((s["updated_at"] for s in everything), reverse=True)
    page = command("ls", "--newest", "--limit", "1", "--json").json
    assert page["next"] == f"{parse_timestamp(everything[0]['updated_at'])}:{everything[0]['id']}"
    rest = command("ls", "--newest", "--after", page["next"], "--json").json["items"]
    assert [s["id"] for s in rest] == [s["id"] for s in everything[1:]]
    assert f"perdure ls --newest --after {page['next']}" in command("ls", "--newest", "--limit", "1").out
    refused = command("ls", "--newest", "--after", "trip")
    assert (refused.code, "cursor" in refused.err) == (2, True)


def test_an_unknown_status_is_wrong_usage(command: Command, trip: Path):
    result = command("ls", "--status", "foo")
    assert result.code == 2
    assert "in_doubt" in result.err


@pytest.mark.parametrize(
    ("place", "city"),
    [
        ("trip", "Madrid"),
        ("trip@1", "Lisbon"),
        ("trip@early", "Lisbon"),
        ("trip@cheaper", "Porto"),
        ("trip@", "Madrid"),
    ],
)
def test_show_opens_a_step_a_tag_or_a_branch(command: Command, trip: Path, place: str, city: str):
    assert command("show", place, "--json").json["state"]["value"]["vars"]["city"] == city


def test_show_opens_a_checkpoint_by_the_beginning_of_its_id(command: Command, trip: Path):
    id = command("log", "trip", "--json").json["items"][1]["id"]
    assert command("show", f"trip@{id[:10]}", "--json").json["state"]["checkpoint"]["step"] == 2


def test_show_counts_steps_on_the_branch_that_is_named(command: Command, trip: Path):
    assert command("show", "trip@4", "--branch", "cheaper", "--json").json["state"]["value"]["vars"]["budget"] == 600
    assert command("show", "trip@4").code == 1


def test_show_as_json_has_the_documented_shape(command: Command, trip: Path):
    answer = command("show", "visit", "--json").json
    assert list(answer) == ["session", "state", "approvals", "effects", "raised", "misfits"]
    assert list(answer["state"]) == ["checkpoint", "path", "kind", "size", "offset", "value", "truncated"]
    assert list(answer["state"]["checkpoint"]) == [
        "session", "branch", "line", "step", "id", "parent", "kind", "status", "at", "owner", "schema", "digest",
        "details",
    ]  # fmt: skip
    assert answer["state"]["value"]["vars"]["blob"] == {"$bytes": "AAE="}


def test_show_takes_no_lease(command: Command, trip: Path):
    with perdure.open(f"sqlite:///{trip}") as db, db.session("trip"):
        assert command("show", "trip").code == 0
        assert "process" in command("ls").out


def test_show_shortens_what_is_long_and_says_how_to_see_it(command: Command, tmp_path: Path):
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db, db.session("long") as s:
        s.vars["text"] = "x" * 100_000
        s.messages.extend({"role": "user", "content": f"message {i} {'y' * 90}"} for i in range(500))
        s.commit()
    short = command("show", "long").out
    assert len(short) < 10_000
    assert "--full" in short
    assert "message 499" in short
    full = command("show", "long", "--full").out
    assert full.count("message ") == 500
    assert "x" * 100_000 in full
    assert "--full" not in full


def test_show_says_what_waits_for_a_person(command: Command, tmp_path: Path):
    @perdure.tool
    def wire(to: str) -> None:
        raise TimeoutError

    @perdure.tool(approve=True)
    def book(flight: str) -> None: ...

    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db, db.session("w") as s:
        with pytest.raises(perdure.InDoubt):
            s.call(wire, "DE12")
        with pytest.raises(perdure.ApprovalNeeded):
            s.call(book, "LIS")
    out = command("show", "w").out
    assert 'wire {to: "DE12"} is in_doubt' in out
    assert 'book {flight: "LIS"} waits for a decision' in out
    answer = command("show", "w", "--json").json
    assert (len(answer["effects"]), len(answer["approvals"])) == (1, 1)


def test_show_needs_no_migrations_to_show_what_is_stored(command: Command, tmp_path: Path):
    with perdure.open(f"sqlite:///{tmp_path}/agents.db", schema="9.9.9") as db, db.session("new") as s:
        s.vars["x"] = 1
        s.commit()
    assert command("show", "new", "--json").json["state"]["checkpoint"]["schema"] == "9.9.9"


def test_a_session_id_may_contain_an_at_sign(command: Command, tmp_path: Path):
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db, db.session("ana@example.com") as s:
        s.vars["x"] = 1
        s.commit()
        s.vars["x"] = 2
        s.commit()
    for place, step in (("ana@example.com", 2), ("ana@example.com@1", 1)):
        assert command("show", place, "--json").json["state"]["checkpoint"]["step"] == step


def test_log_lists_checkpoints_newest_first(command: Command, trip: Path):
    answer = command("log", "trip", "--json").json
    assert [c["step"] for c in answer["items"]] == [3, 2, 1]
    assert answer["next"] is None
    lines = command("log", "trip").out.splitlines()
    assert "(main) planned Madrid" in lines[1]
    assert "tag early" in lines[3]


def test_log_pages_by_step(command: Command, trip: Path):
    assert command("log", "trip", "--limit", "1", "--json").json["next"] == "3"
    assert [c["step"] for c in command("log", "trip", "--before", "3", "--json").json["items"]] == [2, 1]
    cheaper = command("log", "trip", "--branch", "cheaper", "--json").json["items"]
    assert [c["step"] for c in cheaper] == [4, 3, 2, 1]


def test_log_draws_all_branches(command: Command, trip: Path):
    pictures = [line[:4].rstrip() for line in command("log", "trip", "--graph").out.splitlines()[1:]]
    assert pictures in (["*", "*", "| *", "|/", "*", "*"], ["*", "| *", "* |", "|/", "*", "*"])


def test_diff_names_the_places(command: Command, trip: Path):
    out = command("diff", "trip@1", "trip@3").out
    assert out.splitlines() == [
        '+ state.messages[1]: {role: "user", content: "a day in Porto"}',
        '+ state.messages[2]: {role: "user", content: "a day in Madrid"}',
        '~ state.vars.city: "Lisbon" -> "Madrid"',
    ]
    answer = command("diff", "trip@1", "trip@2", "--json").json
    assert (answer["a"]["step"], answer["b"]["step"]) == (1, 2)
    assert answer["differences"][1] == {
        "path": "/vars/city", "kind": "changed", "before": "Lisbon", "after": "Porto",
    }  # fmt: skip


def test_diff_ends_with_one_only_when_asked_to(command: Command, trip: Path):
    assert command("diff", "trip@1", "trip@2").code == 0
    assert command("diff", "trip@1", "trip@2", "--exit-code").code == 1
    assert command("diff", "trip@2", "trip@2", "--exit-code").code == 0


def test_the_past_is_shown_without_what_waits_today(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DESK_LEDGER", str(tmp_path / "ledger"))
    command("run", "tests.cli.desk", "s", "refund 7")
    (waits,) = command("approve", "s", "--list", "--json").json["approvals"]
    command("approve", "s", waits["id"], "--by", "ana")
    command("resume", "tests.cli.desk", "s")
    command("post", "s", "good morning")
    past = command("show", "s@1")
    assert "waited for a decision" in past.out
    assert "good morning" not in past.out
    assert len(command("show", "s@1", "--json").json["approvals"]) == 1
    assert "good morning" in command("show", "s").out


def test_looking_makes_no_board_and_waits_for_no_writer(command: Command, tmp_path: Path):
    url = f"sqlite:///{tmp_path}/agents.db"
    with perdure.open(url) as db:
        db.create("s", agent="shop")
    looks = (
        "ls", "ls --json", "ls --status in_doubt", "show s", "why s", "log s", "stats", "workers", "inbox s",
        "resolve s", "approve s --list", "pause --state queued --dry-run",
    )  # fmt: skip
    with closing(apsw.Connection(str(tmp_path / "agents.db"))) as other:
        other.execute("begin immediate")
        began = time.monotonic()
        for line in looks:
            ended = command(*line.split(), "--store", url)
            assert ended.code == 0, (line, ended.err)
        assert time.monotonic() - began < 25, "none of them has waited for the lock, which takes 30 s"
        other.execute("rollback")
    with perdure.open(url) as db:
        store: Any = db.kernel.store
        assert not store.has_board()
