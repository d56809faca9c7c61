"""A child that works for another session: a hold of its agent and a pause of it hold it in its parent's hands, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, FunctionModel, calls, tool
from perdure.cli.program import run
from perdure.fleet.board import board_of
from perdure.fleet.status import steer
from perdure.protocols import WorkerRow
from perdure.system.lease_holders import new_holder, running_agent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

charged: list[str] = []


@tool(if_unsure="retry", approve=True)
def charge(card: str) -> str:
    charged.append(card)
    return f"charged {card}"


def books(request: Any) -> Any:
    last = request.messages[-1]
    return calls(("charge", {"card": "visa"})) if last["role"] == "user" else f"booked: {last['content']}"


def delegates(request: Any) -> Any:
    last = request.messages[-1]
    return calls(("booker", {"task": "book it"})) if last["role"] == "user" else f"done: {last['content']}"


booker = Agent("booker", model=FunctionModel(books, name="m"), tools=[charge])
boss = Agent("boss", model=FunctionModel(delegates, name="m"), tools=[booker.as_tool(description="Books.")])


@pytest.fixture
def db(tmp_path: Path) -> Iterator[perdure.Database]:
    """A database with a worker that has both agents, and a parent whose child waits for agreement."""
    charged.clear()
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as found:
        row = WorkerRow(new_holder(), "vm", 1, "v", ("booker", "boss"), 20, 0, 0)
        with running_agent():
            board_of(found).beat(row)
        yield found


def begun(db: perdure.Database) -> str:
    """The child of a parent that waits for it."""
    (child,) = boss.run_sync(db.url, session="p", message="go").children
    assert child.status == "waiting_approval"
    return child.session


def agreed(db: perdure.Database, session: str) -> Any:
    with db.session(session) as s:
        (asked,) = s.approvals()
    return db.approve(session, asked.id, by="eve")


def test_an_agent_that_is_held_is_held_in_the_hands_of_a_parent_too(db: perdure.Database):
    child = begun(db)
    board_of(db).hold("booker", True)
    held = "All sessions of agent booker are held: no worker takes them."
    assert agreed(db, child).words.startswith(f"{held} Let the agent go on again. (perdure unpause")
    went_on = boss.run_sync(db.url, session="p")
    assert (went_on.status, charged) == ("waiting_result", [])
    assert held in str(went_on.notes)
    for session in (child, "p"):
        found = perdure.why(db, session)
        assert held in found.line
        assert found.severity == "act"
        assert "perdure unpause --agent booker" in found.actions[0].command
    board_of(db).hold("booker", False)
    assert (boss.run_sync(db.url, session="p").status, charged) == ("done", ["visa"])


def test_a_child_that_is_paused_does_not_go_on_in_the_hands_of_its_parent(db: perdure.Database):
    child = begun(db)
    assert steer(db, [child], "pause") == 1
    agreed(db, child)
    assert (boss.run_sync(db.url, session="p").status, charged) == ("waiting_result", [])
    for session in (child, "p"):
        assert "A person has paused it: no worker takes it." in perdure.why(db, session).line
        assert perdure.why(db, session).actions[0].command.startswith(f"perdure unpause {child}")
    steer(db, [child], "unpause")
    assert (boss.run_sync(db.url, session="p").status, charged) == ("done", ["visa"])


def test_a_child_whose_agent_is_held_before_it_began_begins_when_the_agent_is_let_go(db: perdure.Database):
    board_of(db).hold("booker", True)
    waits = boss.run_sync(db.url, session="p", message="go")
    assert waits.status == "waiting_result"
    assert [row.id for row in db.sessions()] == ["p"]
    assert "All sessions of agent booker are held" in perdure.why(db, "p").line
    board_of(db).hold("booker", False)
    (child,) = boss.run_sync(db.url, session="p").children
    assert child.status == "waiting_approval"
    assert db.read(child.session).messages[0]["content"] == "book it"
    agreed(db, child.session)
    assert (boss.run_sync(db.url, session="p").status, charged) == ("done", ["visa"])


def test_pausing_names_what_it_did_and_none_of_those_named_is_no_success(
    db: perdure.Database, capsys: pytest.CaptureFixture[str]
):
    child = begun(db)
    assert run(["pause", child, "--store", db.url]) == 0
    assert "pause: 1 of 1 session" in capsys.readouterr().out
    assert run(["pause", child, "--store", db.url]) == 1
    assert "pause: 0 of 1 session (not those that were paused already" in capsys.readouterr().out
    assert run(["pause", "--agent", "booker", "--store", db.url]) == 0
    assert "All sessions of agent booker are held, new ones too" in capsys.readouterr().out
