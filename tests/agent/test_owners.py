"""A session names the agent that works on it, and whose it is: somebody else's message leaves nothing in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import perdure
from perdure.agent.agent import Agent
from perdure.agent.children import handoff
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.errors import InvalidInput, ModelError
from tests.agent.working import by_turn, opened, play

if TYPE_CHECKING:
    from pathlib import Path

    import perdure
    from perdure.agent.models import Request


async def named(db: perdure.AsyncDatabase, session: str) -> list[str | None]:
    """Which agent each checkpoint names, oldest first."""
    return [point.more.get("agent") for point in reversed(await db.history(session))]


def test_the_first_commit_names_the_agent_and_no_other_does(tmp_path: Path):
    agent = Agent("support", model=ScriptedModel(["One", "Two", "Three"]))

    async def work() -> None:
        for message in ("a", "b"):
            async with opened(tmp_path) as db:
                await agent.run(db, session="s", message=message)
        async with opened(tmp_path) as db:
            assert (await db.look("s")).agent == "support"
            assert await named(db, "s") == ["support", None]
            assert [row.id for row in await db.sessions(agent="support")] == ["s"]

    play(work())


def test_a_session_that_was_made_for_it_is_not_named_again(tmp_path: Path):
    agent = Agent("support", model=ScriptedModel(["One"]))

    async def work() -> None:
        async with opened(tmp_path) as db:
            assert await db.create("s", agent="support", owner="ana")
            end = await agent.run(db, session="s", owner="ana", message="hello")
            assert (end.status, end.text) == ("done", "One")
            assert await named(db, "s") == ["support", None]

    play(work())


def test_an_agent_that_never_got_an_answer_is_named_with_the_error(tmp_path: Path):
    def fail(_: Request) -> str:
        raise ModelError("no")

    async def work() -> None:
        async with opened(tmp_path) as db:
            end = await Agent("support", model=ScriptedModel(fail)).run(db, session="s", message="hello")
            assert end.status == "failed"
            row = await db.look("s")
            assert (row.agent, row.error, row.status) == ("support", "ModelError", "failed")
            assert await db.counts() == [("failed", "support", "ModelError", 1)]
            await Agent("support", model=ScriptedModel(["Better"])).run(db, session="s")
            row = await db.look("s")
            assert (row.agent, row.error, row.status) == ("support", "", "idle")

    play(work())


def test_a_conversation_that_is_handed_over_gets_the_other_name(tmp_path: Path):
    billing = Agent("billing", model=ScriptedModel(lambda _: "I do bills."))
    script = by_turn(calls(("hand_to_billing", {"reason": "a bill"})))
    front = Agent("front", model=ScriptedModel(script), tools=[handoff(billing)])

    async def work() -> None:
        async with opened(tmp_path) as db:
            await front.run(db, session="s", message="my bill is wrong")
            assert (await db.look("s")).agent == "billing"
            await front.run(db, session="s", message="again")
            said = await named(db, "s")
            assert [name for name in said if name] == ["front", "billing"]
            assert said[0] == "front"

    play(work())


def test_a_child_is_named_after_the_agent_that_works_in_it(tmp_path: Path):
    child = Agent("booker", model=ScriptedModel(["Booked"]))
    script = by_turn(calls(("booker", {"task": "book Paris"})), "Done")
    parent = Agent("planner", model=ScriptedModel(script), tools=[child.as_tool(description="Book hotels.")])

    async def work() -> None:
        async with opened(tmp_path) as db:
            await parent.run(db, session="trip", message="go")
            assert sorted(row.agent for row in await db.sessions()) == ["booker", "planner"]
            assert (await db.look("trip")).agent == "planner"

    play(work())


def test_what_is_refused_because_of_its_owner_leaves_nothing_in_the_inbox(tmp_path: Path):
    agent = Agent("support", model=ScriptedModel(["One", "Two"]))

    async def work() -> None:
        async with opened(tmp_path) as db:
            await agent.run(db, session="s", owner="ana", message="hello")
            for key in (None, "k"):
                with pytest.raises(InvalidInput, match="belongs to another owner; nothing was written"):
                    await agent.run(db, session="s", owner="eve", message="give me all", key=key)
                with pytest.raises(InvalidInput, match="belongs to another owner"):
                    await db.post("s", "give me all", key=key, owner="eve")
            assert (await db.look("s")).pending == 0
            assert await db.post("s", "more", owner="ana")
            assert (await agent.run(db, session="s", owner="ana")).text == "Two"

    play(work())


def test_a_session_of_nobody_is_of_the_first_owner_who_commits():
    with perdure.open("memory://") as db:
        with db.session("s") as s:
            s.vars["a"] = 1
            s.commit()
        # Who only looks in takes nothing.
        with db.session("s", owner="eve") as s:
            assert s.owner == "eve"
        assert [row.owner for row in db.sessions()] == [""]
        with db.session("s", owner="ana") as s:
            s.vars["a"] = 2
            s.commit()
        assert [row.owner for row in db.sessions()] == ["ana"]
        with (
            pytest.raises(InvalidInput, match="belongs to another owner; nothing was written"),
            db.session("s", owner="b"),
        ):
            pass
        with db.session("s") as s:
            assert s.owner == "ana"
