"""Whether a stored lease is still alive, for the stores that have no server and thus no server's clock.

No two clocks are compared. Within one boot all processes share the monotonic clock, so its reading is
stored as the lease's end. Across boots or machines only the waiter's own clock counts: a lease that was
seen unchanged for its whole span has ended. A holder whose process is certainly dead holds nothing.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from perdure.errors import Busy
from perdure.model import LeaseInfo
from perdure.system.clock import boot_id
from perdure.system.lease_holders import describe, is_dead

if TYPE_CHECKING:
    from perdure.protocols import Clock

WATCHED = 10_000
"""Foreign leases watched at most; beyond that the oldest watch starts again when it is next asked about."""


class StoredLease(NamedTuple):
    """A lease as a store keeps it. ``holder`` "" means that nobody holds the session."""

    holder: str = ""
    token: int = 0
    until: int = 0
    """End of the lease on the monotonic clock of ``boot``, in ms."""
    span: int = 0
    """For how long it was granted, in ms."""
    boot: str = ""


class LeaseJudge:
    """Grants leases and says which ones have ended. One per store handle; may be used from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # session -> (token, until) as last seen, and when this handle first saw them so.
        self._watched: dict[str, tuple[int, int, int]] = {}

    def grant(self, holder: str, token: int, span: int) -> StoredLease:
        """A lease that starts now; also how one is renewed or slides (same holder and token)."""
        return StoredLease(holder, token, self._clock.monotonic() + span, span, boot_id())

    def left(self, session: str, lease: StoredLease) -> int:
        """For how many ms the lease still counts as held, to the best of our knowledge; 0 when it is free."""
        if not lease.holder:
            return 0
        now = self._clock.monotonic()
        if lease.boot == boot_id():
            left = lease.until - now
        else:
            left = lease.span - (now - self._first_seen(session, lease, now))
        # Looking at the process costs more than looking at the clock, so it comes last.
        return 0 if left <= 0 or is_dead(lease.holder) else left

    def info(self, session: str, lease: StoredLease) -> LeaseInfo:
        """The lease as shown to callers: who holds it, until when by the wall clock (an estimate)."""
        left = self.left(session, lease)
        if not left:
            return LeaseInfo("", lease.token, 0)
        return LeaseInfo(lease.holder, lease.token, self._clock.wall() + left)

    def busy(self, session: str, lease: StoredLease) -> Busy | None:
        """The error for somebody who has no right to write now; None when nobody holds the session."""
        left = self.left(session, lease)
        return Busy(session, describe(lease.holder), self._clock.wall() + left) if left else None

    def _first_seen(self, session: str, lease: StoredLease, now: int) -> int:
        with self._lock:
            seen = self._watched.get(session)
            if seen is not None and seen[:2] == (lease.token, lease.until):
                return seen[2]
            self._watched.pop(session, None)
            if len(self._watched) >= WATCHED:
                del self._watched[next(iter(self._watched))]
            self._watched[session] = (lease.token, lease.until, now)
            return now
