"""Whether a handle may still be used: it was not closed, and no fork has happened since it was opened."""

from __future__ import annotations

import os

from perdure.errors import ForkedProcess, HandleClosed


class HandleGuard:
    """Asked before anything is done through a handle."""

    __slots__ = ("_again", "_anew", "_pid", "_what", "closed")

    def __init__(self, what: str, again: str, anew: str) -> None:
        self._what = what
        self._again = again
        self._anew = anew
        self._pid = os.getpid()
        self.closed = False

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that opened the handle."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Refuse a handle that was closed, or opened before a fork."""
        if self.closed:
            raise HandleClosed(f"{self._what} was closed: {self._again}")
        if os.getpid() != self._pid:
            raise ForkedProcess(f"{self._what} was opened before a fork: {self._anew}")
