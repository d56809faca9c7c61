"""Tasks over awaited handles, of which one or the other is cancelled at each Ctrl-C and which go on after it."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import perdure
from perdure.errors import Busy, Conflict, HandleClosed, InDoubt, Misuse, PerdureError
from tests.campaigns.interrupts.blocking import CHECK_EVERY, LEASE, PATIENCE
from tests.campaigns.interrupts.seen import PER_WRITER, Seen, came_through_us, no_more

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from multiprocessing.connection import Connection

    from perdure import AsyncDatabase, AsyncSession

OWN, SHARED = 2, 2
"""Actors with a session of their own, and those that share one handle."""


class Actor:
    """Works on one session, a turn at a time, each a task that may be cancelled."""

    def __init__(self, stage: Stage, number: int, session: str) -> None:
        self.stage = stage
        self.session = session
        self._rng = random.Random(f"{stage.seed}/{number}")
        self._numbers = itertools.count(number * PER_WRITER + 1)
        self.alone = session != "shared"
        self.acknowledged: list[int] = []
        self.world: list[int] = []
        self.returned: list[int] = []
        self._open_calls: list[int] = []
        self.s: AsyncSession | None = None

    async def act(self) -> None:
        """Turn after turn until the stage has seen enough."""
        turns = {k: w for k, w in TURNS.items() if self.alone or k not in ("reload", "reopen")}
        for number in itertools.count(1):
            if self.stage.enough:
                break
            kind = self._rng.choices(list(turns), list(turns.values()))[0]
            self.stage.seen.turns[kind] += 1
            await self._turn(getattr(self, f"_{kind}"))
            if number % CHECK_EVERY == 0 and self.alone:
                await self._check()

    async def end(self) -> None:
        """Finish what was begun, with nobody in the way."""
        await self._handle()
        for value in self._open_calls[:]:
            await self._settle(value)
        if self.alone:
            await self._check()

    async def _turn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        error: PerdureError | None = None
        try:
            if await self.stage.cancellable(work()):
                return
        except HandleClosed as e:
            error, self.s = e, None
        except (Misuse, Conflict) as e:
            error = e
            with suppress(PerdureError):
                await (await self._handle()).reload()
        except Busy as e:
            error = e
            await asyncio.sleep(LEASE / 10)
        except PerdureError as e:
            error = e
        self.stage.seen.went(error)

    async def _handle(self) -> AsyncSession:
        if self.alone:
            while self.s is None:
                try:
                    self.s = await self.stage.db.session(self.session)
                except Busy as e:
                    self.stage.seen.refused[type(e).__name__] += 1
                    await asyncio.sleep(LEASE / 10)
            return self.s
        return self.stage.shared

    async def _check(self) -> None:
        s = await self._handle()
        try:
            await s.commit()
        except (Misuse, Conflict):
            await s.reload()
        stored = await self.stage.db.read(self.session)
        self.stage.seen.compare(
            f"a check of {self.session}", stored.messages.plain(), self.acknowledged, s.messages.plain()
        )

    # -- turns ----------------------------------------------------------------------------------------------------

    async def _commit(self) -> None:
        s = await self._handle()
        value = next(self._numbers)
        s.messages.append(value)
        await s.commit()
        self.acknowledged.append(value)

    async def _call(self) -> None:
        await self._handle()
        value = next(self._numbers)
        self._open_calls.append(value)
        await self._settle(value)

    async def _settle_calls(self) -> None:
        for value in self._open_calls[:3]:
            await self._settle(value)

    async def _settle(self, value: int) -> None:
        s = await self._handle()
        try:
            await s.call(self._do, value)
        except InDoubt as doubt:
            if value in self.world:
                await s.resolve(doubt.effect, done=value)
            else:
                await s.resolve(doubt.effect, retry=True)
            await s.call(self._do, value)
        self.returned.append(value)
        self._open_calls.remove(value)

    async def _do(self, value: int) -> int:
        await asyncio.sleep(0)
        self.world.append(value)
        await asyncio.sleep(0)
        return value

    async def _reload(self) -> None:
        await (await self._handle()).reload()

    async def _reopen(self) -> None:
        s = await self._handle()
        self.s = None
        await s.release()
        self.s = await self.stage.db.session(self.session)


class Stage:
    """All tasks of one event loop."""

    def __init__(self, url: str, wanted: int, seed: int, pipe: Connection) -> None:
        self.url = url
        self.seed = seed
        self._wanted = wanted
        self._pipe = pipe
        self._rng = random.Random(seed)
        self.seen = Seen()
        self._cancellable: list[asyncio.Task[None]] = []
        self.db: AsyncDatabase
        self.shared: AsyncSession

    def run(self) -> Seen:
        """Until so many interrupts have come; then everything is compared."""
        keeper = perdure.open(self.url, maintain=False)
        actors = asyncio.run(self._play())
        acknowledged: dict[str, list[int]] = {}
        for actor in actors:
            acknowledged.setdefault(actor.session, []).extend(actor.acknowledged)
            self.seen.made_once(actor.world, actor.returned)
            self.seen.calls += len(actor.returned)
        self.seen.everything(self.url, acknowledged)
        keeper.close()
        return self.seen

    @property
    def enough(self) -> bool:
        """Whether the play is over."""
        return self.seen.interrupts >= self._wanted

    async def cancellable(self, work: Coroutine[Any, Any, None]) -> bool:
        """Carry a turn out; whether it was cancelled."""
        task = asyncio.ensure_future(work)
        self._cancellable.append(task)
        try:
            async with asyncio.timeout(PATIENCE):
                await task
        except asyncio.CancelledError as cancelled:
            if not task.cancelled():
                raise
            self.seen.inside += came_through_us(cancelled.__traceback__)
            return True
        finally:
            self._cancellable.remove(task)
        return False

    def _interrupted(self) -> None:
        if self._cancellable and not self.enough:
            task = self._rng.choice(self._cancellable)
            if not task.done() and not task.cancelling():
                self.seen.interrupts += 1
                task.cancel()
                if self.seen.interrupts % 20 == 0:
                    self._pipe.send(self.seen.interrupts)

    async def _play(self) -> list[Actor]:
        loop = asyncio.get_running_loop()
        async with perdure.open_async(self.url, lease_ttl=LEASE) as self.db, self.db.session("shared") as shared:
            self.shared = shared
            actors = [Actor(self, n, f"own-{n}") for n in range(OWN)]
            actors += [Actor(self, OWN + n, "shared") for n in range(SHARED)]
            loop.add_signal_handler(signal.SIGINT, self._interrupted)
            self._pipe.send("up")
            try:
                await asyncio.gather(*(actor.act() for actor in actors))
            finally:
                no_more(self._pipe)
            for actor in actors:
                await actor.end()
            await shared.commit()
            for actor in actors:
                if actor.s is not None:
                    await actor.s.release()
        return actors


TURNS = {"commit": 8, "call": 3, "settle_calls": 2, "reload": 2, "reopen": 3}
"""How often each is done, against the others."""
