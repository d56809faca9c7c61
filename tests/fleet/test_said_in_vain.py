"""What is said where nobody takes it up: to a closed session, and what a rewind has left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, FunctionModel, calls, tool
from perdure.cli.program import run
from perdure.fleet.board import board_of
from perdure.protocols import NewWork, Rest, WorkerRow
from perdure.system.lease_holders import new_holder, running_agent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@tool(approve=True)
def refund(what: str) -> str:
    return f"refunded {what}"


def answers(request: Any) -> Any:
    last = request.messages[-1]
    return calls(("refund", {"what": "x"})) if last["role"] == "user" else f"done: {last['content']}"


desk = Agent("desk", model=FunctionModel(answers, name="m"), tools=[refund])


@pytest.fixture
def db(tmp_path: Path) -> Iterator[perdure.Database]:
    """A database with a worker that has the agent, and a session that waits for agreement."""
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as found:
        with running_agent():
            board_of(found).beat(WorkerRow(new_holder(), "vm", 1, "v", ("desk",), 20, 0, 0))
        found.create("s", agent="desk")
        assert desk.run_sync(found.url, session="s", message="hi", key="m1").status == "waiting_approval"
        yield found


def test_a_decision_in_a_closed_session_is_not_said_to_be_taken_up(db: perdure.Database):
    with db.session("s") as s:
        (asked,) = s.approvals()
        s.close()
    to, words, unserved = db.approve("s", asked.id, by="eve")
    assert (to, unserved) == ("nobody", False)
    assert words.startswith("It was closed, and nothing goes on with it unless ")
    assert "reopen=True" in words


def test_what_a_rewind_leaves_behind_is_said_by_all_who_are_asked(
    db: perdure.Database, capsys: pytest.CaptureFixture[str]
):
    def said(*argv: str) -> tuple[int, str]:
        code, told = run([*argv, "--store", db.url]), capsys.readouterr()
        return code, told.out + told.err

    gone, another = "The rewind has left message m1 behind: nobody answers it any more.", "under another key"
    code, told = said("rewind", "s@1")
    assert (code, gone in told, another in told) == (0, True, True)
    assert perdure.why(db, "s").line == gone
    assert another in perdure.why(db, "s").next
    assert gone in said("inbox", "s")[1]
    for command in ("post", "submit"):
        code, told = said(command, "s", "hi", "--key", "m1")
        assert (code != 0, "was rewound to before that" in told, another in told) == (True, True, True)
        assert "not answered yet" not in told
    with pytest.raises(perdure.Gone, match=r"was rewound to before that: .* say it again under another key"):
        desk.run_sync(db.url, session="s", message="hi", key="m1")
    assert desk.run_sync(db.url, session="s", message="hi", key="m2").status == "waiting_approval"


def test_what_another_branch_has_is_not_left_behind_by_a_rewind(db: perdure.Database):
    with db.session("s") as s:
        s.fork("other")
        assert "unsaid" not in s.rewind(1).more


def test_workers_of_a_version_that_does_not_go_on_from_it_are_not_said_to_take_it_nor_that_a_call_is_open(
    db: perdure.Database,
):
    other = Agent("desk", model=FunctionModel(answers, name="m"), tools=[refund], version="2", goes_on_from=["2"])
    with db.session("s") as s:
        (asked,) = s.approvals()
    assert db.approve("s", asked.id, by="eve").words == "It is handed to the fleet at once: 1 worker has agent desk."
    assert desk.run_sync(db.url, session="s").status == "done"
    db.post("s", "more")
    reason = other.run_sync(db.url, session="s").reason
    assert reason.startswith("it was left by version '1' of agent 'desk', and version '2' goes on from 2")
    board = board_of(db)
    board.put([NewWork("s", "desk")])
    board.claim("w", ("desk",), 1, 1, version="v")
    board.rest("w", [Rest("s", 0, again=True, avoid_version="v")], 2)
    found = perdure.why(db, "s")
    assert "cannot go on with it, version v: no call is open in it, and its program does not go on from" in found.line
    assert "version '1' of agent desk, which has left the session, or from its schema." in found.line
    assert "To resume it with another one says what does not fit" in found.next
