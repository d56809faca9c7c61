"""The system's clocks, and which boot they belong to. Injected everywhere, so that tests never sleep."""

from __future__ import annotations

import re
import time
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.protocols import Clock


class SystemClock:
    """The clocks of this machine."""

    def wall(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> int:
        """Milliseconds of the boot's own clock, shared by all processes of this machine."""
        return time.monotonic_ns() // 1_000_000

    def sleep(self, ms: int) -> None:
        """Let so many milliseconds pass."""
        time.sleep(ms / 1000)

    async def sleep_async(self, ms: int) -> None:
        """The same in an event loop, while others go on."""
        import asyncio

        await asyncio.sleep(ms / 1000)


_SLACK = 1000
"""Ms that the wall clock may be behind the kept one before that is kept anew."""


class SteadyClock:
    """The time of a store without a server: nobody who sets the wall clock makes anything expire.

    What expires is compared with ``now``, which goes on no faster than the boot's own clock; when it will is counted
    from ``latest``, which does not go back. ``known`` is what an earlier process of this boot has kept. A wall clock
    that is behind it is believed: that can only delay what expires.

    >>> from perdure.testing import FakeClock
    >>> clock = FakeClock(wall=1000)
    >>> steady = SteadyClock(clock)
    >>> clock.set_wall(9_000_000)
    >>> clock.advance(5)
    >>> steady.now(), steady.latest()
    (1005, 9000005)
    """

    def __init__(self, clock: Clock, known: str = "") -> None:
        self._clock = clock
        wall, monotonic = clock.wall(), clock.monotonic()
        self._first = wall - monotonic
        self.news = True
        """Whether ``known`` differs from what was known before, and is to be kept."""
        boot, _, then = known.rpartition(" ")
        if boot == boot_id() and re.fullmatch("-?[0-9]{1,18}", then) and int(then) <= self._first + _SLACK:
            self._first = int(then)
            self.news = False
        self._lowest = self._first
        """When the boot was, by the wall clock that was furthest behind."""

    def now(self) -> int:
        """Milliseconds since the epoch, or fewer."""
        wall, monotonic = self._clock.wall(), self._clock.monotonic()
        self._lowest = min(self._lowest, wall - monotonic)
        return self._lowest + monotonic

    def latest(self) -> int:
        """Milliseconds since the epoch, or more."""
        return max(self._clock.wall(), self._first + self._clock.monotonic())

    @property
    def known(self) -> str:
        """What other processes of this boot are to know."""
        return f"{boot_id()} {self._first}"


@cache
def boot_id() -> str:
    """Names this boot of this machine: monotonic times compare only within one boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        import platform

        # Without a boot id, the boot's moment to the minute stands in for it: two processes of
        # one boot agree, and a disagreement only makes a waiter watch the lease for longer.
        started = round((time.time() - time.monotonic()) / 60)
        return f"{platform.node()}-{started}"
