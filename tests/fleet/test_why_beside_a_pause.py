"""What ``why`` says where a pause, a stop, a doubt and a request meet in one session: none of them hides the others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, FunctionModel, calls, tool
from perdure.fleet.board import board_of, submit
from perdure.fleet.status import steer
from perdure.fleet.why.decision import told
from perdure.fleet.why.reading import gather
from perdure.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@tool(approve=True)
def refund(what: str) -> str:
    return f"refunded {what}"


@tool
def wire(what: str) -> str:
    raise TimeoutError("no answer")


def answers(request: Any) -> Any:
    last = request.messages[-1]
    if last["role"] == "user":
        return calls(*((name, {"what": "x"}) for name in last["content"].split()))
    return f"done: {last['content']}"


desk = Agent("desk", model=FunctionModel(answers, name="m"), tools=[refund, wire])


@pytest.fixture
def db(tmp_path: Path) -> Iterator[perdure.Database]:
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as found:
        yield found


def test_a_paused_session_that_is_to_stop_says_so(db: perdure.Database):
    submit(db, "s", "refund", agent="desk")
    steer(db, ["s"], "pause")
    db.cancel("s", by="eve")
    found = perdure.why(db, "s")
    assert found.line == (
        "Somebody wants it to stop: it stops when a worker takes it. A person has paused it: no worker takes it."
    )
    assert found.next == "Unpause it: it stops when a worker takes it."


def test_what_was_said_since_somebody_wanted_it_to_stop_is_not_to_be_said_again(db: perdure.Database):
    submit(db, "s", "refund", agent="desk")
    db.cancel("s", by="eve")
    assert "Say again what is to be answered all the same." in perdure.why(db, "s").next
    db.post("s", "after all")
    found = perdure.why(db, "s")
    assert found.line.startswith("1 message waits in its inbox")
    assert "1 message was said before somebody wanted it to stop, and will not be answered." in found.next
    assert "Say again" not in found.next
    assert "post" not in [action.name.value for action in found.actions]


def test_a_paused_session_that_waits_for_agreement_names_both(db: perdure.Database):
    assert desk.run_sync(db.url, session="s", message="refund").status == "waiting_approval"
    assert steer(db, ["s"], "pause") == 1
    found = perdure.why(db, "s")
    assert 'refund(what="x") ' in found.line
    assert found.line.endswith("A person has paused it: no worker takes it.")
    assert found.next.endswith("Unpause it to let it go on.")
    assert [action.name.value for action in found.actions] == ["approve", "unpause"]
    board_of(db).hold("desk", True)
    assert "All sessions of agent desk are held" in perdure.why(db, "s").line


def test_one_in_doubt_that_waits_for_agreement_too_names_both(db: perdure.Database):
    assert desk.run_sync(db.url, session="s", message="wire refund").status == "in_doubt"
    found = perdure.why(db, "s")
    assert 'wire(what="x") was started and nobody knows whether it happened.' in found.line
    assert found.line.endswith('refund(what="x") waits for agreement, too.')
    assert [action.name.value for action in found.actions] == ["resolve", "approve"]


def test_a_call_that_loses_its_answer_again_and_again_is_no_mere_wait(tmp_path: Path):
    url, clock, seen = f"sqlite:///{tmp_path}/agents.db", FakeClock(), dict[int, str]()

    @tool(if_unsure="retry")
    def charge(what: str, ctx: perdure.Context) -> str:
        with perdure.open(url, clock=clock) as db:
            facts = gather(db, db.look("s"))
            seen[ctx.attempt] = told(facts).severity
        if ctx.attempt > 4:
            return "charged"
        raise ConnectionError("the provider is down")

    agent = Agent("desk", model=FunctionModel(answers, name="m"), tools=[charge])

    async def run() -> None:
        async with perdure.open_async(url, clock=clock) as db:
            assert (await agent.run(db, session="s", message="charge")).status == "done"

    asyncio.run(run())
    assert seen == {1: "wait", 2: "wait", 3: "failing", 4: "failing", 5: "failing"}
