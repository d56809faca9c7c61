"""How long things live: sessions of agents and of those that work for them, and connections to models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from perdure.agent.agent import Agent
from perdure.agent.children import child_id, handoff
from perdure.agent.context.compactor import Compactor
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.errors import InvalidInput
from perdure.testing.clock import FakeClock
from tests.agent.working import by_turn, opened, play

if TYPE_CHECKING:
    from pathlib import Path

DAY = 24 * 3600


def test_a_session_lives_as_long_as_its_run_is_told(tmp_path: Path):
    clock = FakeClock()
    agent = Agent("a", model=ScriptedModel(lambda _: "hello"))

    async def work() -> None:
        async with opened(tmp_path, clock) as db:

            async def expires(**options: Any) -> int | None:
                await agent.run(db, session="s", message="hi", **options)
                row = await db.look("s")
                return None if row.expires is None else (row.expires - clock.wall()) // 1000

            assert await expires(ttl=60) == 60
            # Whoever says nothing leaves it as it is.
            assert await expires() == 60
            assert await expires(ttl=None) is None
            assert await expires() is None
            assert await expires(ttl=DAY) == DAY
            with pytest.raises(InvalidInput):
                await expires(ttl=-1)
            events = [e async for e in agent.stream(db, session="t", message="hi", ttl=60)]
            assert events[-1].kind == "result"
            expected = (await db.look("t")).expires
            assert expected == clock.wall() + 60_000

    play(work())


@pytest.mark.parametrize(("options", "lives"), [({}, 5 * DAY), ({"ttl": 60}, 60), ({"ttl": None}, None)])
def test_one_that_works_for_another_lives_as_long_unless_told_otherwise(
    tmp_path: Path, options: dict[str, Any], lives: int | None
):
    clock = FakeClock()
    child = Agent("child", model=ScriptedModel(["done"]))
    asks = by_turn(calls(("child", {"task": "work"})), "fine")
    parent = Agent("parent", model=ScriptedModel(asks), tools=[child.as_tool(**options)])

    async def work() -> None:
        async with opened(tmp_path, clock) as db:
            assert (await parent.run(db, session="s", message="go", ttl=5 * DAY)).ok
            effect = next(c.more["effects"][0] for c in await db.history("s") if "effects" in c.more)
            row = await db.look(child_id("s", effect))
            assert row.expires == (None if lives is None else clock.wall() + lives * 1000)

    play(work())


class Counting(ScriptedModel):
    """Says how often it was closed."""

    closed = 0

    async def close(self) -> None:
        self.closed += 1


def test_connections_of_everyone_who_may_get_at_the_conversation_are_released():
    own, notes, billing, worker, guest = (Counting(lambda _: "hello") for _ in range(5))
    back = Agent("billing", model=billing, tools=[handoff("front"), Agent("worker", model=worker).as_tool()])
    front = Agent("front", model=own, compactor=Compactor(model=notes), tools=[handoff(back)])
    other = Agent("guest", model=guest)

    play(front.close())
    assert [m.closed for m in (own, notes, billing, worker, guest)] == [1, 1, 1, 1, 0]
    # A run that opened its database itself leaves nothing open.
    front.run_sync("memory://", session="s", message="hi", agents=[other])
    assert [m.closed for m in (own, notes, billing, worker, guest)] == [2, 2, 2, 2, 1]
