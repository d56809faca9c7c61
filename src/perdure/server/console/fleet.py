"""The fleet: who works on what, how much waits, what was taken over from the dead, and how fast it goes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import InvalidInput, PerdureError
from perdure.fleet.board import board_of
from perdure.fleet.status import fleet_of
from perdure.protocols import Boarded, Filter
from perdure.server.console.drawing import curve_of
from perdure.server.console.rendering import Pages, asked
from perdure.session.actions import Action, Do
from perdure.session.handover import made_board
from perdure.system.lease_holders import describe, is_dead

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from perdure.fleet.status import Fleet
    from perdure.protocols import Work
    from perdure.server.console.rendering import Console

EVERY = 2.0
"""Seconds between two measurements."""
KEPT = 150
"""Measurements that are kept: five minutes."""
UNWATCHED = 600.0
"""Seconds after the last look at the page when measuring ends."""
SHOWN = 50


class Sample(NamedTuple):
    """The fleet at one moment."""

    done: int
    """Sessions that the workers there have put down so far."""
    queued: int
    working: int
    recovered: int


class FleetPage(Pages):
    """The page of the fleet."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._task: asyncio.Task[None] | None = None
        self._looked = 0.0

    async def page(self, request: Request) -> Response:
        """How the fleet stands, with the last minutes as curves."""
        ctx = self._ctx
        if not isinstance(ctx.db.kernel.store, Boarded):
            return self._console.page(request, "fleet.html", fleet=None)
        self._watch()
        fleet: Fleet = await ctx.blocking(fleet_of, ctx.db)
        if not self._samples:
            self._samples.append(_sample(fleet))
        claimed: list[Work] = []
        parked: list[Work] = []
        if (board := await ctx.blocking(made_board, ctx.db.kernel.store)) is not None:
            claimed = await ctx.blocking(board.works, Filter(state="working"), limit=SHOWN)
            parked = await ctx.blocking(board.works, Filter(state="parked"), limit=SHOWN)
        # What a worker has that died waits for another one.
        working = [work for work in claimed if not is_dead(work.worker)]
        measured = list(self._samples)
        rates = [max(0, b.done - a.done) / EVERY for a, b in itertools.pairwise(measured)] or [0]
        # Numbers end with this very moment, as the tables beside them do.
        samples = [*measured, _sample(fleet)]
        part = request.headers.get("hx-target") == "fleet"
        return self._console.page(
            request, "fleet_now.html" if part else "fleet.html", fleet=fleet, working=working, parked=parked,
            describe=describe, start=Action(Do.WORKER, "").command, totals=_sample(fleet), shown=SHOWN,
            more=len(claimed) == SHOWN, minutes=int(KEPT * EVERY // 60),
            curves={
                "Runs a second": curve_of(rates),
                "Waiting for a worker": curve_of([s.queued for s in samples]),
                "Being worked on": curve_of([s.working for s in samples]),
            },
        )  # fmt: skip

    async def drain(self, request: Request) -> Response:
        """Tell a worker to finish its steps and go."""
        form = await request.form()
        board = await self._ctx.blocking(board_of, self._ctx.db)
        told = await self._ctx.blocking(board.wish, asked(form, "worker", 600), "drain")
        return self._console.see(
            request, "/fleet", told="It finishes its steps and goes." if told else "That worker is gone already."
        )

    async def hold(self, request: Request) -> Response:
        """Let no worker take sessions of an agent, or let them again."""
        form = await request.form()
        agent, on = asked(form, "agent", 300), asked(form, "on", 1) == "1"
        if not agent:
            raise InvalidInput("no agent is named")
        board = await self._ctx.blocking(board_of, self._ctx.db)
        await self._ctx.blocking(board.hold, agent, on)
        return self._console.see(request, "/fleet", told=f"{agent} is held." if on else f"{agent} goes on.")

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        self._looked = loop.time()
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._measure())

    async def _measure(self) -> None:
        ctx, loop = self._ctx, asyncio.get_running_loop()
        while loop.time() - self._looked < UNWATCHED and not ctx.closing.is_set():
            # While the store cannot be asked there is a gap in the curve; the page itself tells why.
            with contextlib.suppress(PerdureError):
                self._samples.append(_sample(await ctx.blocking(fleet_of, ctx.db)))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ctx.closing.wait(), EVERY)


def _sample(fleet: Fleet) -> Sample:
    def total(state: str) -> int:
        return sum(states.get(state, 0) for states in fleet.agents.values())

    workers: list[Any] = fleet.workers
    done, recovered = sum(w.done for w in workers), sum(w.recovered for w in workers)
    return Sample(done, total("queued"), total("working"), recovered)
