"""Looking at the whole store now and then: how many sessions wait, and for what. Everything else is told as it happens.

Every process that samples tells the same numbers of the same store: take their maximum, not their sum.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from perdure import telemetry
from perdure.model import Status
from perdure.protocols import Boarded
from perdure.telemetry import instruments as i

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.protocols import Store
    from perdure.telemetry.instruments import Instrument

MOST = 10_000
"""Sessions that are counted, at most: beyond that the number is told as this one."""
PAGE = 1000
EVERY = 15.0
"""Seconds between two looks."""
LATELY = 30_000
"""Milliseconds for which a worker counts after its last sign of life."""


class Sampler:
    """Counts the sessions of a store by what they wait for. It blocks: call it from a thread of your own."""

    def __init__(self, store: Store, *, most: int = MOST, stuck: Callable[[], dict[str, int]] = dict[str, int]) -> None:
        self._store = store
        self._stuck = stuck
        """How many sessions of which agent workers get no further with."""
        self._most = most
        self._looked = float("-inf")
        self._told: dict[Instrument, set[tuple[tuple[str, str], ...]]] = {}

    def sample_now_and_then(self) -> None:
        """Look when it is time to."""
        if telemetry.sinks and monotonic() - self._looked >= EVERY:
            self.sample()
            self._looked = monotonic()

    def sample(self) -> None:
        """Look once, and tell whoever listens; nothing is read when nobody does."""
        if not telemetry.sinks:
            return
        telemetry.record(i.APPROVAL_PENDING, self._standing(Status.WAITING_APPROVAL))
        telemetry.record(i.SESSIONS_IN_DOUBT, self._standing(Status.IN_DOUBT))
        if isinstance(self._store, Boarded) and not self._store.has_board():
            # Whoever only looks makes none: nobody has ever worked here.
            telemetry.record(i.WORKERS, 0)
        elif isinstance(self._store, Boarded):
            board = self._store.board()
            counts = board.counts()
            self._tell(i.SESSIONS, {((i.AGENT, a), (i.STATE, s)): n for (a, s), n in counts.items()})
            agents = {agent for agent, _ in counts}
            self._tell(i.QUEUE_LENGTH, {((i.AGENT, a),): counts.get((a, "queued"), 0) for a in agents})
            stuck = self._stuck()
            self._tell(i.SESSIONS_STUCK, {((i.AGENT, a),): stuck.get(a, 0) for a in agents | set(stuck)})
            telemetry.record(i.WORKERS, sum(row.age < LATELY for row in board.workers()))

    def _tell(self, instrument: Instrument, values: dict[tuple[tuple[str, str], ...], int]) -> None:
        """Set every value of a gauge; what was told before and is no longer there is none."""
        for about in self._told.get(instrument, set()) - set(values):
            telemetry.record(instrument, 0, dict(about))
        for about, value in values.items():
            telemetry.record(instrument, value, dict(about))
        self._told[instrument] = set(values)

    def _standing(self, status: str) -> int:
        found, looked, after = 0, 0, None
        while looked < self._most:
            rows = self._store.sessions(status=status, after=after, limit=min(PAGE, self._most - looked))
            looked += len(rows)
            # Nobody can decide any more where the time is over, swept or not; what is in doubt is kept till then.
            found += sum(status != Status.WAITING_APPROVAL or not row.over for row in rows)
            if len(rows) < PAGE:
                break
            after = rows[-1].id
        return found
