"""People beside a run: messages while an approval is open, cancelling, deadlines."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import tool
from perdure.agent import stopping
from perdure.agent.agent import Agent
from perdure.agent.branching_off import branch_off, run_on
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.errors import ApprovalError, InvalidInput, NotFound
from tests.agent.working import by_turn, opened, play

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.agent.models import Request

paid: list[int] = []


@tool(approve=True)
def refund(amount: int) -> str:
    """Refund money."""
    paid.append(amount)
    return f"refunded {amount}"


@tool(read=True)
def look(what: str) -> str:
    """Look something up."""
    return f"{what} is fine"


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    paid.clear()


def clerk(*answers: Any, **options: Any) -> Agent:
    return Agent("clerk", model=ScriptedModel(by_turn(*answers)), tools=[refund, look], **options)


def said(request: Request, back: int = 1) -> Any:
    return request.messages[-back]["content"]


# -- a message while an approval is open ----------------------------------------------------------------------------


def test_a_message_meanwhile_is_answered_after_the_decision(tmp_path: Path):
    agent = clerk(calls(("refund", {"amount": 5})), lambda r: f"first {said(r, 2)}, then {said(r)}")

    async def work() -> None:
        async with opened(tmp_path) as db:
            waits = await agent.run(db, session="s", message="refund me")
            again = await agent.run(db, session="s", message="and hurry")
            assert (again.status, again.approvals) == ("waiting_approval", waits.approvals)
            await db.approve("s", waits.approvals[0].id, by="bob")
            assert (await agent.run(db, session="s")).text == "first refunded 5, then and hurry"

    play(work())
    assert paid == [5]


def test_a_message_meanwhile_withdraws_the_request_and_is_answered_now(tmp_path: Path):
    script = (
        calls(("refund", {"amount": 5}), ("look", {"what": "order"})),
        lambda r: f"{json.loads(said(r, 3))['error']} | {said(r, 2)} | {said(r)}",
    )
    agent = clerk(*script, on_message="withdraw")

    async def work() -> None:
        async with opened(tmp_path) as db:
            waits = await agent.run(db, session="s", message="refund me")
            request = waits.approvals[0]
            done = await agent.run(db, session="s", message="no, leave it")
            assert done.status == "done"
            assert done.text == (
                "the request for approval was withdrawn: the user has said something else meanwhile"
                " | order is fine | no, leave it"
            )
            async with db.session("s") as s:
                assert [(a.id, a.status) for a in s.approvals(None)] == [(request.id, "withdrawn")]
            with pytest.raises(ApprovalError, match="withdrawn"):
                await db.approve("s", request.id, by="bob")

    play(work())
    assert paid == []


def test_a_decision_that_came_first_is_not_withdrawn(tmp_path: Path):
    agent = clerk(calls(("refund", {"amount": 5})), lambda r: f"{said(r, 2)}, {said(r)}", on_message="withdraw")

    async def work() -> None:
        async with opened(tmp_path) as db:
            waits = await agent.run(db, session="s", message="refund me")
            await db.approve("s", waits.approvals[0].id, by="bob")
            assert (await agent.run(db, session="s", message="thanks")).text == "refunded 5, thanks"

    play(work())


def test_what_becomes_of_messages_is_one_of_two_words():
    with pytest.raises(InvalidInput, match="queue, withdraw"):
        clerk("x", on_message="drop")


# -- cancelling ----------------------------------------------------------------------------------------------------


def test_a_cancelled_wait_is_over_until_there_is_a_new_message(tmp_path: Path):
    agent = clerk(calls(("refund", {"amount": 5})), lambda r: f"{json.loads(said(r, 2))['error']} | {said(r)}")

    async def work() -> None:
        async with opened(tmp_path) as db:
            waits = await agent.run(db, session="s", message="refund me")
            await db.cancel("s", by="ana", reason="wrong customer")
            over = await agent.run(db, session="s")
            assert (over.status, over.reason) == ("cancelled", "cancelled by ana: wrong customer")
            assert (await db.look("s")).status == "cancelled"
            with pytest.raises(ApprovalError):
                await db.approve("s", waits.approvals[0].id, by="bob")
            assert (await agent.run(db, session="s")).status == "cancelled"
            again = await agent.run(db, session="s", message="hello?")
            assert (again.status, again.text) == ("done", "cancelled by ana: wrong customer | hello?")
            assert (await db.look("s")).status == "idle"
            assert (await db.look("s")).pending == 0

    play(work())
    assert paid == []


def test_a_model_that_is_being_asked_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stopping, "POLL", 0.02)
    asked = asyncio.Event()

    async def never(request: Request) -> str:
        if said(request) == "hello":
            asked.set()
            await asyncio.sleep(3600)
        return f"{[m['content'] for m in request.messages]}"

    agent = Agent("slow", model=ScriptedModel(never))

    async def work() -> None:
        async with opened(tmp_path) as db:
            task = asyncio.create_task(agent.run(db, session="s", message="hello"))
            await asked.wait()
            await db.cancel("s")
            assert (await task).status == "cancelled"
            assert (await agent.run(db, session="s")).status == "cancelled"
            # What was asked before is still known, and was not answered by itself.
            assert (await agent.run(db, session="s", message="bye")).text == "['hello', 'bye']"

    play(work())


def test_a_tool_that_was_started_stays_open_and_is_settled_as_it_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stopping, "POLL", 0.02)
    started = asyncio.Event()
    entered: list[str] = []

    async def slowly(name: str) -> str:
        entered.append(name)
        if len(entered) <= 2:
            if len(entered) == 2:
                started.set()
            await asyncio.sleep(3600)
        return f"{name} done"

    @tool(if_unsure="retry")
    async def again(ctx: perdure.Context) -> str:
        return await slowly("again")

    @tool
    async def once() -> str:
        return await slowly("once")

    agent = Agent("a", model=ScriptedModel(by_turn(calls(("again", {}), ("once", {})), "fine")), tools=[again, once])

    async def work() -> None:
        async with opened(tmp_path) as db:
            task = asyncio.create_task(agent.run(db, session="s", message="go"))
            await started.wait()
            await db.cancel("s", by="ana")
            assert (await task).status == "cancelled"
            stuck = await agent.run(db, session="s", message="go on")
            assert (stuck.status, [d.tool for d in stuck.in_doubt]) == ("in_doubt", ["once"])
            async with db.session("s") as s:
                await s.resolve(stuck.in_doubt[0].effect, abort=True)
            assert (await agent.run(db, session="s")).text == "fine"

    play(work())
    assert sorted(entered) == ["again", "again", "once"]


def test_half_a_turn_is_thrown_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The model has answered, and what its call rests on is being looked up: nothing of that was committed."""
    monkeypatch.setattr(stopping, "POLL", 0.02)
    looking = asyncio.Event()

    async def never(amount: int) -> int:
        looking.set()
        await asyncio.sleep(3600)
        return amount

    @tool(approve=True, facts=never)
    def buy(amount: int) -> str:
        return "bought"

    def script(request: Request) -> Any:
        roles = [m["role"] for m in request.messages]
        return calls(("buy", {"amount": 1})) if roles == ["user"] else f"{roles}"

    agent = Agent("a", model=ScriptedModel(script), tools=[buy])

    async def work() -> None:
        async with opened(tmp_path) as db:
            task = asyncio.create_task(agent.run(db, session="s", message="buy"))
            await looking.wait()
            await db.cancel("s")
            assert (await task).status == "cancelled"
            assert list((await db.read("s")).messages) == []
            assert (await agent.run(db, session="s", message="no")).text == "['user', 'user']"

    play(work())


def test_a_cancellation_that_came_too_late_stops_nothing_that_was_said_after_it(tmp_path: Path):
    agent = Agent("a", model=ScriptedModel(lambda r: f"you said {said(r)}"))

    async def work() -> None:
        async with opened(tmp_path) as db:
            await agent.run(db, session="s", message="hello")
            async with db.session("s"):
                assert await db.cancel("s")
            end = await agent.run(db, session="s", message="still there?")
            assert (end.status, end.text) == ("done", "you said still there?")
            await db.post("new", "hello")
            assert await db.cancel("new")
            assert (await agent.run(db, session="new")).status == "cancelled"

    play(work())


def test_where_there_is_nothing_to_stop_nothing_is_written(tmp_path: Path):
    agent = Agent("a", model=ScriptedModel(lambda r: f"you said {said(r)}"))

    async def work() -> None:
        async with opened(tmp_path) as db:
            await agent.run(db, session="s", message="hello")
            assert not await db.cancel("s", by="ana")
            assert (await db.look("s")).pending == 0
            with pytest.raises(NotFound):
                await db.cancel("new")
            with pytest.raises(NotFound):
                await db.look("new")
            await db.post("s", "hello again")
            assert await db.cancel("s", by="ana")
            assert (await agent.run(db, session="s")).status == "cancelled"
            assert not await db.cancel("s", by="ana")

    play(work())


def test_a_deadline_ends_a_tool_that_is_waited_for(tmp_path: Path):
    entered: list[int] = []

    @tool(if_unsure="retry")
    async def slow(ctx: perdure.Context) -> str:
        entered.append(1)
        if len(entered) == 1:
            await asyncio.sleep(3600)
        return "done"

    agent = Agent("a", model=ScriptedModel(by_turn(calls(("slow", {})), said)), tools=[slow])

    async def work() -> None:
        async with opened(tmp_path) as db:
            assert (await agent.run(db, session="s", message="go", deadline=0.2)).status == "deadline"
            assert (await agent.run(db, session="s")).text == "done"

    play(work())
    assert len(entered) == 2


def test_a_deadline_ends_a_model_call_and_the_next_run_goes_on(tmp_path: Path):
    slow = True

    async def answer(request: Request) -> str:
        if slow:
            await asyncio.sleep(3600)
        return "here"

    agent = Agent("slow", model=ScriptedModel(answer))

    async def work() -> None:
        nonlocal slow
        async with opened(tmp_path) as db:
            late = await agent.run(db, session="s", message="hello", deadline=0.05)
            assert (late.status, (await db.look("s")).status) == ("deadline", "paused")
            slow = False
            assert (await agent.run(db, session="s")).text == "here"

    play(work())


def test_cancelling_the_task_itself_leaves_the_session_to_be_resumed(tmp_path: Path):
    asked = asyncio.Event()
    stuck = True

    async def answer(request: Request) -> str:
        asked.set()
        if stuck:
            await asyncio.sleep(3600)
        return "here"

    agent = Agent("slow", model=ScriptedModel(answer))

    async def work() -> None:
        nonlocal stuck
        async with opened(tmp_path) as db:
            task = asyncio.create_task(agent.run(db, session="s", message="hello"))
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            stuck = False
            assert (await agent.run(db, session="s")).text == "here"

    play(work())


# -- a tool's own rules that fail -----------------------------------------------------------------------------------


def test_facts_that_cannot_be_read_fail_the_run_and_let_the_other_calls_end(tmp_path: Path):
    prices, sent = dict[str, int](), list[str]()

    @tool(approve=True, facts=lambda room: prices[room])
    def book(room: str) -> str:
        """Book a room."""
        return f"booked {room}"

    @tool
    async def send(letter: str) -> str:
        """Send a letter."""
        await asyncio.sleep(0)
        sent.append(letter)
        return "sent"

    answers = calls(("book", {"room": "R1"}), ("send", {"letter": "hello"})), "all done"
    agent = Agent("clerk", model=ScriptedModel(by_turn(*answers)), tools=[book, send])

    async def work() -> None:
        async with opened(tmp_path) as db:
            failed = await agent.run(db, session="s", message="book")
            assert failed.status == "failed"
            assert failed.reason.startswith(
                'book(room="R1") was not called: what its tool has as facts raised KeyError'
            )
            assert (failed.turns, sent, failed.in_doubt) == (1, ["hello"], ())
            prices["R1"] = 80
            (asked,) = (await agent.run(db, session="s")).approvals
            await db.approve("s", asked, by="ana")
            del prices["R1"]
            again = await agent.run(db, session="s")
            # It is decided: nobody is asked for it again.
            assert (again.status, again.approvals) == ("failed", ())
            prices["R1"] = 80
            done = await agent.run(db, session="s")
            assert (done.status, done.text, sent) == ("done", "all done", ["hello"])

    play(work())


def test_a_decision_on_what_is_cancelled_does_not_stay_in_the_inbox(tmp_path: Path):
    agent = clerk(calls(("refund", {"amount": 5})), "nothing was done")

    async def work() -> None:
        async with opened(tmp_path) as db:
            waits = await agent.run(db, session="s", message="refund me")
            await db.approve("s", waits.approvals[0], by="bob")
            await db.cancel("s", by="ana")
            assert (await agent.run(db, session="s")).status == "cancelled"
            assert (await db.look("s")).pending == 0
            assert paid == []

    play(work())


@pytest.mark.parametrize("forgotten", [False, True])
def test_who_is_asked_on_a_branch_is_told_what_another_made_of_the_same_call(tmp_path: Path, forgotten: bool):
    agent = clerk(calls(("refund", {"amount": 250})), said, "and on")

    async def work() -> None:
        async with opened(tmp_path) as db:
            waits = await agent.run(db, session="s", message="refund me")
            await db.approve("s", waits.approvals[0].id, by="ana", args={"amount": 111})
            main = await agent.run(db, session="s")
            assert json.loads(main.text)["arguments"] == {"amount": 111}
            if forgotten:
                await agent.run(db, session="s", message="go on")
            await branch_off(db, "s", "before", at=1, before=True)
            asked = await run_on(db, agent, "s", "before", effects="reuse")
            effect = waits.approvals[0].effect
            told = f"the same was asked for on another branch, and made there as refund(amount=111) (effect {effect})"
            assert [a.because for a in asked.approvals] == [told]
            # Where the branch has seen it being asked for, the outcome is its own, and the model knows of what.
            await branch_off(db, "s", "there", at=1)
            assert (await run_on(db, agent, "s", "there", effects="reuse")).text == main.text

    play(work())
    assert paid == [111]


def test_a_dry_run_says_what_was_not_called_and_how_to_have_it_called(tmp_path: Path):
    agent = clerk(calls(("refund", {"amount": 5})), "nothing was done")
    after_hello = clerk("hello", calls(("refund", {"amount": 5})), "nothing was done")
    told = "dry run: refund was not called, and the model was told so. To have it called, "

    async def work() -> None:
        async with opened(tmp_path) as db:
            dry = await agent.run(db, session="new", message="refund me", effects="dry")
            again = 'go to another session and say it again there with --effects reuse (effects="reuse")'
            assert dry.notes == (told + again,)
            await after_hello.run(db, session="s", message="hello")
            async with await db.session("s") as s:
                await s.fork("b")
            async with await db.session("s", branch="b") as s:
                s.messages.append({"role": "user", "content": "refund me"})
                await s.commit()
            dry = await after_hello.run(db, session="s", branch="b", effects="dry")
            assert dry.notes == (
                f'{told}branch off at step 3 of b and run that with --effects reuse (effects="reuse")',
            )
            # And so it is.
            async with await db.session("s", branch="b") as s:
                await s.fork("c", at=3)
            asked = await after_hello.run(db, session="s", branch="c", effects="reuse")
            assert [a.tool for a in asked.approvals] == ["refund"]

    play(work())
