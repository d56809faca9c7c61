"""Runs of many shapes that work side by side, killed at any moment, with whoever comes first decided by a seed."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

import perdure
from perdure import tool
from perdure.errors import Unavailable
from perdure.system import flow_async
from tests.session.loop_by_seed import Writer, play
from tests.session.test_parallel_runs import Dying, attempt


async def pause() -> None:
    loop: Any = asyncio.get_running_loop()
    await asyncio.sleep(loop.a_while())


class Program:
    """What is run; what it has done outside is in ``done``."""

    posts = 0

    def __init__(self) -> None:
        self.done: list[tuple[int, str]] = []

        @tool(if_unsure="retry")
        async def act(n: int, ctx: perdure.Context) -> int:
            await pause()
            if (n, ctx.effect_id) not in self.done:
                self.done.append((n, ctx.effect_id))
            return n

        @tool(read=True, cache="7d")
        async def kept(n: int) -> int:
            await pause()
            return n

        self.act = act
        self.kept = kept

    async def got(self, s: Any, *of: int) -> None:
        for n in of:
            s.messages.append(f"got {await s.call(self.act, n)}")

    async def told(self, s: Any, limit: int) -> None:
        s.messages.extend(f"told {message.body}" for message in await s.take(limit=limit))

    async def __call__(self, s: Any) -> None:
        raise NotImplementedError


class RunBeside(Program):
    """The run itself calls as its tasks do, and takes messages."""

    posts = 4

    async def one(self, s: Any, n: int) -> None:
        for m in (n, 10 + n):
            await self.told(s, 1)
            await self.got(s, m)

    async def __call__(self, s: Any) -> None:
        tasks = [asyncio.create_task(self.one(s, n)) for n in range(3)]
        await self.one(s, 5)
        await asyncio.gather(*tasks)
        await s.commit()


class OnlyCommits(Program):
    """Tasks that commit and call nothing."""

    async def side(self, s: Any, n: int) -> None:
        s.messages.append(f"before {n}")
        await s.commit()
        s.messages.append(f"after {n}")

    async def __call__(self, s: Any) -> None:
        tasks = [asyncio.create_task(self.side(s, n)) for n in range(2)]
        await self.got(s, 50, 51)
        await asyncio.gather(*tasks)
        await s.commit()


class LateCommit(OnlyCommits):
    """A task that does nothing for a while, and then edits, commits and calls."""

    async def late(self, s: Any) -> None:
        await pause()
        await self.side(s, 0)
        await self.got(s, 71)

    async def __call__(self, s: Any) -> None:
        task = asyncio.create_task(self.late(s))
        await self.got(s, 0, 1)
        await s.commit()
        await self.got(s, 2)
        await task
        await s.commit()


class LateCalls(Program):
    """A task that calls after a while."""

    async def late(self, s: Any) -> None:
        await pause()
        await self.got(s, 70, 71)

    async def __call__(self, s: Any) -> None:
        task = asyncio.create_task(self.late(s))
        await self.got(s, 0, 1, 2, 3)
        await task
        await s.commit()


class KeptReads(Program):
    """Reads whose answers are kept come before calls."""

    async def one(self, s: Any, n: int) -> None:
        s.messages.append(f"kept {await s.call(self.kept, n)}")
        await self.got(s, n)
        s.messages.append(f"kept {await s.call(self.kept, n + 10)}")

    async def __call__(self, s: Any) -> None:
        tasks = [asyncio.create_task(self.one(s, n)) for n in (1, 2)]
        await self.one(s, 3)
        await asyncio.gather(*tasks)
        await s.commit()


class RunTakes(Program):
    """The run takes messages, and calls with what they say; its tasks call."""

    posts = 5

    async def __call__(self, s: Any) -> None:
        tasks = [asyncio.create_task(self.got(s, n, n + 10)) for n in (1, 2)]
        for _ in range(self.posts):
            for message in await s.take(limit=1):
                await self.got(s, 50 + message.body)
        await asyncio.gather(*tasks)
        await s.commit()


class Equal(Program):
    """Nobody can tell these calls apart."""

    async def __call__(self, s: Any) -> None:
        tasks = [asyncio.create_task(self.got(s, 7, 7)) for _ in range(2)]
        await self.got(s, 7, 7)
        await asyncio.gather(*tasks)
        await s.commit()


class Nested(Program):
    """Tasks start tasks, in groups."""

    async def branch(self, s: Any, n: int) -> None:
        await self.got(s, n)
        async with asyncio.TaskGroup() as group:
            for m in range(2):
                group.create_task(self.got(s, 10 * n + m))
        s.messages.append(f"joined {n}")

    async def __call__(self, s: Any) -> None:
        async with asyncio.TaskGroup() as group:
            for n in (1, 2):
                group.create_task(self.branch(s, n))
            await self.got(s, 99)
        await s.commit()


class Cancelled(Program):
    """A task is cancelled once it has called, another one before it has done anything."""

    async def for_ever(self, s: Any, *of: int) -> None:
        await self.got(s, *of)
        self.reached.set()
        await asyncio.sleep(1e6)

    async def __call__(self, s: Any) -> None:
        self.reached = asyncio.Event()
        called, idle = asyncio.create_task(self.for_ever(s, 1)), asyncio.create_task(asyncio.sleep(1e6))
        await self.got(s, 10, 11)
        reached = asyncio.create_task(self.reached.wait())
        await asyncio.wait([reached, called], return_when=asyncio.FIRST_COMPLETED)
        if called.done():
            called.result()
        for task in (called, idle, reached):
            task.cancel()
        await asyncio.gather(called, idle, reached, return_exceptions=True)
        await self.got(s, 20)
        await s.commit()


def seen(found: Any) -> list[str]:
    return sorted(m for m in found.messages if m != "other")


def lost(error: Exception) -> bool:
    """Whether a run has died, and nothing else was wrong."""
    if isinstance(error, ExceptionGroup):
        return error.split((Unavailable, perdure.OutcomeUnknown))[1] is None
    return isinstance(error, Unavailable | perdure.OutcomeUnknown)


async def die_and_resume(kind: type[Program], seed: int, *, others: bool) -> None:
    chance = random.Random(seed)
    async with perdure.open_async("memory://") as db:
        for name in ("whole", "s"):
            for n in range(kind.posts):
                await db.post(name, n, key=str(n))
        await attempt(db, "whole", "r", kind())
        expected = seen(await db.read("whole"))
        dying, program = Dying(db), kind()
        dying.answers = chance.random() < 0.5
        for again in range(8):
            dying.left = chance.choice([1, 2, 3, 4, 5, 6, 8, 10, 12]) if again < 6 else 10**9
            try:
                await attempt(db, "s", "r", program)
                break
            except Exception as e:
                if not lost(e):
                    raise
            dying.left = 10**9
            if others:
                async with db.session("s") as s:
                    s.messages.append("other")
                    await s.commit()
        dying.left = 10**9
        assert seen(await db.read("s")) == expected
        assert kind is Equal or len(program.done) == len({n for n, _ in program.done})


@pytest.mark.parametrize("others", [False, True], ids=["alone", "others commit"])
@pytest.mark.parametrize("kind", [*Program.__subclasses__(), LateCommit], ids=lambda kind: kind.__name__)
def test_whoever_comes_first_a_run_that_dies_ends_as_if_it_never_had(
    kind: type[Program], others: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_async, "GroupCommit", Writer)
    for seed in range(16):
        try:
            took = play(die_and_resume(kind, seed, others=others), seed)
        except Exception as e:
            e.add_note(f"seed {seed}")
            raise
        # Nobody was waited for in vain.
        assert took < 25, seed
