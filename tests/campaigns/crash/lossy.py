"""The two doors through which stores reach a disk, each with a trace of what went through it.

:class:`TracedDisk` is the file store's and the blob folder's, :class:`TracedVFS` is SQLite's. Both work on the
real file system, so the program under test notices nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import apsw

from perdure.system.disk import Disk

if TYPE_CHECKING:
    from tests.campaigns.crash.platter import Trace

_JOURNALS = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL


class TracedDisk(Disk):
    """A disk that writes down what is done to it."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._files: dict[int, int] = {}

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = True) -> int:
        """Open a file, and note when that makes it."""
        made = not os.path.exists(path)
        fd = super().open(path, create=create, exclusive=exclusive, write=write)
        self._files[fd] = self._trace.opened(path, made=made)
        return fd

    def write(self, fd: int, data: bytes, offset: int) -> int:
        """Write, and note what was written."""
        done = super().write(fd, data, offset)
        self._trace.write(self._files[fd], offset, bytes(data[:done]))
        return done

    def truncate(self, fd: int, size: int) -> None:
        """Cut, and note it."""
        super().truncate(fd, size)
        self._trace.truncate(self._files[fd], size)

    def fdatasync(self, fd: int) -> None:
        """Only noted: nothing here depends on the real disk."""
        self._trace.sync(self._files[fd])

    def fsync_folder(self, path: str) -> None:
        """Only noted, but the folder must be there."""
        os.stat(path)
        self._trace.sync_folder(path)

    def mkdir(self, path: str) -> None:
        """Make a folder, and note when it is new."""
        made = not os.path.isdir(path)
        super().mkdir(path)
        if made:
            self._trace.made_folder(path)

    def rename(self, source: str, target: str) -> None:
        """Rename, and note it."""
        super().rename(source, target)
        self._trace.rename(source, target)

    def unlink(self, path: str) -> None:
        """Remove a name, and note it."""
        super().unlink(path)
        self._trace.unlink(path)


class TracedFile(apsw.VFSFile):
    """A file of SQLite's that writes down what is done to it."""

    def __init__(self, trace: Trace, name: Any, flags: list[int]) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        made = path is not None and not os.path.exists(path)
        super().__init__("", name, flags)
        self._trace = trace
        self._file = trace.opened(path, made=made) if path is not None else 0
        # SQLite's own VFS syncs the folder of a journal it has made when it first syncs the journal.
        self._folder = os.path.dirname(path) if path and made and flags[0] & _JOURNALS else ""

    def xWrite(self, data: Any, offset: int) -> None:
        """Write, and note what was written."""
        super().xWrite(data, offset)
        if self._file:
            self._trace.write(self._file, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:
        """Cut, and note it."""
        super().xTruncate(newsize)
        if self._file:
            self._trace.truncate(self._file, newsize)

    def xSync(self, flags: int) -> None:
        """Only noted: nothing here depends on the real disk."""
        if self._file:
            self._trace.sync(self._file)
            if self._folder:
                self._trace.sync_folder(self._folder)
                self._folder = ""


class TracedVFS(apsw.VFS):
    """SQLite's usual VFS with a trace of all files opened through it."""

    def __init__(self, name: str, trace: Trace) -> None:
        super().__init__(name, base="")
        self._trace = trace

    def xOpen(self, name: Any, flags: list[int]) -> TracedFile:
        """Open a file."""
        return TracedFile(self._trace, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        """Remove a file."""
        super().xDelete(filename, syncdir)
        self._trace.unlink(filename)
        if syncdir:
            self._trace.sync_folder(os.path.dirname(filename))
