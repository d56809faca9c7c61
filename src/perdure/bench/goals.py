"""What is promised: every figure's name, its goal, and in words how it is taken."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import NamedTuple

_TESTS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    "==": operator.eq,
}


class Measure(NamedTuple):
    """One promised figure."""

    goal: str
    words: str
    least: float = 0.0
    """Below this a value is not good but wrong: the measurement failed, and the goal does not count as met."""


_AS_MUCH = 0.95
"""A commit does all that the floor does and more, with as many syncs: it cannot be faster, but for noise."""
KERNEL = {
    "sqlite.save_vs_floor.sync": Measure(
        "<= 1.3",
        "append one message and commit, against INSERT of its JSON, in turns: median over blocks of p50 / p50",
        _AS_MUCH,
    ),
    "sqlite.save_vs_floor.async": Measure(
        "<= 2.2", "the same, awaited by one task: median over blocks of p50 / p50", _AS_MUCH
    ),
    "sqlite.late_vs_early": Measure(
        "<= 1.2",
        "p50 of a commit late in a long session / early in it, each divided by the floor's p50 of the same stretch",
    ),
    "sqlite.late_vs_early.p99": Measure("<= 1.5", "p99 of a commit late in the same session / p99 early in it"),
    "sqlite.stored_vs_raw": Measure(
        "<= 0.6",
        "bytes of all files in the folder after closing (database, log, blobs) / bytes of the messages as JSON",
    ),
    "sqlite.load_vs_floor": Measure(
        "<= 0.5",
        "open, read the session, touch every message / open, SELECT, json.loads every message: median over rounds",
    ),
    "sqlite.open_step_vs_head": Measure(
        "<= 2", "read the session at a random step / at its head, messages touched: median over steps"
    ),
    "sqlite.fleet_vs_unbatched": Measure(
        ">= 3", "saves per second of 100 sessions at once / the same with batches of 1: median over rounds"
    ),
    "file.save_vs_floor": Measure(
        "<= 1.25",
        "append one message and commit / append its JSON line and fdatasync, in turns: median over blocks of p50 / p50",
        _AS_MUCH,
    ),
}
COLD = {
    "cold.resume_vs_langgraph": Measure(
        ">= 8", "process start to all messages in hand, less a bare Python's: LangGraph's time / ours"
    ),
    "import.perdure_ms": Measure("< 150", "wall time of a process that imports perdure, less a bare Python's"),
    "import.optional_modules": Measure("== 0", "optional dependencies loaded by `import perdure`"),
}
STORES = {
    "postgres.save_vs_floor": Measure(
        "<= 1.6",
        "append one message and commit, against one autocommitted INSERT of its JSON, in turns: p50 / p50 over blocks",
        _AS_MUCH,
    ),
    "redis.save_vs_floor": Measure(
        "<= 1.4", "the same against one SET of its JSON at the same appendfsync: p50 / p50 over blocks", _AS_MUCH
    ),
    "tiered.save_vs_postgres": Measure("<= 1.2", "a commit behind a hot tier / on PostgreSQL alone, in turns", 0.8),
    "tiered.load_vs_postgres": Measure(
        "<= 0.8", "read the session on an open handle, touch every message: behind a hot tier / on PostgreSQL alone"
    ),
    "postgres.late_vs_early": Measure(
        "<= 1.2",
        "p50 of a commit late in a long session / early in it, each divided by the floor's p50 of the same stretch",
    ),
    "postgres.stored_vs_raw": Measure(
        "<= 0.9", "bytes of all tables and indexes after a plain VACUUM / bytes of the messages as JSON"
    ),
    "postgres.fleet_vs_unbatched": Measure(
        ">= 4", "saves per second of 100 sessions at once / the same with batches of 1 on one connection"
    ),
}
MEASURES = {**KERNEL, **COLD, **STORES}


def meets(value: float, goal: str) -> bool:
    """Whether a value fits a goal.

    >>> meets(1.29, "<= 1.3"), meets(2.9, ">= 3")
    (True, False)
    """
    test, _, bound = goal.partition(" ")
    return _TESTS[test](value, float(bound))
