"""Blobs in memory, for the memory store and for tests."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from perdure.blobs.content import WholeStreams, check_content, check_ref
from perdure.errors import NotFound
from perdure.system.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.protocols import Clock


class MemoryBlobs(WholeStreams):
    """A dict of contents by ref; gone with the process."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._held: dict[str, tuple[bytes, int]] = {}

    @classmethod
    def named(cls, name: str, clock: Clock) -> MemoryBlobs:
        """The blobs of the memory store of that name, shared within the process; without a name they are private."""
        if not name:
            return cls(clock=clock)
        with _shared_lock:
            return _shared.setdefault(name, cls(clock=clock))

    def put(self, ref: str, data: bytes) -> None:
        """Keep the content, or renew it."""
        check_content(ref, data)
        with self._lock:
            before = self._held[ref][1] if ref in self._held else 0
            # Never back in time: a clock that was set back must not make a blob look older than it is.
            self._held[ref] = (data, max(before, self._clock.wall()))

    def get(self, ref: str) -> bytes:
        """The content."""
        check_ref(ref)
        with self._lock:
            if ref not in self._held:
                raise NotFound(f"there is no blob {ref} in memory")
            return self._held[ref][0]

    def refs(self) -> Iterator[tuple[str, int]]:
        """All refs with the time each was last put or renewed."""
        with self._lock:
            return iter([(ref, at) for ref, (_, at) in self._held.items()])

    def delete(self, ref: str, unless_renewed_since: int) -> bool:
        """Delete unless it was renewed meanwhile."""
        check_ref(ref)
        with self._lock:
            held = self._held.get(ref)
            if held is None or held[1] >= unless_renewed_since:
                return False
            del self._held[ref]
            return True

    def close(self) -> None:
        """Nothing to release."""


_shared: dict[str, MemoryBlobs] = {}
_shared_lock = threading.Lock()
