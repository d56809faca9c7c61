"""The system's clocks, and which boot they belong to. Injected everywhere, so that tests never sleep."""

from __future__ import annotations

import time
from functools import cache


class SystemClock:
    """The clocks of this machine."""

    def wall(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> int:
        """Milliseconds of the boot's own clock, shared by all processes of this machine."""
        return time.monotonic_ns() // 1_000_000


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
