"""An agent that sleeps: the process may exit, and the session goes on when its time has come."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from perdure.agent.agent import Agent
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.agent.tool_schema import wake_me
from perdure.testing.clock import FakeClock
from tests.agent.working import by_turn, opened, play

if TYPE_CHECKING:
    from pathlib import Path

HOUR = 3_600_000


def test_an_agent_has_itself_woken_and_sleeps_until_then(tmp_path: Path):
    clock = FakeClock()
    script = by_turn(calls(("wake_me", {"message": "is it there?", "delay": "2h"})), "good night", "it is there")
    agent = Agent("sleeper", model=ScriptedModel(script), tools=[wake_me])
    due = clock.wall() + 2 * HOUR

    async def work() -> None:
        async with opened(tmp_path, clock) as db:
            end = await agent.run(db, session="s", message="wait for the parcel")
            assert (end.status, end.text, end.until) == ("done", "good night", due)
            assert (await db.look("s")).status == "sleeping"
        clock.advance(HOUR)
        async with opened(tmp_path, clock) as db:
            early = await agent.run(db, session="s")
            assert (early.status, early.until, early.turns) == ("sleeping", due, 0)
        clock.advance(HOUR)
        async with opened(tmp_path, clock) as db:
            end = await agent.run(db, session="s")
            assert (end.status, end.text, end.until) == ("done", "it is there", None)
            assert (await db.look("s")).status == "idle"
            assert [m["content"] for m in (await db.read("s")).messages][-2:] == ["is it there?", "it is there"]

    play(work())


def test_a_message_wakes_a_sleeper_and_it_sleeps_on(tmp_path: Path):
    clock = FakeClock()
    agent = Agent("a", model=ScriptedModel(lambda r: f"you said {r.messages[-1]['content']}"))

    async def work() -> None:
        async with opened(tmp_path, clock) as db:
            await db.wake("s", cron="0 9 * * *", message="good morning", key="daily")
            assert (await agent.run(db, session="s", message="hello")).text == "you said hello"
            assert (await db.look("s")).status == "sleeping"
            clock.advance(24 * HOUR)
            end = await agent.run(db, session="s")
            assert end.text == "you said good morning"
            assert end.until is not None
            await db.cancel_wake("s", "daily")
            assert (await agent.run(db, session="s")).until is None
            assert (await db.look("s")).status == "idle"

    play(work())


def test_a_time_that_is_none_is_told_to_the_model(tmp_path: Path):
    script = by_turn(calls(("wake_me", {"message": "x"}), ("wake_me", {"message": "x", "at": "soon"})), "I see")
    agent = Agent("a", model=ScriptedModel(script), tools=[wake_me])

    async def work() -> None:
        async with opened(tmp_path) as db:
            assert (await agent.run(db, session="s", message="go")).status == "done"
            told = [json.loads(m["content"])["error"] for m in (await db.read("s")).messages if m["role"] == "tool"]
            assert "exactly one way" in told[0]
            assert "soon" in told[1]
            assert (await db.look("s")).pending == 0

    play(work())
