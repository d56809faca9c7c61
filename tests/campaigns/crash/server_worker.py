"""What a program does whose server goes away and comes back: it takes up what it was at, with the handles it has."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from perdure.errors import Busy, LeaseLost, OutcomeUnknown, Unavailable
from tests.campaigns.crash import plans

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.campaigns.crash.worker import Worker

AWAY = (Unavailable, OutcomeUnknown, Busy, LeaseLost)
"""What a program may be told while its server is away: nothing was written, nobody knows, or its own lease, which it
could not give back, has to run out first."""
PATIENCE = 60.0


class Stubborn:
    """Works on until told to stop, whatever the server does."""

    def __init__(self, worker: Worker, lease_ttl: float) -> None:
        self._w = worker
        self._lease_ttl = lease_ttl

    def work(self, stop: str, choices: Sequence[str]) -> None:
        """Do one thing after the other until a file named ``stop`` is there."""
        while not os.path.exists(stop):
            name = self._w.rng.choice(choices)
            self._until_done(lambda name=name: plans.perform(self._w, name))
        self._until_done(lambda: None)

    def _until_done(self, do: Callable[[], None]) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                # Whatever was begun is finished before anything new is.
                plans.take_up(self._w)
                do()
            except BaseException as error:
                if not _away(error) or time.monotonic() > deadline:
                    raise
                self._w.journal.note("away", error=type(error).__name__, what=str(error))
                # A lease that nobody gave back has to run out; trying at once would only take more of them.
                time.sleep(self._lease_ttl * 1.2 if _busy(error) else 0.02)
            else:
                return


def _away(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_away(one) for one in error.exceptions)
    return isinstance(error, AWAY)


def _busy(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_busy(one) for one in error.exceptions)
    return isinstance(error, Busy)
