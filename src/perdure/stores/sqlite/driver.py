"""apsw as we use it: typed cursors, what its errors mean to a caller, and waiting for a lock in short steps."""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING, Any, Protocol, cast

import apsw

from perdure.errors import Corrupted, InvalidInput, LimitExceeded, PerdureError, Poisoned, StoreFull, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class Cursor(Protocol):
    """Runs statements and gives their rows."""

    def execute(self, statements: str, bindings: Sequence[Any] | None = None) -> Cursor:
        """Run one or more statements."""
        ...

    def executemany(self, statements: str, sequenceofbindings: Iterable[Sequence[Any]]) -> Cursor:
        """Run statements once for each of the bindings."""
        ...

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row, if there is one."""
        ...

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows that are left."""
        ...

    def __iter__(self) -> Iterator[tuple[Any, ...]]: ...


def cursor_of(connection: apsw.Connection) -> Cursor:
    """A new cursor."""
    return cast("Cursor", connection.cursor())


def value_of(cursor: Cursor, sql: str, values: Sequence[Any] = ()) -> Any:
    """The first column of the first row; None when there is no row."""
    # Reading to the end ends the statement, which would keep its reading transaction open otherwise.
    rows = cursor.execute(sql, values).fetchall()
    return rows[0][0] if rows else None


_SYNC_FAILED = {apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC}
_DAMAGED = {apsw.SQLITE_IOERR_SHORT_READ, apsw.SQLITE_IOERR_CORRUPTFS, apsw.SQLITE_IOERR_DATA}
_NO_SPACE = {apsw.SQLITE_IOERR_SHMSIZE}


def translate(error: BaseException, path: str, os_error: int = 0) -> PerdureError | None:
    """The error to raise instead; None when this one is not SQLite's and should go its own way.

    ``os_error`` is the system's error number behind it, where known. Messages of SQLite name tables and
    columns, never values.
    """
    match error:
        case apsw.CorruptError() | apsw.NotADBError() | apsw.FormatError():
            return Corrupted(path, "SQLite finds the file damaged")
        case apsw.FullError():
            return _full(path)
        case apsw.BusyError() | apsw.LockedError() | apsw.ProtocolError():
            return Unavailable(
                f"{path} is locked by another process for too long: look for one that hangs inside a "
                "transaction (a backup, an open sqlite3 shell), or raise busy_timeout; nothing was written"
            )
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError() | apsw.AuthError():
            return Unavailable(
                f"{path} cannot be opened for writing: give this process write permission on the file, its "
                "-wal and -shm neighbours and their folder; nothing was written"
            )
        case apsw.IOError():
            return _io(error, path, os_error)
        case apsw.TooBigError():
            return LimitExceeded(f"{path}: SQLite stores no value over 1 GB: keep large values as blobs")
        case apsw.NoMemError():
            return Unavailable(f"{path}: SQLite ran out of memory; nothing was written")
        case apsw.SQLError() | apsw.SchemaChangeError():
            return Corrupted(path, f"its tables are not the ones that were made ({error})")
        case apsw.Error():
            return Unavailable(f"{path}: SQLite says {type(error).__name__}: {error}; nothing was written")
        case UnicodeDecodeError():
            return Corrupted(path, "a text is not UTF-8")
        case UnicodeEncodeError():
            return InvalidInput("a name holds half of a surrogate pair, which is no text")
        case OverflowError():
            return InvalidInput("a number does not fit into 64 bits")
        case _:
            return None


def _io(error: apsw.IOError, path: str, os_error: int) -> PerdureError:
    code = cast("int", getattr(error, "extendedresult", 0))
    if code in _SYNC_FAILED:
        return Poisoned(
            f"{path}: a sync failed, so nobody knows what is on disk: close this handle, see to the disk, "
            "and open a new one"
        )
    if code in _DAMAGED:
        return Corrupted(path, "the file ends before its contents do, or the disk calls it damaged")
    if code in _NO_SPACE or os_error in (errno.ENOSPC, errno.EDQUOT):
        return _full(path)
    return Unavailable(f"{path}: the disk reports an error ({error}): see to the disk; nothing was written")


def _full(path: str) -> StoreFull:
    return StoreFull(
        f"{path}: no space left on the device; nothing was written and earlier checkpoints are intact: "
        "free some space and try again"
    )


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
