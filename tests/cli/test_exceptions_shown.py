"""The command line: exceptions and misfitting results of tools are shown by whatever people look at a session with."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, ScriptedModel, calls, tool
from perdure.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command


@tool
def charge(order: str) -> str:
    """Charge an order, and stumble."""
    raise KeyError(order)


@tool
def wire(order: str) -> str:
    """Wire money; the answer is lost."""
    raise TimeoutError("no word from the bank")


@tool(read=True)
def look(order: str) -> str:
    """Look an order up, and stumble."""
    raise ValueError("harmless")


@tool
def ask() -> int:
    """Return what is not declared."""
    return "many"  # type: ignore[return-value]


def desk(*asked: Any) -> Agent:
    """An agent that makes these calls, an answer each, and is done then."""
    return Agent("desk", model=ScriptedModel([*asked, "done"]), tools=[charge, wire, look, ask])


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """A session whose call raised, one whose call is in doubt; its URL."""
    url = f"sqlite:///{tmp_path}/agents.db"
    with perdure.open(url) as db:
        with db.session("bug") as s, pytest.raises(perdure.EffectRaised):
            s.call(charge, order="o1")
        with db.session("lost") as s, pytest.raises(perdure.InDoubt):
            s.call(wire, order="o1")
    # That of a harmless read comes after it.
    later = desk(calls(("charge", {"order": "o1"})), calls(("look", {"order": "o1"})))
    later.run_sync(url, session="agent", message="go")
    # One is in doubt besides.
    desk(calls(("charge", {"order": "o1"}), ("wire", {"order": "o1"}))).run_sync(url, session="both", message="go")
    return url


SHOWN = {
    "agent": ("KeyError", "'o1'", "raise KeyError(order)"),
    "bug": ("KeyError", "'o1'", "raise KeyError(order)"),
    "lost": ("TimeoutError", "no word", "raise TimeoutError("),
}


@pytest.mark.parametrize("session", SHOWN)
@pytest.mark.parametrize("name", ["show", "why", "log", "resolve"])
def test_class_message_and_traceback_are_shown(command: Command, shop: str, name: str, session: str):
    found = command(name, session)
    assert found.code == 0, found.err
    for part in SHOWN[session]:
        assert part in found.out


@pytest.mark.parametrize("name", ["show", "why", "log"])
def test_that_of_a_call_which_was_looked_up_and_had_happened_is_shown_too(command: Command, tmp_path: Path, name: str):
    @tool(if_unsure=lambda order: perdure.Done("found"))
    def pay(order: str) -> str:
        raise KeyError(order)

    url = f"sqlite:///{tmp_path}/agents.db"
    agent = Agent("desk", model=ScriptedModel([calls(("pay", {"order": "o1"})), "done"]), tools=[pay])
    agent.run_sync(url, session="s", message="pay")
    said = command(name, "s").out
    assert "KeyError: 'o1'" in said
    assert "in pay" in said
    if name == "log":
        (told,) = [c["exception"] for c in command("log", "s", "--json").json["items"] if "exception" in c]
        assert (told["error"], told["message"]) == ("KeyError", "'o1'")


@pytest.mark.parametrize("name", ["show", "why", "log", "resolve"])
def test_neither_of_two_hides_the_other(command: Command, shop: str, name: str):
    found = command(name, "both").out
    assert "KeyError" in found
    assert "TimeoutError" in found


def test_the_one_that_matters_is_told_first_and_nothing_false_beside_it(command: Command, shop: str):
    said = command("why", "agent").out
    first = "charge(order=\"o1\") raised KeyError: 'o1'. What it had changed by then is not known."
    assert f"{first} 1 more call raised: look with ValueError." in " ".join(said.split())
    assert "Nothing had happened" not in said
    assert command("why", "agent", "--json").json["exception"]["error"] == "KeyError"


@pytest.mark.parametrize("kind", ["show", "resolve"])
def test_programs_get_all_of_a_run_that_is_over(command: Command, shop: str, kind: str):
    raised = command(kind, "agent", "--json").json["raised"]
    assert [(one["tool"], one["status"], one["error"], one["message"]) for one in raised] == [
        ("charge", "raised", "KeyError", "'o1'"),
        ("look", "failed", "ValueError", "harmless"),
    ]
    assert "raise KeyError(order)" in raised[0]["traceback"]


def test_of_calls_that_raised_those_are_told_whose_outcome_nobody_knows(command: Command, tmp_path: Path):
    two = calls(("charge", {"order": "o1"}), ("charge", {"order": "o2"}), ("look", {"order": "o1"}))
    desk(two).run_sync(f"sqlite:///{tmp_path}/agents.db", session="s", message="go")
    said = " ".join(command("why", "s").out.split())
    assert "2 more calls raised" in said
    assert "what 1 of them had changed by then is not known, either." in said


@pytest.mark.parametrize("by", ["agent", "program"])
def test_a_result_that_is_not_what_its_tool_declares_is_shown(command: Command, tmp_path: Path, by: str):
    wrong = "Expected `int`, got `str`"
    url = f"sqlite:///{tmp_path}/agents.db"
    if by == "agent":
        desk(calls(("ask", {}))).run_sync(url, session="s", message="go")
    else:
        with perdure.open(url) as db, db.session("s") as s:
            assert s.call(ask) == "many"
    for name in ("show", "log"):
        assert wrong in " ".join(command(name, "s").out.split()), name
    shown = command("show", "s", "--json").json
    assert len(shown["misfits"]) == 1
    assert wrong in shown["misfits"][0]
    assert any(c["details"].get("misfit") == wrong for c in command("log", "s", "--json").json["items"])


@pytest.mark.parametrize("session", ["bug", "lost"])
def test_programs_get_them_too(command: Command, shop: str, session: str):
    told = [
        command("show", session, "--json").json["effects"][0]["exception"],
        command("why", session, "--json").json["exception"],
        command("resolve", session, "--json").json["effects"][0]["exception"],
        next(c["exception"] for c in command("log", session, "--json").json["items"] if "exception" in c),
    ]
    assert all(one == told[0] for one in told)
    error, message, where = SHOWN[session]
    assert told[0]["error"] == error
    assert message in told[0]["message"]
    assert where in told[0]["traceback"]


def test_what_raised_waits_for_nobody_and_can_be_settled(command: Command, shop: str):
    effect = command("resolve", "bug", "--json").json["effects"][0]
    assert effect["status"] == "raised"
    assert command("why", "bug", "--json").json["severity"] == "ok"
    assert command("resolve", "bug", effect["id"], "--done", '"paid"', "--by", "ana").code == 0
    with perdure.open(shop) as db, db.session("bug") as s:
        assert s.call(charge, order="o1") == "paid"


def test_a_call_that_is_tried_again_says_when(command: Command, tmp_path: Path):
    clock = FakeClock()

    class Ended(BaseException):
        """The process is killed while it waits."""

    def killed(ms: int) -> None:
        raise Ended

    clock.sleep = killed  # type: ignore[method-assign]

    @tool(if_unsure="retry")
    def pay(order: str) -> str:
        raise TimeoutError("no word from the bank")

    with perdure.open(f"sqlite:///{tmp_path}/agents.db", clock=clock) as db:
        with pytest.raises(Ended), db.session("s") as s:
            s.call(pay, order="o1")
        effect = command("show", "s", "--json").json["effects"][0]
    assert (effect["status"], effect["attempt"]) == ("started", 1)
    assert effect["lost_since_at"] < effect["retry_at"]
    assert "has got no answer since" in command("resolve", "s").out
    assert "retrying" in command("log", "s").out


LOST = """
import os, sys
from perdure import Agent, ScriptedModel, tool
from perdure.agent.models.scripted import calls

@tool(if_unsure="retry")
def pay(order: str) -> str:
    raise TimeoutError("no word from the bank")

agent = Agent("desk", model=ScriptedModel(lambda request: calls(("pay", {"order": "o1"}))), tools=[pay])
"""


def test_a_call_that_nobody_makes_again_is_not_said_to_be_tried(command: Command, tmp_path: Path):
    (tmp_path / "lost_app.py").write_text(LOST)
    words = [sys.executable, "-m", "perdure", "run", "lost_app", "s", "pay", "--store", "sqlite:///agents.db"]
    process = subprocess.Popen(words, cwd=tmp_path)
    try:
        end = time.monotonic() + 60
        while "lost_since" not in command("show", "s", "--json").out:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        working = command("resolve", "s").out
    finally:
        process.kill()
        process.wait()
    effect = command("show", "s", "--json").json["effects"][0]["id"]
    # Who has it makes it again, and settles it by what is posted to him.
    assert "tried again" in working
    assert f"  perdure outcome s {effect} RESULT\n" in working
    for told in (command("show", "s").out, command("resolve", "s").out):
        assert "to be made again when its session goes on" in told
        assert "tried again" not in told
    told = command("resolve", "s").out
    assert [line.strip() for line in told.splitlines() if line.startswith("  perdure")] == [
        "perdure resume APP s",
        f"perdure resolve s {effect} --done RESULT",
        f"perdure resolve s {effect} --retry",
        f"perdure resolve s {effect} --abort",
    ]
    assert command("resolve", "s", effect, "--done", '"paid"').code == 0
    assert command("show", "s", "--json").json["effects"] == []
