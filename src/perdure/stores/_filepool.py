"""The session files that a handle keeps at hand: a bounded number of indexes, and fewer open descriptors."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.stores._filesession import SessionFile

OPEN = 128
"""Sessions with open files (two each): well below the usual limit of 1024 descriptors."""
KEPT = 4096
"""Sessions whose index is kept."""
ROWS = 500_000
"""Rows in all indexes together; some 300 bytes each."""


class Pool:
    """Session files by the name of their folder; the ones used last are kept."""

    def __init__(self, make: Callable[[str], SessionFile]) -> None:
        self._make = make
        self._lock = threading.Lock()
        # In order of use, the last one last.
        self._kept: dict[str, SessionFile] = {}
        self._open: set[str] = set()
        self._rows = 0
        self._closed = False

    def close(self) -> None:
        """Close all files; those in use are closed by whoever uses them."""
        with self._lock:
            self._closed = True
            for file in self._kept.values():
                if not file.users:
                    file.park()
            self._kept.clear()

    def take(self, name: str) -> SessionFile:
        """The files of a session, which stay open until they are given back."""
        with self._lock:
            file = self._kept.pop(name, None) or self._make(name)
            self._kept[name] = file
            file.users += 1
            return file

    def give(self, name: str, file: SessionFile) -> None:
        """Give them back."""
        with self._lock:
            file.users -= 1
            if self._closed:
                if not file.users:
                    file.park()
                return
            if file.is_open and name not in self._open:
                self._open.add(name)
                if len(self._open) > OPEN:
                    self._park()
            rows = len(file.index.commits)
            self._rows += rows - file.counted
            file.counted = rows
            if len(self._kept) > KEPT or self._rows > ROWS:
                self._forget()

    def _park(self) -> None:
        """Close some of the files that were not used for longest."""
        idle = [name for name, file in self._kept.items() if not file.users and name in self._open]
        for name in idle[: OPEN // 8]:
            self._kept[name].park()
            self._open.remove(name)

    def _forget(self) -> None:
        """Drop what was not used for longest, but never the one used last."""
        idle = [name for name, file in self._kept.items() if not file.users][:-1]
        for name in idle:
            if len(self._kept) <= KEPT and self._rows <= ROWS:
                break
            file = self._kept.pop(name)
            file.park()
            self._open.discard(name)
            self._rows -= file.counted
