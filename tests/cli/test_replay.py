"""``perdure replay``: what it prints, and how it ends."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure.agent.agent import Agent
from perdure.agent.models.scripted import ScriptedModel, calls

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

APP = '''
from perdure import tool
from perdure.agent.agent import Agent
from perdure.agent.models.scripted import ScriptedModel

@tool
def ring(n: int) -> str:
    """Ring the bell."""
    raise AssertionError("it rang")

agent = Agent("bell", model=ScriptedModel(["Live!"] * 9), tools=[ring], instructions="Ring.")
changed = Agent("bell", model=ScriptedModel(["Live!"] * 9), tools=[ring], instructions="Do not ring.")
number = 7
'''


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database with a recorded session, and the program that made it."""
    (tmp_path / "bellapp.py").write_text(APP)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "bellapp", raising=False)

    @perdure.tool
    def ring(n: int) -> str:
        """Ring the bell."""
        return f"rang {n} times"

    model = ScriptedModel([calls(("ring", {"n": 3})), "It rang"])
    agent = Agent("bell", model=model, tools=[ring], instructions="Ring.")
    agent.run_sync(f"sqlite:///{tmp_path}/agents.db", session="s", message="please")
    return tmp_path


def test_identical_is_said_and_ends_well(place: Path, command: Command):
    for options in ((), ("--agent", "bellapp:agent")):
        found = command("replay", "s", *options)
        assert (found.code, found.out) == (0, "identical: 2 answers of s on main\n"), found.err
    found = command("replay", "s", "--json")
    assert found.json == {
        "session": "s", "branch": "main", "identical": True, "turns": 2, "differing_step": None, "difference": "",
        "model_changes": [],
    }  # fmt: skip


def test_a_difference_is_said_and_ends_with_1(place: Path, command: Command):
    found = command("replay", "s", "--agent", "bellapp:changed")
    assert found.code == 1
    assert found.out.startswith("step 1 differs, after 0 identical answers: message 0 of the request (system): ")
    found = command("replay", "s", "--agent", "bellapp:changed", "--json")
    assert found.code == 1
    assert (found.json["identical"], found.json["differing_step"]) == (False, 1)


def test_live_runs_on_a_branch(place: Path, command: Command):
    found = command("replay", "s", "--agent", "bellapp:agent", "--live", "--from", "3", "--as", "again", "--json")
    assert found.code == 0, found.err
    assert (found.json["branch"], found.json["status"], found.json["text"]) == ("again", "done", "Live!")

    async def look() -> list[str]:
        async with perdure.open_async(f"sqlite:///{place}/agents.db") as db:
            return sorted(h.branch for h in (await db.look("s")).heads)

    assert asyncio.run(look()) == ["again", "main"]
    found = command("replay", "s", "--agent", "bellapp:agent", "--live", "--from", "3")
    assert found.out.startswith("from step 3 on branch replay-3-1: done, step ")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--from", "2"), "go with --live"),
        (("--live",), "needs --agent"),
        (("--agent", "nowhere.py"), "there is no file nowhere.py"),
        (("--agent", "nowhere_to_be_found:agent"), "cannot be imported"),
        (("--agent", "bellapp:number"), "has an int there"),
        (("--agent", "bellapp:nothing"), "where an agent was looked for: name it, as bellapp:agent or bellapp:changed"),
        (("--agent", "bellapp:agent", "--live", "--from", "1", "--effects", "sometimes"), "effects is one of"),
    ],
)
def test_what_makes_no_sense_is_refused_with_2(place: Path, command: Command, options: tuple[str, ...], says: str):
    found = command("replay", "s", *options)
    assert found.code == 2
    assert says in found.err


def test_a_session_or_step_that_is_not_there_ends_with_1(place: Path, command: Command):
    assert command("replay", "nobody").code == 1
    assert command("replay", "s", "--agent", "bellapp:agent", "--live", "--from", "99").code == 1
