"""Whether a handle may still be used: not closed, no fork since it was opened, and the disk did what it was told."""

from __future__ import annotations

import os

from perdure.errors import ForkedProcess, HandleClosed, Poisoned


class HandleGuard:
    """Asked before anything is done through a handle."""

    __slots__ = ("_again", "_anew", "_pid", "_what", "closed", "poisoned")

    def __init__(self, what: str, again: str = "open a new one", anew: str = "open a new one in this process") -> None:
        self._what = what
        self._again = again
        self._anew = anew
        self._pid = os.getpid()
        self.closed = False
        self.poisoned = ""
        """What went wrong on the disk, when nobody knows any more what is on it."""

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that opened the handle."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Refuse a handle that was closed, opened before a fork, or poisoned."""
        if self.closed:
            raise HandleClosed(f"{self._what} was closed: {self._again}")
        if os.getpid() != self._pid:
            raise ForkedProcess(f"{self._what} was opened before a fork: {self._anew}")
        if self.poisoned:
            raise Poisoned(self.poisoned)
