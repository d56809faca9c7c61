"""Whether this process's worker lives and is ready, for the probes of whoever runs it.

Alive means that its loop turns. Ready means more: its sign of life reaches the store, and nobody wants it to go. A
store that is down must make no orchestrator kill workers that would go on by themselves once it is back.
"""

from __future__ import annotations

from time import monotonic

TOO_OLD = 30.0
"""Seconds after which a sign of life that reached the store says nothing any more."""
STUCK = 120.0
"""Seconds for which a loop may stand: somebody's tool may compute for long, and is not to be killed for it."""


class Health:
    """What probes are answered from; may be told and asked from any thread."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self._turned = monotonic()
        self._beaten: float | None = None
        self._going = False

    def turned(self) -> None:
        """The worker's loop has turned."""
        self._turned = monotonic()

    def beaten(self) -> None:
        """The worker's sign of life has reached the store."""
        self._beaten = monotonic()

    def going(self) -> None:
        """The worker takes nothing new any more."""
        self._going = True

    def alive(self) -> str:
        """What is wrong; "" when it lives. One that is going may take its time for it."""
        return "" if self._going else _old("the worker's loop has not turned", self._turned, STUCK)

    def ready(self) -> str:
        """Why it should be given nothing; "" when it is ready."""
        if self._going:
            return "the worker is going"
        if self._beaten is None:
            return "the worker has not reached its store yet"
        return self.alive() or _old("no sign of life has reached the store", self._beaten, TOO_OLD)


def _old(what: str, at: float, most: float) -> str:
    age = monotonic() - at
    return f"{what} for {age:.0f} s" if age > most else ""
