"""The two background threads of an open database: one keeps leases alive, one packs rows. Started when first needed."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from perdure.compaction import PACK_MIN, compact
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from perdure.kernel import Kernel
    from perdure.model import Lease


def _warn(words: str, *about: object) -> None:
    # Imported when there is something to say: a process that starts is not kept waiting for it.
    import logging

    logging.getLogger("perdure").warning(words, *about)


class Heartbeat:
    """Renews every lease this database holds, three times per lease period."""

    def __init__(self, kernel: Kernel, ttl: int) -> None:
        self._kernel = kernel
        self._ttl = ttl
        self._lock = threading.Lock()
        self._leases: dict[int, Lease] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.lost: set[int] = set()
        """Tokens that turned out to be no longer ours."""

    def add(self, lease: Lease) -> None:
        """Keep a lease alive from now on."""
        with self._lock:
            self._leases[lease.token] = lease
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, name="perdure-heartbeat", daemon=True)
                self._thread.start()

    def remove(self, lease: Lease) -> None:
        """Let a lease go."""
        with self._lock:
            self._leases.pop(lease.token, None)

    def _beat(self) -> None:
        while not self._stop.wait(self._ttl / 3000):
            self.renew()

    def renew(self) -> None:
        """Renew all leases now."""
        with self._lock:
            leases = list(self._leases.values())
        if not leases:
            return
        try:
            kept = self._kernel.store.renew(leases, self._ttl)
        except PerdureError as e:
            # Commits fail with the same error where somebody waits for them; the next beat tries again.
            _warn("leases could not be renewed: %s", e)
            return
        for lease, ok in zip(leases, kept, strict=True):
            if not ok:
                self.remove(lease)
                self.lost.add(lease.token)
                _warn("the lease of session %r was lost: its handle can no longer write", lease.session)

    def close(self) -> None:
        """Stop renewing."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()


class Housekeeper:
    """Packs the rows of lines that have grown, one after the other."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._lock = threading.Lock()
        self._queued: dict[tuple[str, int], int] = {}
        self._queue: queue.SimpleQueue[tuple[str, int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def request(self, session: str, line: int, minimum: int) -> None:
        """Have a line packed soon; asking again while it waits adds nothing, so the queue is bounded by the lines."""
        with self._lock:
            key = (session, line)
            known = key in self._queued
            self._queued[key] = min(minimum, self._queued.get(key, minimum))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="perdure-housekeeper", daemon=True)
                self._thread.start()
        if not known:
            self._queue.put(key)

    def _work(self) -> None:
        while (key := self._queue.get()) is not None:
            with self._lock:
                minimum = self._queued.pop(key, PACK_MIN)
            try:
                compact(self._kernel, *key, minimum)
            except PerdureError as e:
                # Nothing is lost: the rows stay as they are, and whoever reads them meets the same error.
                _warn("session %r could not be compacted: %s", key[0], e)

    def close(self) -> None:
        """Finish what is queued, then stop."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
