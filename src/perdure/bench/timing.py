"""Taking times: stopwatches, percentiles, and two things measured in turns so that both meet the same disk."""

from __future__ import annotations

import gc
import statistics
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Round = list[int]
"""Nanoseconds of one operation after the other."""


def percentile(times: Sequence[float], q: float) -> float:
    """The value below which a share ``q`` of the values lies.

    >>> percentile([4, 1, 3, 2], 0.5), percentile(range(1000), 0.99)
    (3, 990)
    """
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * q))]


def micros(times: Sequence[float], q: float = 0.5) -> float:
    """A percentile of nanoseconds, in microseconds."""
    return round(percentile(times, q) / 1000, 1)


def timed(work: Callable[[], Any]) -> int:
    """Nanoseconds a piece of work takes, started on a clean heap; its result is let go outside."""
    gc.collect()
    start = perf_counter_ns()
    result = work()
    spent = perf_counter_ns() - start
    del result
    return spent


class Turns(NamedTuple):
    """Rounds of two things that took turns."""

    floor: list[Round]
    ours: list[Round]

    def ratio(self, start: int = 0, stop: int | None = None) -> float:
        """Median over rounds of our p50 against the floor's in the same round."""
        pairs = zip(self.floor[start:stop], self.ours[start:stop], strict=True)
        return statistics.median(percentile(ours, 0.5) / percentile(floor, 0.5) for floor, ours in pairs)

    def detail(self, start: int = 0) -> dict[str, Any]:
        """Absolute times behind the ratio."""
        floor = [t for r in self.floor[start:] for t in r]
        ours = [t for r in self.ours[start:] for t in r]
        shown = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99}
        return {
            "floor_us": {name: micros(floor, q) for name, q in shown.items()},
            "ours_us": {name: micros(ours, q) for name, q in shown.items()},
            "rounds": len(self.floor) - start,
        }


def take_turns(floor: Callable[[int], Round], ours: Callable[[int], Round], rounds: int, size: int) -> Turns:
    """Measure floor, ours, floor, ours ...: ``rounds`` of each, ``size`` operations in every round."""
    turns = Turns([], [])
    for _ in range(rounds):
        turns.floor.append(floor(size))
        turns.ours.append(ours(size))
    return turns
