"""What goes wrong in a chaos run, at random moments and in random order; several things may go wrong at once."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

from tests.campaigns.fleet_chaos.crew import LEASE
from tests.campaigns.fleet_chaos.stage import FAST, IMMEDIATE, Disk

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.campaigns.fleet_chaos.crew import Crew
    from tests.campaigns.fleet_chaos.stage import Servers, Stage

JUMPS = (-1800, -600, -180, -60, 60, 180, 600, 1800)
"""Seconds by which clocks jump."""


class Faults:
    """Does one thing after the other; what lasts ends by itself."""

    def __init__(self, crew: Crew, stage: Stage, seed: int, longest: float) -> None:
        self.made: Counter[str] = Counter()
        self._crew = crew
        self._stage = stage
        self._longest = longest
        """Seconds that the database server is away at most."""
        self._dice = random.Random(seed)
        self._full_until = 0.0
        self._kinds: dict[str, Callable[[], bool]] = {
            "SIGKILL": self._kill,
            "SIGTERM": self._evict,
            "SIGSTOP": self._freeze,
            "clock jump": self._jump,
        }
        if isinstance(stage, Disk):
            self._kinds["disk full"] = lambda: self._fill(stage)
        else:
            self._kinds |= self._of_servers(stage)
        self._next: list[str] = []

    def _of_servers(self, servers: Servers) -> dict[str, Callable[[], bool]]:
        def done(do: Callable[[], None]) -> Callable[[], bool]:
            return lambda: do() is None

        return {
            "PostgreSQL restart, fast": done(lambda: servers.restart_postgres(FAST, self._outage())),
            "PostgreSQL restart, immediate": done(lambda: servers.restart_postgres(IMMEDIATE, self._outage())),
            "Redis flush": done(servers.flush_redis),
            "Redis restart": done(servers.restart_redis),
        }

    def _outage(self) -> float:
        return self._dice.choice((0.0, self._dice.uniform(0.0, 0.2), 1.0)) * self._longest

    def strike(self) -> str:
        """Do the next thing; which. Every kind has its turn before one comes again."""
        if not self._next:
            self._next = list(self._kinds)
            self._dice.shuffle(self._next)
        kind = self._next.pop()
        if not self._kinds[kind]():
            return ""
        self.made[kind] += 1
        return kind

    def tend(self) -> None:
        """End what has lasted long enough, and replace the workers that are gone."""
        now = time.monotonic()
        self._crew.thaw(now)
        if self._full_until and now >= self._full_until:
            self._relieve()
        self._crew.refill()

    def end(self) -> None:
        """Everything is in order again; only the clocks are before all times that anybody was told meanwhile."""
        self._crew.thaw(float("inf"))
        if self._full_until:
            self._relieve()
        self._crew.jump(2 * max(JUMPS))
        self._crew.refill()

    def _kill(self) -> bool:
        if (worker := self._crew.one(self._dice)) is None:
            return False
        self._crew.strike(worker, signal.SIGKILL)
        return True

    def _evict(self) -> bool:
        if (worker := self._crew.one(self._dice)) is None:
            return False
        self._crew.strike(worker, signal.SIGTERM)
        return True

    def _freeze(self) -> bool:
        worker = self._crew.one(self._dice)
        # One is to be left that can take over.
        if worker is None or len(self._crew.awake()) < 2:
            return False
        self._crew.freeze(worker, time.monotonic() + LEASE * self._dice.uniform(1.5, 4.0))
        return True

    def _jump(self) -> bool:
        self._crew.jump(self._dice.choice([j for j in JUMPS if j != self._crew.offset]))
        return True

    def _fill(self, disk: Disk) -> bool:
        if self._full_until:
            return False
        disk.fill([w.pid for w in self._crew.alive()])
        self._full_until = time.monotonic() + self._dice.uniform(1.0, 4.0)
        return True

    def _relieve(self) -> None:
        assert isinstance(self._stage, Disk)
        self._stage.free([w.pid for w in self._crew.alive()])
        self._full_until = 0.0
