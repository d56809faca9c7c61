"""``perdure run`` and ``perdure resume``: an agent run once, from the command line, until it is done or must wait."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure import ScriptedModel
from tests.cli import desk

if TYPE_CHECKING:
    from tests.cli.conftest import Command

APP = "tests.cli.desk"
ROOT = Path(__file__).resolve().parents[2]
RESULT = [
    "session", "branch", "agent", "status", "step", "began_anew", "text", "reason", "turns", "spent", "total",
    "approval_ids", "in_doubt_ids", "wakes_at", "notes", "raised", "message_key", "repeated",
]  # fmt: skip


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DESK_LEDGER", str(tmp_path / "ledger"))
    return tmp_path / "ledger"


def test_an_agent_is_run_until_it_is_done(command: Command, ledger: Path):
    found = command("run", APP, "s", "book 7", "--owner", "ana")
    assert found.code == 0, found.err
    assert found.out.splitlines() == ["· book …", "· book: done", "booked 7", "done (step 4)"]
    assert len(ledger.read_text().splitlines()) == 1
    again = command("run", APP, "s", "hello", "--json").json
    assert list(again) == RESULT
    assert (again["status"], again["text"], again["branch"]) == ("done", "You said: hello", "main")
    with perdure.open() as db:
        assert db.look("s").owner == "ana"


def test_whose_a_session_is_is_known_before_its_first_answer(command: Command):
    assert command("run", APP, "s", "whose s", "--owner", "ana").out.splitlines()[0] == "ana, desk, 1 waiting"
    assert command("run", APP, "s", "whose s", "--owner", "eve").code == 2


def test_a_message_with_a_key_is_said_once(command: Command, ledger: Path):
    for _ in range(3):
        assert command("run", APP, "s", "book 7", "--key", "k").code == 0
    assert len(ledger.read_text().splitlines()) == 1
    assert command("run", APP, "s", "--key", "k").code == 2


def test_what_waits_for_a_person_is_told_and_resume_goes_on(command: Command, ledger: Path):
    waiting = command("run", APP, "s", "refund 7")
    assert waiting.code == 0
    assert "waiting_approval" in waiting.out
    typed = waiting.out.splitlines()[-3]
    approval = command("approve", "s", "--list", "--json").json["approvals"][0]["id"]
    assert typed == f"  perdure approve s {approval}"
    assert command("resume", APP, "s", "--json").json["approval_ids"] == [approval]
    assert command("approve", "s", approval).code == 0
    done = command("resume", APP, "s", "--json")
    assert (done.code, done.json["text"]) == (0, "7")


def test_a_refusal_without_a_reason_says_no_more_than_that(command: Command):
    command("run", APP, "s", "refund 7")
    assert command("reject", "s").code == 0
    assert command("resume", APP, "s", "--json").json["text"] == '{"error": "approval rejected"}'
    command("run", APP, "s", "refund 8")
    assert command("reject", "s", "--reason", "too dear").code == 0
    assert command("resume", APP, "s", "--json").json["text"] == '{"error": "approval rejected: too dear"}'


def test_a_session_of_another_agent_is_taken_over_by_name_only_and_that_is_told(command: Command):
    with perdure.open() as db:
        perdure.submit(db, "g0", "hello", agent="dessk")
    told = "it was a session of agent 'dessk', and is one of 'desk' from now on"
    refused = command("resume", APP, "g0")
    assert refused.code == 2
    not_here = f"it is a session of agent 'dessk', which {APP} does not have: name a program that has it."
    assert f"{not_here} To give it to another agent, name it, as {APP}:agent" in refused.err
    assert command("ls", "--json").json["items"][0]["agent"] == "dessk"
    taken = command("resume", f"{APP}:agent", "g0", "--json").json
    assert (taken["status"], taken["notes"]) == ("done", [told])
    assert command("run", APP, "g0", "hello", "--json").json["notes"] == []


TILL = """
from perdure import Agent, ScriptedModel, tool
from perdure.agent.models import text_of
from perdure.agent.models.scripted import calls

@tool(approve=True)
def big(x: int) -> str:
    "Needs agreement."
    return f"big {x}"

def said(request):
    last = request.messages[-1]
    if last["role"] == "tool":
        return text_of(last)
    word = text_of(last)
    if word == "help":
        return calls(("helper", {"task": "big"}))
    return calls(("big", {"x": 5})) if word == "big" else f"You said: {word}"

def made(name, *tools):
    return Agent(name, model=ScriptedModel(said), tools=[big, *tools], instructions=name)
"""
KINDS = {
    "usual": "helper = made('helper')\nagent = made('till', helper.as_tool(description='helps'))",
    "within": "agent = made('till', made('helper').as_tool(description='helps'))",
    "listed": "helper = made('helper')\nagents = [made('till', helper.as_tool(description='helps')), helper]",
}


def test_each_of_several_requests_is_told_with_its_commands(command: Command, tmp_path: Path):
    several = 'calls(("big", {"x": 5}), ("big", {"x": 6})) if word == "big"'
    shop = TILL.replace('calls(("big", {"x": 5})) if word == "big"', several)
    (tmp_path / "shop.py").write_text(f"{shop}\nagent = made('till')\n")
    told = command("run", "shop.py", "s", "big").out.splitlines()
    asked = command("approve", "s", "--list", "--json").json["approvals"]
    assert len(asked) == 2
    for one in asked:
        assert f"  perdure approve s {one['id']}" in told
        assert f"  perdure reject s {one['id']}" in told


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_goes_on_with_its_own_agent_of_those_in_the_app(command: Command, tmp_path: Path, kind: str):
    (tmp_path / "shop.py").write_text(f"{TILL}\n{KINDS[kind]}\n")
    with perdure.open() as db:
        perdure.submit(db, "c", "help", agent="till")
    assert command("resume", "shop.py", "c", "--json").json["status"] == "waiting_result"
    (child,) = (row["id"] for row in command("ls", "--json").json["items"] if row["id"].startswith("c/"))
    assert command("approve", child).code == 0
    went = command("resume", "shop.py", child, "--json").json
    assert (went["status"], went["text"], went["agent"], went["notes"]) == ("done", "big 5", "helper", [])
    assert {row["agent"] for row in command("ls", "--json").json["items"] if row["id"] == child} == {"helper"}
    assert command("replay", child, "--agent", "shop.py").out.startswith("identical")
    assert command("run", "shop.py", child, "more", "--json").json["agent"] == "helper"
    assert command("resume", "shop.py", "c", "--json").json["text"] == "big 5"


def test_where_it_is_not_plain_which_agent_is_meant_nothing_is_made(command: Command, tmp_path: Path):
    (tmp_path / "two.py").write_text(f"{TILL}\nagents = [made('till'), made('other'), made('other')]\n")
    refused = command("run", "two.py", "new", "hello")
    assert (refused.code, "two.py has no 'agent'" in refused.err) == (2, True)
    assert not (tmp_path / ".perdure").exists()
    with perdure.open() as db:
        perdure.submit(db, "s", "hello", agent="other")
        perdure.submit(db, "t", "hello", agent="till")
    assert command("run", "two.py", "t", "--json").json["text"] == "You said: hello"
    refused = command("resume", "two.py", "s")
    assert (refused.code, "two agents called 'other'" in refused.err) == (2, True)


def test_an_agent_that_writes_nothing_takes_no_session_over(command: Command, tmp_path: Path):
    (tmp_path / "shop.py").write_text(f"{TILL}\n{KINDS['usual']}\n")
    assert command("run", "shop.py", "s", "hello").code == 0
    still = "it is a session of agent 'till' as before: 'helper' has written nothing"
    assert command("resume", "shop.py:helper", "s", "--json").json["notes"] == [still]
    assert command("ls", "--json").json["items"][0]["agent"] == "till"
    command("fork", "s@1", "b", "--before")
    on_branch = command("run", "shop.py:helper", "s", "--branch", "b", "--json").json["notes"]
    assert on_branch[0] == "it is a session of agent 'till'; 'helper' goes on with branch 'b'"
    assert command("ls", "--json").json["items"][0]["agent"] == "till"
    taken = command("run", "shop.py:helper", "s", "more", "--json").json["notes"]
    assert taken[0] == "it was a session of agent 'till', and is one of 'helper' from now on"
    assert command("ls", "--json").json["items"][0]["agent"] == "helper"


def test_what_was_said_before_it_was_to_stop_is_not_answered_and_that_is_told(command: Command):
    with perdure.open() as db:
        perdure.submit(db, "s", "hello", agent="desk", key="k")
    command("cancel", "s", "--by", "eve")
    told = command("why", "s")
    assert told.out.startswith("Somebody wants it to stop: 1 message from before that will not be answered, and nobody")
    assert "Say again what is to be answered all the same." in told.out
    assert "  perdure post s MESSAGE" in told.out.splitlines()
    assert command("post", "s", "hello after all").code == 0
    assert command("why", "s").out.startswith("1 message waits in its inbox, and nobody works on it.")
    assert command("resume", APP, "s", "--json").json["text"] == "You said: hello after all"
    again = command("submit", "s", "hello", "--agent", "desk", "--key", "k").out
    assert again == "s: was not answered at step 2: cancelled by eve\n"
    assert "It was not answered" in command("run", APP, "s", "hello", "--key", "k").out


def test_doubts_and_failures_are_a_negative_answer(command: Command, ledger: Path):
    doubt = command("run", APP, "s", "wire 1", "--json")
    assert (doubt.code, doubt.json["status"], len(doubt.json["in_doubt_ids"])) == (1, "in_doubt", 1)
    assert "perdure resolve s" in command("resume", APP, "s").out
    broken = command("run", APP, "t", "break")
    assert broken.code == 1
    assert "out of order" in broken.out + broken.err
    assert broken.out.splitlines()[-1] == "  perdure why t"
    assert command("why", "t").out.startswith("The last run failed: ")


def test_what_cannot_be_run(command: Command, ledger: Path, tmp_path: Path):
    assert command("resume", APP, "nobody").code == 3, "there is no database"
    assert not (tmp_path / ".perdure").exists()
    assert command("run", APP, "s", "hello").code == 0
    assert command("resume", APP, "nobody").code == 1
    assert command("run", APP, "s", "hello", "--branch", "b").code == 1
    assert command("run", APP, "s", "hello", "--branch", "tags/b").code in (1, 2)
    assert command("run", APP, "s", "hello", "--branch", "b", "--key", "k").code == 2
    assert command("run", APP, "s", "--branch", "nowhere").code == 1
    assert command("run", APP, "s", "--effects", "all").code == 2
    assert command("run", "no.such.app", "s").code == 2
    assert command("run", APP, "x" * 2000, "hello").code == 2
    with perdure.open() as db, db.session("s"):
        assert command("resume", APP, "s").code == 4


def test_what_a_model_says_cannot_steer_the_terminal(command: Command, ledger: Path):
    nasty = "\x1b]0;x\x07\x1b[2J<script>" + "z" * 200_000
    for found in (command("run", APP, "s", nasty), command("run", APP, "s", nasty, "--json")):
        assert found.code == 0
        assert "\x1b" not in found.out
        assert "\x07" not in found.out


def test_a_killed_run_is_gone_on_with_by_the_same_command(tmp_path: Path, ledger: Path):
    """Killed in the middle of its tool: typed again, it books once under the same key and answers."""
    (tmp_path / "slow.py").write_text(
        "import os, time\nimport tests.cli.desk as desk\nfrom perdure import Agent, ScriptedModel, tool\n"
        "@tool(if_unsure='retry', key_valid_for='1h')\n"
        "def book(order: str, ctx) -> str:\n"
        "    open(os.environ['DESK_LEDGER'], 'a').write(ctx.effect_id + '\\n')\n"
        "    if not os.path.exists('second'):\n        print('here', flush=True)\n        time.sleep(600)\n"
        "    return 'booked'\n"
        "agent = Agent('desk', model=ScriptedModel(desk.said), tools=[book])\n"
    )
    argv = [sys.executable, "-m", "perdure.cli", "run", "slow.py", "s", "book 7", "--key", "k"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(argv, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert any(line.strip() == "here" for line in child.stdout)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    (tmp_path / "second").touch()
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout.splitlines()[-2:]) == (0, ["booked", "done (step 4)"]), done.stderr
    first, second = ledger.read_text().splitlines()
    assert first == second


@pytest.mark.parametrize("words", [["resume"], ["run"], ["run", "hello"], ["chat"]], ids=" ".join)
def test_a_closed_session_is_refused_before_the_model_is_asked(
    command: Command, words: list[str], monkeypatch: pytest.MonkeyPatch
):
    asked: list[object] = []
    monkeypatch.setattr(desk.agent, "model", ScriptedModel(lambda request: asked.append(request) or "an answer"))
    with perdure.open() as db, db.session("s") as s:
        s.messages.append({"role": "user", "content": "hello?"})
        s.close()
    where = ["--session", "s"] if words == ["chat"] else ["s"]
    found = command(words[0], APP, *where, *words[1:])
    assert asked == []
    assert found.code == 2
    assert "perdure run APP s --reopen" in found.err


def test_a_closed_session_is_opened_again_by_whoever_says_so(command: Command):
    with perdure.open() as db, db.session("s") as s:
        s.close()
    for words in (["--by", "ana"], ["--reopen", "--branch", "b"]):
        assert command("run", APP, "s", "hello", *words).code == 2
    assert command("run", APP, "s", "hello", "--reopen", "--by", "ana").code == 0
    # It is open: from here on it is run as ever, and nobody has to say it again.
    assert command("run", APP, "s", "once more", "--reopen", "--objective", "Be at rest").code == 0
    assert "objective, open: Be at rest" in command("why", "s").out
    assert json.loads(command("why", "s", "--json").out)["objective"]["status"] == "open"
    assert "Be at rest" in command("show", "s").out
    log = command("log", "s").out
    assert log.count("reopened") == 2, log
    assert "reopened by ana" in log


def test_a_branch_where_there_is_no_database_is_told_what_is_missing(command: Command):
    for store in ((), ("--store", "cli.db")):
        refused = command("run", APP, "n1", "hello", "--branch", "nope", *store)
        assert refused.code == 3
        assert "a branch is of a session that is there, and there is no database" in refused.err
        assert "run, chat, worker and serve make one" not in refused.err


def test_where_those_that_make_a_database_would_refuse_nobody_is_sent_there(command: Command, tmp_path: Path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    for store, way_out in (
        ("sqlite:///nodir/x.db", f"correct the path, or make the folder {tmp_path / 'nodir'} first"),
        (f"file://{tmp_path}/full", "it is not empty ('mine' is in it): name a folder that is"),
    ):
        looked = command("ls", "--store", store)
        assert looked.code == 3
        assert "nothing was made; " + way_out in looked.err
        assert command("run", APP, "s", "hello", "--store", store).code != 0
    (tmp_path / "empty").mkdir()
    assert "worker and serve make one" in command("ls", "--store", f"file://{tmp_path}/empty").err
    assert command("run", APP, "s", "hello", "--store", f"file://{tmp_path}/empty").code == 0


def test_one_turn_is_one(command: Command, ledger: Path):
    told = command("run", APP, "s", "book 7", "--max-turns", "1").out
    assert "1 turn was taken: raise max_turns" in told
