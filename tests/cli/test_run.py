"""``perdure run`` and ``perdure resume``: an agent run once, from the command line, until it is done or must wait."""

from __future__ import annotations

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


def test_a_session_of_another_agent_is_taken_over_and_that_is_told(command: Command):
    with perdure.open() as db:
        perdure.submit(db, "g0", "hello", agent="dessk")
    told = "it was a session of agent 'dessk', and is one of 'desk' from now on"
    taken = command("resume", APP, "g0", "--json").json
    assert (taken["status"], taken["notes"]) == ("done", [told])
    assert command("run", APP, "g0", "hello", "--json").json["notes"] == []


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


def test_what_cannot_be_run(command: Command, ledger: Path, tmp_path: Path):
    assert command("resume", APP, "nobody").code == 3, "there is no database"
    assert not (tmp_path / ".perdure").exists()
    assert command("run", APP, "s", "hello").code == 0
    assert command("resume", APP, "nobody").code == 1
    assert command("run", APP, "s", "hello", "--branch", "b").code == 2
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
    assert "reopen=True" in found.err
