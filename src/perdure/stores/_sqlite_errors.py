"""What SQLite's errors mean to a caller. Nothing here touches a database."""

from __future__ import annotations

import errno
from typing import cast

import apsw

from perdure.errors import (
    Corrupted,
    InvalidInput,
    LimitExceeded,
    PerdureError,
    Poisoned,
    StoreFull,
    Unavailable,
)

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
