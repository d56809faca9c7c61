"""Waiting for the lock of a database file that other processes write, in short steps.

SQLite's own waiting soon sleeps for 50 and 100 ms at a time: with several busy writers the lock is free for most of
that, and whoever has waited longest looks least often. Short steps double what five processes get through.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import apsw

STEPS = ((20, 0.0005), (1000, 0.001))
"""Up to so many looks, so many seconds between two of them."""
LONGEST = 0.005
"""Seconds between looks after that."""


def wait_for_others(connection: apsw.Connection, ms: int) -> None:
    """Have a connection wait for a lock for so many milliseconds."""
    if not ms:
        connection.set_busy_timeout(0)
        return
    began = 0.0

    def again(looks: int) -> bool:
        nonlocal began
        now = time.monotonic()
        if not looks:
            began = now
        if (now - began) * 1000 >= ms:
            return False
        time.sleep(next((pause for most, pause in STEPS if looks < most), LONGEST))
        return True

    connection.set_busy_handler(again)
