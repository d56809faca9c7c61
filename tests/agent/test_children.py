"""Agents that work for others: children in sessions of their own, and conversations that are handed over."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from perdure import tool
from perdure.agent import stopping
from perdure.agent.agent import Agent
from perdure.agent.branching_off import branch_off, run_on
from perdure.agent.children import child_id, handoff
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.session.tools.exceptions import LetThrough
from perdure.system import faults
from tests.agent.worker import start
from tests.agent.working import by_turn, opened, play
from tests.store_urls import url_of

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.agent.models import Request

booked: list[str] = []


class Died(LetThrough):
    """What a process that dies here raises; nothing may catch it."""


@tool(approve=lambda args: args["city"] == "Rome")
def book(city: str) -> str:
    """Book a hotel."""
    booked.append(city)
    return f"{city} booked"


@pytest.fixture(autouse=True)
def nothing_booked() -> None:
    booked.clear()


def last(request: Request) -> str:
    return request.messages[-1]["content"]


def pair(city: str) -> tuple[Agent, Agent]:
    """A parent that has one task done, and the child that does it."""
    child = Agent("booker", model=ScriptedModel(by_turn(calls(("book", {"city": city})), last)), tools=[book])
    does = child.as_tool(description="Book hotels.")
    parent = Agent(
        "planner", model=ScriptedModel(by_turn(calls(("booker", {"task": f"book {city}"})), last)), tools=[does]
    )
    return parent, child


def test_a_child_works_in_a_session_of_its_own_and_its_answer_is_the_result(tmp_path: Path):
    parent, _ = pair("Paris")

    async def work() -> None:
        async with opened(tmp_path) as db:
            end = await parent.run(db, session="trip", message="go", owner="ana")
            assert (end.status, end.text, end.children) == ("done", "Paris booked", ())
            rows = await db.sessions()
            assert [(r.owner, r.status) for r in rows] == [("ana", "idle")] * 2
            effect = next(c.more["effect"] for c in await db.history("trip") if c.kind == "done")
            assert rows[1].id == child_id("trip", effect)
            assert (await db.read(rows[1].id)).messages[0]["content"] == "book Paris"
            assert (await db.look("trip")).pending == 0
            planned = next(c.step for c in await db.history("trip") if effect in c.more.get("effects", ()))
            named = [c.more.get("child_of") for c in reversed(await db.history(rows[1].id))]
            assert named[0] == {"session": "trip", "branch": "main", "step": planned, "effect": effect}
            assert set(map(str, named[1:])) == {"None"}

    play(work())
    assert booked == ["Paris"]


def test_what_a_child_waits_for_is_seen_on_the_parent_which_goes_on_with_it(tmp_path: Path):
    parent, _ = pair("Rome")

    async def work() -> None:
        async with opened(tmp_path) as db:
            waits = await parent.run(db, session="trip", message="go")
            assert waits.status == "waiting_result"
            (child,) = waits.children
            assert (child.tool, child.status) == ("booker", "waiting_approval")
        async with opened(tmp_path) as db:
            assert (await parent.run(db, session="trip")).children == (child,)
            async with db.session(child.session) as s:
                request = s.approvals()[0]
            await db.approve(child.session, request.id, by="bob")
            end = await parent.run(db, session="trip")
            assert (end.status, end.text, end.children) == ("done", "Rome booked", ())

    play(work())
    assert booked == ["Rome"]


def test_a_child_that_is_finished_elsewhere_posts_its_outcome_to_the_parent(tmp_path: Path):
    parent, child = pair("Rome")

    async def work() -> None:
        async with opened(tmp_path) as db:
            (one,) = (await parent.run(db, session="trip", message="go")).children
            async with db.session(one.session) as s:
                request = s.approvals()[0]
            await db.reject(one.session, request.id, by="bob", reason="too dear")
            assert "too dear" in (await child.run(db, session=one.session)).text
            assert (await db.look("trip")).pending == 1
            assert "too dear" in (await parent.run(db, session="trip")).text
            assert (await db.look("trip")).pending == 0
            # It may be talked to later: the parent is not told again.
            agent = Agent("booker", model=ScriptedModel(lambda _: "hello"), tools=[book])
            await agent.run(db, session=one.session, message="hi")
            assert (await db.look("trip")).pending == 0

    play(work())


def test_a_child_that_fails_is_a_failed_call(tmp_path: Path):
    parent, child = pair("Paris")
    child.max_turns = 1

    async def work() -> None:
        async with opened(tmp_path) as db:
            end = await parent.run(db, session="trip", message="go")
            assert "booker ended with max_turns" in json.loads(end.text)["error"]

    play(work())


POINTS = ["agent.before_model", "agent.after_model", "agent.before_commit", "agent.after_commit", "call.before_outcome"]


@pytest.mark.parametrize("name", [*POINTS, "call.after_outcome", "commit.before_write", "commit.after_write"])
def test_dying_anywhere_in_either_loses_and_repeats_nothing(tmp_path: Path, name: str):
    """Each passing of the point in turn; dying is an exception that nobody catches, the process's locks are let go."""
    for nth in range(40):
        folder = tmp_path / str(nth)
        folder.mkdir()
        passed = 0

        def die(point: str, nth: int = nth) -> None:
            nonlocal passed
            if point == name:
                passed += 1
                if passed == nth + 1:
                    raise Died

        async def once(folder: Path = folder) -> Any:
            parent, _ = pair("Paris")
            async with opened(folder) as db:
                return await parent.run(db, session="trip", message="go", key="m")

        booked.clear()
        faults.hook = die
        try:
            end = play(once())
        except BaseException as e:
            if not (isinstance(e, Died) or (isinstance(e, BaseExceptionGroup) and e.subgroup(Died))):
                raise
            end = None
        finally:
            faults.hook = None
        if end is not None:
            assert nth > 1
            return
        end = play(once())
        if end.status == "waiting_result":
            # The call of the hotel was started and nobody knows: that is the child's doubt, not a second booking.
            assert end.children[0].status == "in_doubt"
            assert len(booked) <= 1
        else:
            assert (end.status, end.text, booked) == ("done", "Paris booked", ["Paris"])
    raise AssertionError(f"{name} is passed for ever")


@pytest.mark.parametrize(
    "point", ["agent.after_model", "agent.after_commit", "call.before_outcome", "call.after_outcome"]
)
def test_killing_a_parent_with_its_child_loses_and_repeats_nothing(tmp_path: Path, point: str):
    """The same points are passed by the parent and by the child, so that each hit is another one's death."""
    for hit in range(1, 6):
        folder = tmp_path / str(hit)
        folder.mkdir()
        job = {"scene": "plan", "url": url_of("sqlite", folder)}
        killed = start(folder, **job, point=point, hit=hit)
        killed.communicate()
        if killed.returncode == 0:
            assert hit > 1
            return
        assert killed.returncode == -signal.SIGKILL
        again = start(folder, **job)
        out, _ = again.communicate()
        assert json.loads(out) == ["done", "Paris booked"]
        # Under one key, however often it was sent.
        assert len(set((folder / "bookings").read_text().split())) == 1


def test_putting_a_parent_down_puts_its_child_down_after_the_childs_step(tmp_path: Path):
    stop = asyncio.Event()

    @tool(if_unsure="ask")
    def sign(paper: str) -> str:
        """Sign a paper."""
        booked.append(paper)
        stop.set()
        return f"{paper} signed"

    def twice() -> tuple[Agent, Agent]:
        script = by_turn(calls(("sign", {"paper": "one"})), calls(("sign", {"paper": "two"})), last)
        child = Agent("signer", model=ScriptedModel(script), tools=[sign])
        does = child.as_tool(description="Sign papers.")
        return Agent(
            "boss", model=ScriptedModel(by_turn(calls(("signer", {"task": "both"})), last)), tools=[does]
        ), child

    async def work() -> None:
        async with opened(tmp_path) as db:
            parent, _ = twice()
            put_down = await parent.run(db, session="trip", message="go", stop=stop)
            assert put_down.status == "waiting_result"
            assert [c.status for c in put_down.children] == ["running"]
            assert booked == ["one"]
        async with opened(tmp_path) as db:
            parent, _ = twice()
            end = await parent.run(db, session="trip")
            assert (end.status, end.text) == ("done", "two signed")

    play(work())
    assert booked == ["one", "two"]


def test_cancelling_reaches_children_that_wait(tmp_path: Path):
    parent, _ = pair("Rome")

    async def work() -> None:
        async with opened(tmp_path) as db:
            (child,) = (await parent.run(db, session="trip", message="go")).children
            await db.cancel("trip", by="ana", reason="stay home")
            assert (await parent.run(db, session="trip")).status == "cancelled"
            assert (await db.look(child.session)).status == "cancelled"
            async with db.session(child.session) as s:
                assert [a.status for a in s.approvals(None)] == ["withdrawn"]
            end = await parent.run(db, session="trip", message="well?")
            assert "cancelled" in (await db.read("trip")).messages[-3]["content"]
            assert (end.status, end.text) == ("done", "well?")

    play(work())
    assert booked == []


def test_cancelling_reaches_children_that_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stopping, "POLL", 0.02)
    working = asyncio.Event()

    async def long(request: Request) -> str:
        working.set()
        await asyncio.sleep(3600)
        return "never"

    child = Agent("thinker", model=ScriptedModel(long))
    parent = Agent("p", model=ScriptedModel(by_turn(calls(("thinker", {"task": "think"})))), tools=[child.as_tool()])

    async def work() -> None:
        async with opened(tmp_path) as db:
            task = asyncio.create_task(parent.run(db, session="p", message="go"))
            await working.wait()
            await db.cancel("p")
            assert (await task).status == "cancelled"
            assert {r.status for r in await db.sessions()} == {"cancelled"}

    play(work())


# -- handing over --------------------------------------------------------------------------------------------------


def desk() -> tuple[Agent, Agent]:
    def names(request: Request) -> str:
        return f"{request.messages[0]['content']} {sorted(t['name'] for t in request.tools)} {last(request)}"

    billing = Agent("billing", model=ScriptedModel(names, name="b"), tools=[book], instructions="I do bills.")
    front = Agent(
        "front",
        model=ScriptedModel(by_turn(calls(("hand_to_billing", {"reason": "a bill"})), names), name="f"),
        tools=[handoff(billing)],
        instructions="I am the front desk.",
    )
    return front, billing


def test_a_conversation_that_was_handed_over_goes_on_under_the_other_agent(tmp_path: Path):
    front, _ = desk()

    async def work() -> None:
        async with opened(tmp_path) as db:
            end = await front.run(db, session="s", message="my bill is wrong")
            said = "I do bills. ['book'] billing has the conversation from here on."
            assert (end.status, end.text, end.notes) == ("done", said, ())
        async with opened(tmp_path) as db:
            again, _ = desk()
            assert (await again.run(db, session="s", message="hello")).text == "I do bills. ['book'] hello"
            models = [c.more["model"]["name"] for c in await db.history("s") if "model" in c.more]
            assert models == ["b", "b", "f"]

    play(work())


def test_an_agent_that_nobody_knows_cannot_go_on(tmp_path: Path):
    front, billing = desk()

    async def work() -> None:
        async with opened(tmp_path) as db:
            await front.run(db, session="s", message="my bill is wrong")
            alone = Agent("front", model=ScriptedModel(lambda _: "hm"))
            end = await alone.run(db, session="s", message="hello")
            assert (end.status, "'billing'" in end.reason, "agents=" in end.reason) == ("incompatible", True, True)
            assert (await db.look("s")).pending == 1
            assert (await alone.run(db, session="s", agents=[billing])).text == "I do bills. ['book'] hello"

    play(work())


def test_dying_right_after_a_handover_goes_on_with_the_other_agent(tmp_path: Path):
    def die(point: str) -> None:
        if point == "call.after_outcome":
            raise Died

    async def once() -> Any:
        front, _ = desk()
        async with opened(tmp_path) as db:
            return await front.run(db, session="s", message="my bill is wrong", key="m")

    faults.hook = die
    try:
        with pytest.raises(BaseExceptionGroup) as died:
            play(once())
        assert died.value.subgroup(Died)
    finally:
        faults.hook = None
    end = play(once())
    assert (end.text[:11], end.notes) == ("I do bills.", ())


def test_two_agents_can_hand_a_conversation_to_each_other(tmp_path: Path):
    def front_says(request: Request) -> Any:
        return calls(("hand_to_billing", {})) if "bill" in last(request) else f"front: {last(request)}"

    def billing_says(request: Request) -> Any:
        return calls(("hand_to_front", {})) if "thanks" in last(request) else f"billing: {last(request)}"

    billing = Agent("billing", model=ScriptedModel(billing_says), tools=[handoff("front")])
    front = Agent("front", model=ScriptedModel(front_says), tools=[handoff(billing)])

    async def work() -> None:
        async with opened(tmp_path) as db:
            texts = [(await front.run(db, session="s", message=m)).text for m in ("my bill", "ok", "thanks", "bye")]
            said = "has the conversation from here on."
            assert texts == [f"billing: billing {said}", "billing: ok", f"front: front {said}", "front: bye"]
            # Whoever knows only one of them cannot give it to the other.
            lost = await billing.run(db, session="t", message="thanks")
            assert (lost.status, "'front'" in lost.reason) == ("incompatible", True)

    play(work())


def test_a_child_in_doubt_makes_its_parent_wait(tmp_path: Path):
    @tool
    def book(city: str) -> str:
        raise TimeoutError

    child = Agent("booker", model=ScriptedModel(by_turn(calls(("book", {"city": "Rome"})), last)), tools=[book])
    asks = by_turn(calls(("booker", {"task": "book Rome"})), last)
    parent = Agent("planner", model=ScriptedModel(asks), tools=[child.as_tool()])

    async def work() -> None:
        async with opened(tmp_path) as db:
            end = await parent.run(db, session="trip", message="go")
            assert (end.status, [c.status for c in end.children]) == ("waiting_result", ["in_doubt"])
            inside = end.children[0].session
            async with db.session(inside) as s:
                await s.resolve(s.effects()[0]["id"], done="Rome booked", by="ana")
            assert (await parent.run(db, session="trip")).text == "Rome booked"

    play(work())


def test_a_call_in_doubt_of_a_child_is_logged_once_however_often_its_parent_looks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    def find_out(city: str) -> None:
        raise RuntimeError("nobody answers")

    @tool
    def book(city: str) -> str:
        raise TimeoutError

    @tool(if_unsure=find_out)
    def pay(city: str) -> str:
        raise TimeoutError

    said = by_turn(calls(("book", {"city": "Rome"}), ("pay", {"city": "Rome"})), last)
    child = Agent("booker", model=ScriptedModel(said), tools=[book, pay])
    asks = by_turn(calls(("booker", {"task": "book Rome"})), last)
    parent = Agent("planner", model=ScriptedModel(asks), tools=[child.as_tool()])

    async def work() -> None:
        async with opened(tmp_path) as db:
            ends = [await parent.run(db, session="trip", message="go", key="go") for _ in range(3)]
            assert {end.status for end in ends} == {"waiting_result"}
            inside = ends[0].children[0].session
            assert sorted(r.getMessage().split(" (")[0] for r in caplog.records) == [
                "book", "nobody could be asked about pay", "pay",
            ]  # fmt: skip
            async with db.session(inside) as s:
                for effect in s.effects():
                    await s.resolve(effect["id"], retry=True, by="ana")
            caplog.clear()
            await parent.run(db, session="trip", message="go", key="go")
            assert {r.getMessage().split(" (")[0] for r in caplog.records} >= {"book", "pay"}, "they were made again"

    play(work())


def test_a_child_with_a_bug_has_raised_and_goes_on_in_its_session_when_it_is_asked_again(tmp_path: Path):
    bugs = [KeyError("city")]

    def until(text: str) -> bool:
        if bugs:
            raise bugs.pop()
        return True

    child = Agent("booker", model=ScriptedModel(["Rome booked"]), until=until)
    asked = calls(("booker", {"task": "book Rome"}))
    parent = Agent("planner", model=ScriptedModel(by_turn(asked, asked, last)), tools=[child.as_tool()])

    async def work() -> None:
        async with opened(tmp_path) as db:
            end = await parent.run(db, session="trip", message="go")
            assert (end.status, end.text) == ("done", "Rome booked")
            assert [(r.status, r.error, r.message) for r in end.raised] == [("raised", "KeyError", "'city'")]
            assert len(await db.sessions()) == 2, "one child, asked twice"

    play(work())


def test_a_branch_waits_for_the_same_child_and_does_not_begin_another(tmp_path: Path):
    async def scene() -> None:
        parent, child = pair("Rome")
        async with opened(tmp_path) as db:
            result = await parent.run(db, session="trip", message="go")
            (waits,) = result.children
            await branch_off(db, "trip", "other", at=1, before=True)
            on_branch = await run_on(db, parent, "trip", "other", effects="reuse")
            assert on_branch.children == (waits,)
            (approval,) = (await child.run(db, session=waits.session)).approvals
            await db.approve(waits.session, approval.id, by="ana")
            assert (await child.run(db, session=waits.session)).status == "done"
            assert (await parent.run(db, session="trip")).text == "Rome booked"
            assert (await run_on(db, parent, "trip", "other", effects="reuse")).text == "Rome booked"
            assert {row.id for row in await db.sessions()} == {"trip", waits.session}
        assert booked == ["Rome"]

    asyncio.run(scene())
