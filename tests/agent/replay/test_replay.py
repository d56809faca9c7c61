"""A recorded session run again: identical, or the first step that is not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from perdure import tool
from perdure.agent.agent import Agent
from perdure.agent.branching_off import rerun
from perdure.agent.context.compactor import Compactor
from perdure.agent.context.window import Window
from perdure.agent.models import Request
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.agent.replay.replay import replay
from perdure.agent.requests import rebuild
from perdure.errors import InvalidInput
from tests.agent.context.checker import CheckingModel
from tests.agent.context.scene import act, answers, look, opened, script, worker

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.aio import AsyncDatabase

ledger: list[str] = []


@tool(if_unsure="retry", approve=lambda a: a["amount"] > 100)
def refund(order: str, amount: int) -> dict[str, Any]:
    """Give money back."""
    ledger.append(order)
    return {"order": order, "amount": amount}


@tool(read=True)
def status(order: str) -> dict[str, Any]:
    """Look at an order."""
    if order == "lost":
        raise LookupError(order)
    return {"order": order, "status": "sent"}


def shop(script: Any, **options: Any) -> Agent:
    """An agent of a shop."""
    options.setdefault("instructions", "Be kind.")
    return Agent("shop", model=ScriptedModel(script), tools=[refund, status], **options)


SAID: list[Any] = [
    "Hello",
    calls(("status", {"order": "1"}), ("refund", {"order": "1", "amount": 5}), ("nope", {}), ("refund", {"x": 1})),
    "All done",
    calls(("refund", {"order": "7", "amount": 500}), ("status", {"order": "lost"})),
    calls(("refund", {"order": "8", "amount": 500})),
    "That was it",
]


async def recorded(db: AsyncDatabase) -> None:
    """A session with results, errors, an approval edited and one refused."""
    ledger.clear()
    agent = shop(SAID)
    await agent.run(db, session="s", message="hi", context={"region": "west"})
    await agent.run(db, session="s", message="refund please")
    result = await agent.run(db, session="s", message="a big one", context={"region": "east"})
    await db.approve("s", result.approvals[0].id, by="bob", args={"order": "7", "amount": 450})
    result = await agent.run(db, session="s", context={"region": "east"})
    await db.reject("s", result.approvals[0].id, by="bob", reason="too much")
    assert (await agent.run(db, session="s")).text == "That was it"
    assert ledger == ["1", "7"]


def test_what_was_recorded_is_what_happens_again_and_nothing_is_done_or_asked():
    async def main() -> None:
        async with opened() as db:
            await recorded(db)
            before = await db.look("s")
            again = shop(lambda _: pytest.fail("the model was asked"))
            for agent in (None, again):
                found = await replay(db, "s", agent=agent)
                assert found.identical, found
                assert found.turns == 6
            assert ledger == ["1", "7"]
            assert (await db.look("s"))._replace(now=before.now) == before

    asyncio.run(main())


@tool(if_unsure="retry")
def refund_renamed(order: str, amount: int, why: str = "") -> dict[str, Any]:
    """Give money back."""
    return {}


def test_the_first_step_that_differs_is_told_and_what_differs():
    async def main() -> None:
        async with opened() as db:
            await recorded(db)
            steps = await answers(db, "s")
            changed = shop([], instructions="Be stern.")
            found = await replay(db, "s", agent=changed)
            assert (found.step, found.turns) == (steps[0], 0)
            assert "kind" in found.what
            assert "stern" in found.what
            found = await replay(db, "s", agent=shop([], params={"temperature": 0.5}))
            assert found.step == steps[0]
            assert found.what == "the parameters: {} became {'temperature': 0.5}"
            other = Agent("shop", model=ScriptedModel([]), tools=[refund, status, look], instructions="Be kind.")
            found = await replay(db, "s", agent=other)
            assert found.what.startswith("the tool look: is new")
            # Done by a measure of its own, it would have been told to go on.
            found = await replay(db, "s", agent=shop([], until="never"))
            assert found.step == steps[1]
            assert "Go on." in found.what

    asyncio.run(main())


def test_an_edit_by_somebody_else_is_made_again():
    async def main() -> None:
        async with opened() as db:
            agent = shop(["Hello", calls(("status", {"order": "1"})), "Sent"])
            await agent.run(db, session="s", message="hi")
            async with db.session("s") as s:
                s.messages[0]["content"] = "hi there"
                s.vars["x"] = 1
                await s.commit("corrected")
            await agent.run(db, session="s", message="and order 1?")
            assert (await replay(db, "s")).identical
            assert (await replay(db, "s", agent=agent)).identical

    asyncio.run(main())


def test_a_conversation_that_was_changed_behind_our_back_is_found():
    """The replay is of the record: a message that no recorded step explains differs from what the loop would say."""

    async def main() -> None:
        async with opened() as db:
            agent = shop([calls(("status", {"order": "1"})), "Sent"], until="Sent")
            await agent.run(db, session="s", message="hi")
            found = await replay(db, "s", agent=shop([], until="another word"))
            assert not found.identical
            assert found.what.startswith("message 4 at the end: is new")

    asyncio.run(main())


@pytest.mark.parametrize("limit", [None, 2500])
def test_a_long_session_with_cuts_and_refusals_is_identical(limit: int | None):
    model = CheckingModel(script, limit=limit)
    window = Window() if limit else Window(4000, low_water=1200)
    agent = worker(model, window=window, compactor=Compactor(max_tokens=200))

    async def main() -> None:
        async with opened() as db:
            for i in range(6):
                assert (await agent.run(db, session="s", message=f"task {i} " + "x" * 100 * i)).ok
            assert len(model.summaries) > 2
            assert bool(model.refused) == bool(limit)
            asked = len(model.seen)
            assert (await replay(db, "s")).identical
            assert (await replay(db, "s", agent=agent)).identical
            assert len(model.seen) == asked
            smaller = worker(model, window=Window(1800, low_water=900), compactor=Compactor(max_tokens=200))
            found = await replay(db, "s", agent=smaller)
            assert not found.identical

    asyncio.run(main())


def test_a_window_counted_by_the_program_needs_the_program():
    agent = worker(CheckingModel(script), window=Window(4000, count=lambda m: len(str(m)) // 3))

    async def main() -> None:
        async with opened() as db:
            for i in range(3):
                await agent.run(db, session="s", message=f"task {i}")
            with pytest.raises(InvalidInput, match="name the agent"):
                await replay(db, "s")
            assert (await replay(db, "s", agent=agent)).identical

    asyncio.run(main())


def test_a_session_that_still_waits_is_replayed_as_far_as_it_got():
    async def main() -> None:
        async with opened() as db:
            result = await shop([SAID[3]]).run(db, session="s", message="a big one")
            assert result.status == "waiting_approval"
            found = await replay(db, "s", agent=shop([]))
            assert found.identical
            assert found.turns == 1

    asyncio.run(main())


def test_a_session_without_answers_cannot_be_replayed():
    async def main() -> None:
        async with opened() as db:
            async with db.session("s") as s:
                s.vars["x"] = 1
                await s.commit()
            with pytest.raises(InvalidInput, match="nothing to replay"):
                await replay(db, "s")

    asyncio.run(main())


# -- live ----------------------------------------------------------------------------------------------------------


def test_a_step_is_asked_for_again_on_a_branch_and_effects_are_not_repeated():
    async def main() -> None:
        async with opened() as db:
            await recorded(db)
            await db.post("s", "meant for main", key="later")
            steps = await answers(db, "s")
            asked: list[Request] = []

            def curious(request: Request) -> Any:
                asked.append(request)
                done = sum(m["role"] == "assistant" for m in request.messages)
                return (
                    calls(("refund", {"order": "1", "amount": 5}), ("status", {"order": "1"})) if done == 1 else "New"
                )

            went = await rerun(db, shop(curious), "s", at=steps[1])
            assert went.branch == f"replay-{steps[1]}-1"
            assert went.result.text == "New"
            # What it is asked is what was asked then.
            assert [m["content"] for m in asked[0].messages] == ["Be kind.", "hi", "Hello", "refund please"]
            # The refund was made on the line this one comes from.
            assert ledger == ["1", "7"]
            reading = await db.read("s", branch=went.branch)
            assert '{"order": "1", "amount": 5}' in [m.get("content") for m in reading.messages]
            # The branch that was recorded, and what waits for it, are as they were.
            assert (await db.read("s")).messages[-1]["content"] == "That was it"
            assert not any("meant" in str(m.get("content")) for m in reading.messages)
            again = await rerun(db, shop(curious), "s", at=steps[1])
            assert again.branch == f"replay-{steps[1]}-2"

    asyncio.run(main())


def test_live_effects_ask_first_and_dry_ones_are_not_made():
    async def main() -> None:
        async with opened() as db:
            await recorded(db)
            steps = await answers(db, "s")
            small = shop(
                lambda r: calls(("refund", {"order": "1", "amount": 5})) if r.messages[-1]["role"] == "user" else "ok"
            )
            went = await rerun(db, small, "s", at=steps[1], effects="live", name="again")
            assert went.result.status == "waiting_approval"
            assert "done on another branch" in went.result.approvals[0].because
            assert ledger == ["1", "7"]
            other = shop(
                lambda r: calls(("refund", {"order": "2", "amount": 5})) if r.messages[-1]["role"] == "user" else "ok"
            )
            went = await rerun(db, other, "s", at=steps[1], effects="dry", name="dry")
            assert went.result.ok
            assert "dry run" in (await db.read("s", branch="dry")).messages[-2]["content"]
            assert ledger == ["1", "7"]

    asyncio.run(main())


def test_the_very_first_step_and_a_step_between_can_be_run_again():
    async def main() -> None:
        async with opened() as db:
            await recorded(db)
            steps = await answers(db, "s")
            went = await rerun(db, shop(["Good day"]), "s", at=steps[0])
            reading = await db.read("s", branch=went.branch)
            assert [m["content"] for m in reading.messages] == ["hi", "Good day"]
            # A step with the results of calls: the agent goes on from there.
            between = steps[2] - 1
            went = await rerun(db, shop(["", "", "Refunded"]), "s", at=between)
            assert went.result.text == "Refunded"
            assert ledger == ["1", "7"]

    asyncio.run(main())


def test_tools_are_never_entered_in_a_replay():
    agent = worker(CheckingModel(script))

    async def main() -> None:
        async with opened() as db:
            await agent.run(db, session="s", message="task")
            made: list[str] = []
            original = act.fn
            try:
                act.fn = lambda n: made.append("act")
                assert (await replay(db, "s", agent=agent)).identical
            finally:
                act.fn = original
            assert made == []

    asyncio.run(main())


def test_a_session_that_lost_its_beginning_cannot_be_replayed_and_says_so(tmp_path: Path):
    agent = worker(CheckingModel(script))

    async def main() -> None:
        async with opened(f"sqlite:///{tmp_path}/agents.db") as db:
            for i in range(3):
                await agent.run(db, session="s", message=f"task {i}")
            await db.compact("s")
            assert (await replay(db, "s")).identical
            steps = await answers(db, "s")
            kept = rebuild(db, "s", steps[-1])
            await db.prune("s", keep_last=5)
            with pytest.raises(InvalidInput, match="pruned"):
                await replay(db, "s", agent=agent)
            # What is left still gives its requests back, and can be run on from.
            assert rebuild(db, "s", steps[-1]) == kept
            assert (await rerun(db, shop([]), "s", at=steps[-1], max_turns=1)).branch

    asyncio.run(main())
