"""The thread of a worker that says it lives, hears what is wished of it, and frees what dead workers held.

It is a thread of its own, so that an event loop that is kept busy by somebody's code does not look dead. What looks
through the whole store has another one, so that a large store does not make the worker look dead either.
"""

from __future__ import annotations

import logging
import threading
from time import monotonic
from typing import TYPE_CHECKING

from perdure import telemetry
from perdure.errors import StoreError
from perdure.system.lease_holders import describe, is_dead
from perdure.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.fleet.keeper import Keeper
    from perdure.protocols import Board, WorkerRow

log = logging.getLogger("perdure.fleet")

ADOPT = 2.0
"""Seconds between looks for sessions that have something to do and that nobody has put on the board."""
SLACK = 3
"""A worker is dead when it was silent for so many times as long as we were ourselves, and for a lease at least."""


class Supervisor:
    """Beats and reaps several times in each lease period, and adopts now and then."""

    def __init__(
        self,
        keeper: Keeper,
        board: Board,
        row: Callable[[], WorkerRow],
        tell: Callable[[str], None],
        ttl: int,
    ) -> None:
        self._board = board
        self._row = row
        self._tell = tell
        self._ttl = ttl
        self._stop = threading.Event()
        self._keeper = keeper
        self._thread = threading.Thread(target=self._work, name="perdure-supervisor", daemon=True)
        self._lookout = threading.Thread(target=self._look_around, name="perdure-lookout", daemon=True)
        self._beaten = monotonic()
        self.sample: Callable[[], None] | None = None
        """Counts, now and then, what whoever measures the fleet wants to know of its store."""

    def start(self) -> None:
        """Say that the worker lives, for the first time, and go on doing so."""
        self._beat()
        self._keeper.start()
        self._thread.start()
        self._lookout.start()

    def _beat(self) -> str:
        row = self._row()
        wish = self._board.beat(row)
        telemetry.beat(row.busy, row.concurrency)
        return wish

    def _work(self) -> None:
        logs.know(worker=self._row().id)
        while not self._stop.wait(min(self._ttl / 4000, 2.0)):
            try:
                self._round()
            except StoreError as e:
                log.warning("the board cannot be reached: %s", e)
            except Exception:
                # Without this thread the worker would look dead for ever.
                log.exception("the worker could not say that it lives")

    def _round(self) -> None:
        wish = self._beat()
        before, self._beaten = self._beaten, monotonic()
        # On a machine, or before a store, that is so slow that we hardly get to speak, others are not dead either.
        silence = max(self._ttl, int(SLACK * 1000 * (self._beaten - before)))
        freed = 0
        for worker in self._board.workers():
            # On the same machine nobody needs to wait for its silence.
            if is_dead(worker.id):
                log.warning("%s has died: its sessions are taken over", describe(worker.id))
                self._board.leave(worker.id)
                freed += 1
        freed += len(self._board.reap(silence))
        if wish or freed:
            self._tell(wish)

    def _look_around(self) -> None:
        """Find what nobody knows of, and count what people want to know."""
        logs.know(worker=self._row().id)
        while True:
            try:
                if self._board.adopt():
                    self._tell("")
                if self.sample is not None:
                    self.sample()
            except StoreError:
                pass  # the other thread says so
            except Exception:
                log.exception("the store could not be looked through")
            if self._stop.wait(ADOPT):
                return

    def close(self) -> None:
        """Stop; the worker's row is removed by the worker itself."""
        self._stop.set()
        self._thread.join()
        self._lookout.join()
        self._keeper.close()
