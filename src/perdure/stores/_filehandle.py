"""What a handle of a file store is made of: its root, the sessions at hand, and whether it may be used.

Every access to a session goes through :class:`Held`, which locks it, and turns what the system says into an
error that tells what to do. It is written out as a class because a commit passes here each time.
"""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from perdure.clock import SystemClock
from perdure.disk import Disk, explain
from perdure.errors import ForkedProcess, HandleClosed, Poisoned
from perdure.stores._filepool import Pool
from perdure.stores._fileroot import FileRoot, salt_of, session_name
from perdure.stores._filesession import SessionFile
from perdure.stores._netfs import warn_if_network

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from perdure.model import Append
    from perdure.protocols import Clock

TORN = 1000
"""Torn tails that a handle remembers."""

_name_of = lru_cache(4096)(session_name)


class TornTail(UserWarning):
    """The end of a log was the rest of an interrupted write: it was cut, and kept in a file beside it."""


class Torn(NamedTuple):
    """A tail that was cut: whose, where the bytes are kept, at which offset they were, and how many."""

    session: str
    file: str
    offset: int
    bytes: int


class FileHandle:
    """One open file store of one process."""

    def __init__(self, path: str, clock: Clock | None, disk: Disk | None) -> None:
        self.path = path
        self.clock: Clock = clock or SystemClock()
        self.disk = disk or Disk()
        self.torn: list[Torn] = []
        self._pid = os.getpid()
        self._closed = False
        self._poisoned = ""
        self.pool = Pool(self._make)
        warn_if_network(path)
        try:
            self.root = FileRoot(path, self.disk)
        except OSError as error:
            raise explain(error, path) from error

    def check(self) -> None:
        """Refuse to work on a handle that is closed, poisoned or from another process."""
        if self._closed:
            raise HandleClosed(f"{self.path}: this handle was closed: open a new one")
        if os.getpid() != self._pid:
            raise ForkedProcess(
                f"{self.path}: this handle was opened in process {self._pid}, before a fork: "
                "open a new one in this process"
            )
        if self._poisoned:
            raise Poisoned(self._poisoned)

    def close(self) -> None:
        """Close all files. In a forked child they belong to the parent, and are left alone."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self.pool.close()
        self.root.close()

    def session(self, session: str, at_stake: Sequence[Append] = ()) -> Held:
        """A session to write to, which is made by that; ``at_stake`` are the commits that may get lost."""
        return Held(self, _name_of(session), exclusive=True, create=True, at_stake=at_stake)

    def known(self, session: str, *, exclusive: bool = False) -> Held:
        """A session that must be there already, or None is what one gets."""
        return Held(self, _name_of(session), exclusive=exclusive, create=False)

    def named(self, name: str, *, exclusive: bool = False) -> Held:
        """A session by the name of its folder."""
        return Held(self, name, exclusive=exclusive, create=False)

    @contextmanager
    def alone(self) -> Generator[None]:
        """For work on the root."""
        self.check()
        try:
            yield
        except BaseException as error:
            self.note(error)
            raise

    def note(self, error: BaseException, at_stake: Sequence[Append] = ()) -> None:
        """Explain what the system said; remember a failed sync: from then on nobody knows what is on disk."""
        if isinstance(error, OSError):
            raise explain(error, self.path) from error
        if isinstance(error, Poisoned):
            todo = "close this handle, see to the disk, and open a new one"
            self._poisoned = f"{error}, so nobody knows what is on disk: {todo}"
            names = ", ".join(item.id.hex() for item in at_stake)
            unknown = f". It is unknown whether these commits landed: {names}" if names else ""
            raise Poisoned(self._poisoned + unknown) from error

    def _make(self, name: str) -> SessionFile:
        return SessionFile(self.disk, self.root.folder(name), salt_of(name), self.clock, self._note_torn)

    def _note_torn(self, session: str, file: str, offset: int, size: int) -> None:
        self.torn.append(Torn(session, file, offset, size))
        del self.torn[:-TORN]
        warnings.warn(
            f"session {session!r}: the last write to its log was interrupted and never completed; its "
            f"{size} bytes at {offset} were cut off and kept in {file}",
            TornTail,
            stacklevel=2,
        )


class Held:
    """A session, locked and up to date while the block runs; its errors are explained."""

    __slots__ = ("_at_stake", "_create", "_exclusive", "_file", "_handle", "_name")

    def __init__(
        self, handle: FileHandle, name: str, *, exclusive: bool, create: bool, at_stake: Sequence[Append] = ()
    ) -> None:
        self._handle = handle
        self._name = name
        self._exclusive = exclusive
        self._create = create
        self._at_stake = at_stake
        self._file: SessionFile | None = None

    def __enter__(self) -> SessionFile | None:
        handle = self._handle
        handle.check()
        file = handle.pool.take(self._name)
        file.mutex.acquire()
        try:
            if file.enter(exclusive=self._exclusive, create=self._create):
                self._file = file
                return file
        except BaseException as error:
            self._give(file)
            handle.note(error)
            raise
        self._give(file)
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        file = self._file
        if file is not None:
            file.leave()
            self._give(file)
        if error is not None:
            self._handle.note(error, self._at_stake)

    def _give(self, file: SessionFile) -> None:
        file.mutex.release()
        self._handle.pool.give(self._name, file)
