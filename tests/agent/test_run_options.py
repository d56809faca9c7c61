"""Every option of a run, of an agent and of a submission: what cannot be used is refused before anything is written."""

from __future__ import annotations

import asyncio
import decimal
import inspect
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, FunctionModel
from perdure.errors import InvalidInput, LimitExceeded, Misuse, PerdureError
from perdure.fleet.board import submit_flow
from tests.agent.working import opened, play

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HUGE = "x" * 2_000_000
BAD_RUN: dict[str, tuple[Any, ...]] = {
    "db": (5, {"url": "memory://"}),
    "session": ("", 5, None, "a\0b", "x" * 600),
    "message": ("", " ", 5, {"role": "usr", "content": "x"}, {"role": "user", "content": object()}, HUGE),
    "key": ("", 5, "k" * 300),
    "owner": (5, None, "a\0b"),
    "context": ({"now": NOW}, {"n": decimal.Decimal(1)}, {"n": math.nan}, {"raw": b"x"}, ["Monday"], "Monday", {1: 2}),
    "objective": (5, " ", "x" * 5000),
    "effects": ("often", None, 1),
    "branch": (5, "", "tags/x", "a@b", "7", "typo"),
    "max_turns": ("5", 5.5, True, -1),
    "max_tokens": ("5", math.inf, -1),
    "max_cost": ("5", math.nan, True),
    "deadline": ("10m", math.inf, NOW),
    "ttl": ("1h", 0, 1.5, True),
    "on_event": (5, "print", asyncio.sleep),
    "live": ("yes", None),
    "agents": (5, "billing", ["billing"]),
    "parent": (5, {"session": "s"}),
    "deps": (lambda config: None,),
    "stop": (5, True),
    "wait": ("a", None, -1, math.nan),
    "claimed": ("no", 1),
    "reopen": ("no", 1),
    "by": (5, None, "a\0b"),
}
"""By option of Agent.run: values that no run can be begun with."""
BAD_AGENT: dict[str, tuple[Any, ...]] = {
    "name": ("", 5, None),
    "model": (5, "", []),
    "provider": ("nobody", 5),
    "base_url": (5, "no address"),
    "api_key": (5,),
    "prices": (5, [1]),
    "tools": (5, "look", [5]),
    "instructions": (5, None, lambda: ""),
    "version": (5, None),
    "goes_on_from": ("1.0", [5]),
    "params": (5, [1], {"stop": {1}}, {"seed": NOW}),
    "output": (5, object()),
    "until": (5, asyncio.sleep),
    "nudge": (5, None),
    "max_turns": ("5", 5.5, -1, True),
    "window": (5, "large"),
    "compactor": (5, "me"),
    "checkpoints": (5, "often"),
    "on_message": ("later", None),
    "notify": (5, "no address"),
    "deps": (5, lambda config: None),
}
BAD_SUBMIT: dict[str, tuple[Any, ...]] = {
    "session": ("", 5),
    "message": ("", 5, {"role": "usr", "content": "x"}, {"role": "user", "content": object()}, HUGE),
    "agent": ("", 5, None),
    "owner": (5, "a\0b"),
    "key": ("", 5, "k" * 300),
    "priority": ("high", 2000, 1.5, True),
    "ttl": ("1h", 0, True),
    "most": (0, "many"),
}


def model() -> FunctionModel:
    return FunctionModel(lambda request: "an answer")


def desk(**more: Any) -> Agent:
    return Agent("desk", **{"model": model(), **more})


def each(bad: dict[str, tuple[Any, ...]]) -> list[Any]:
    return [pytest.param(name, value, id=f"{name}-{value!r:.20}") for name, values in bad.items() for value in values]


@pytest.mark.parametrize(
    ("of", "bad", "besides"),
    [
        (Agent.run, BAD_RUN, {"self"}),
        (Agent.__init__, BAD_AGENT, {"self"}),
        (submit_flow, BAD_SUBMIT, {"db"}),
    ],
)
def test_no_option_is_left_out_here(of: Callable[..., Any], bad: dict[str, Any], besides: set[str]):
    assert set(bad) == set(inspect.signature(of).parameters) - besides, "a new option needs values that are refused"


async def by_run(agent: Agent, db: Any, **options: Any) -> None:
    await agent.run(db, **options)


async def by_stream(agent: Agent, db: Any, **options: Any) -> None:
    async for _ in agent.stream(db, **options):
        pass


@pytest.mark.parametrize("said_by", [by_run, by_stream])
@pytest.mark.parametrize("key", [None, "k1"])
@pytest.mark.parametrize(("name", "value"), each(BAD_RUN))
def test_an_option_that_cannot_be_used_is_refused_before_the_message_is_written(
    tmp_path: Path, name: str, value: Any, key: str | None, said_by: Callable[..., Any]
):
    if (said_by, name) == (by_stream, "on_event"):
        value = print

    async def work() -> None:
        async with opened(tmp_path) as db:
            await desk().run(db, session="old", message="first")
            for session in ("new", "old"):
                given: dict[str, Any] = {"db": db, "session": session, "message": "pay 5", "key": key, name: value}
                there = given.pop("db")
                for _ in range(3):
                    with pytest.raises(PerdureError) as refused:
                        await said_by(desk(), there, **given)
                    assert not refused.value.kept
                    assert name.replace("_", " ").split()[-1] in str(refused.value).replace("session=", "").lower()
            assert await asyncio.to_thread(db.kernel.store.inbox, "new", 10) == []
            assert await asyncio.to_thread(db.kernel.store.inbox, "old", 10) == []
            assert [(row.id, row.heads[0].step) for row in await db.sessions()] == [("old", 1)]

    play(work())


@pytest.mark.parametrize(("name", "value"), each(BAD_RUN))
def test_a_closed_session_stays_closed_when_an_option_cannot_be_used(tmp_path: Path, name: str, value: Any):
    async def work() -> None:
        async with opened(tmp_path) as db:
            await desk().run(db, session="s", message="first")
            async with db.session("s") as s:
                await s.close()
            given: dict[str, Any] = {"db": db, "session": "s", "message": "again", "reopen": True, name: value}
            there = given.pop("db")
            with pytest.raises(PerdureError):
                await desk().run(there, **given)
            assert (await db.look("s")).status == "closed"

    play(work())


@pytest.mark.parametrize(("name", "value"), each(BAD_AGENT))
def test_an_agent_that_could_never_run_is_not_made(name: str, value: Any):
    given: dict[str, Any] = {"name": "desk", "model": "gpt-4o-mini", "provider": "openai", "api_key": "k"}
    with pytest.raises(PerdureError):
        Agent(**{**given, name: value})


@pytest.mark.parametrize(("name", "value"), each(BAD_SUBMIT))
def test_what_is_refused_to_a_fleet_makes_no_session(tmp_path: Path, name: str, value: Any):
    async def work() -> None:
        async with opened(tmp_path) as db:
            given: dict[str, Any] = {"session": "s", "message": "pay 5", "agent": "desk", name: value}
            for _ in range(3):
                with pytest.raises(PerdureError) as refused:
                    await perdure.submit_async(db, **given)
                assert not refused.value.kept
            assert await asyncio.to_thread(db.kernel.store.inbox, "s", 10) == []
            assert await db.sessions() == []

    play(work())


def test_a_full_queue_takes_more_for_what_is_in_it_and_nothing_new(tmp_path: Path):
    async def work() -> None:
        async with opened(tmp_path) as db:
            assert await perdure.submit_async(db, "s1", "one", agent="desk", most=1)
            assert await perdure.submit_async(db, "s1", "two", agent="desk", most=1)
            with pytest.raises(LimitExceeded, match="1 sessions are queued, which is the limit, and nothing was"):
                await perdure.submit_async(db, "s2", "one", agent="desk", most=1)
            assert [row.id for row in await db.sessions()] == ["s1"]

    play(work())


def test_a_misspelt_or_missing_option_is_told_at_once():
    with pytest.raises(InvalidInput, match="did you mean max_turns"):
        desk().run("memory://", session="s", max_turn=5)  # pyright: ignore[reportCallIssue, reportUnusedCoroutine]
    with pytest.raises(InvalidInput, match="missing a required argument: 'session'"):
        desk().run("memory://", message="hello")  # pyright: ignore[reportCallIssue, reportUnusedCoroutine]


@pytest.mark.parametrize(
    "options", [{"max_turns": "5"}, {"max_turn": 5}, {"session": "mine"}, {"message": "x"}, {"effects": "often"}]
)
def test_an_agent_is_made_no_tool_with_options_that_its_runs_would_refuse(options: dict[str, Any]):
    with pytest.raises(InvalidInput):
        desk().as_tool(**options)


@pytest.mark.parametrize("factory", ["generator", "coroutine"])
def test_dependencies_of_a_run_that_are_opened_in_no_way_are_refused_first(tmp_path: Path, factory: str):
    async def yields() -> AsyncIterator[int]:
        yield 1

    async def returns() -> int:
        return 1

    async def work() -> None:
        given = yields if factory == "generator" else returns
        async with opened(tmp_path) as db:
            with pytest.raises((InvalidInput, Misuse), match="deps="):
                await desk().run(db, session="s", message="pay 5", key="k1", deps=given)
            assert await asyncio.to_thread(db.kernel.store.inbox, "s", 10) == []

    play(work())
