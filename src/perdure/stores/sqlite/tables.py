"""Making and recognising a database file of ours, safe when many processes open it at the same moment."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import apsw

from perdure.errors import Corrupted, InvalidInput, Unavailable, UnsupportedFormat
from perdure.stores.sqlite.file import set_pragmas, value_of
from perdure.system.disk import OWN_FOLDER, Disk, check_folder_of, make_folder, warn_if_network

if TYPE_CHECKING:
    from perdure.stores.sqlite.file import Cursor

VERSION = 1
APPLICATION = 0x50524452
"""Stands in the file's header ("PRDR"): tells our databases from others."""

_MAGIC = b"SQLite format 3\0"


YOUNG = 2 * 4096
"""Bytes of a database whose tables are in the log alone."""


def make_file(path: str) -> None:
    """Make the file for its owner only, in a folder that is there (or is ours); its name is durable once made."""
    try:
        if os.path.isdir(path):
            raise InvalidInput(f"{path} is a folder: name a file in it, such as agents.db")
        disk, folder = Disk(), os.path.dirname(path)
        if os.path.basename(folder) == OWN_FOLDER:
            make_folder(disk, folder)
        else:
            check_folder_of(path)
        warn_if_network(path)
        # Only when there is none: closing any descriptor of an open database would drop its locks.
        if not os.path.exists(path):
            with suppress(FileExistsError):
                disk.close(disk.open(path, exclusive=True))
                disk.fsync_folder(folder)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise Unavailable(f"{path!r} cannot be made ({why}): choose another path or see to its folder") from error


def prepare(cursor: Cursor, path: str, *, synchronous: str, patience: float) -> None:
    """Make the tables when there are none, and refuse what is not ours."""
    fresh = _look(cursor, path)
    set_pragmas(cursor, path, fresh=fresh, synchronous=synchronous, patience=patience)
    if fresh:
        _create(cursor, path)
    found = value_of(cursor, "select value from meta where key = 'schema'")
    if not isinstance(found, int) or found < 1:
        raise Corrupted(path, "its format version is not a number")
    if found > VERSION:
        raise UnsupportedFormat(
            f"{path} has format {found} and this Perdure knows up to {VERSION}: upgrade this process"
        )
    if found < VERSION:
        _upgrade(cursor)
    try:
        young = os.stat(path).st_size <= YOUNG
    except OSError as error:
        raise Unavailable(
            f"{path} was removed while it was being opened ({error.strerror}): nothing was written; open it again"
        ) from error
    if young:
        # A log that is taken away takes with it what was committed. Without the tables, and the name of the store in
        # them, nobody could even tell: it would begin anew.
        cursor.execute("pragma wal_checkpoint(full)").fetchall()


def _look(cursor: Cursor, path: str) -> bool:
    """Whether nothing was made yet, seen at one instant."""
    try:
        cursor.execute("begin")
        fresh = _is_fresh(cursor, path)
        cursor.execute("commit")
    except apsw.NotADBError as error:
        if _was_ours(path):
            raise
        raise InvalidInput(f"{path} is not a SQLite database: choose another path") from error
    return fresh


def _is_fresh(cursor: Cursor, path: str) -> bool:
    tables = value_of(cursor, "select count(*) from sqlite_schema")
    application = value_of(cursor, "pragma application_id")
    if application == APPLICATION:
        if not tables:
            raise Corrupted(path, "its tables are missing")
        return False
    if not tables and not application:
        return True
    ours = "select count(*) from sqlite_schema where name in ('meta', 'sessions', 'branches', 'commits')"
    if value_of(cursor, ours) == 4:
        raise Corrupted(path, "its header does not say any more that it is a Perdure database")
    raise InvalidInput(f"{path} is a SQLite database of another program: choose another path")


def _was_ours(path: str) -> bool:
    """Whether a file that SQLite refuses looks like a damaged database of ours."""
    # Read by SQLite: it knows when a file may be closed without dropping the locks that the process has on it.
    file = apsw.VFSFile("", path, [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
    try:
        header = file.xRead(100, 0)
    finally:
        file.xClose()
    alike = sum(a == b for a, b in zip(header, _MAGIC, strict=False))
    return header[68:72] == APPLICATION.to_bytes(4, "big") or alike >= 12


def _create(cursor: Cursor, path: str) -> None:
    values = {
        "schema": 1,
        "id": os.urandom(16).hex(),
        "epoch": os.urandom(8).hex(),
        "token": 0,
        "trimmed": 0,
        "clock": "",
    }
    # When this fails the connection is closed, which undoes it.
    cursor.execute("begin immediate")
    if _is_fresh(cursor, path):  # nobody else was first
        cursor.execute(_script(1))
        cursor.execute(f"pragma application_id = {APPLICATION}")
        cursor.executemany("insert into meta values (?, ?)", list(values.items()))
        _step_up(cursor, 1)
    cursor.execute("commit")


def _upgrade(cursor: Cursor) -> None:
    """Bring an older file up to date. Whoever has it open meanwhile goes on: nothing that was there is changed."""
    # When this fails the connection is closed, which undoes it.
    cursor.execute("begin immediate")
    _step_up(cursor, value_of(cursor, "select value from meta where key = 'schema'"))
    cursor.execute("commit")


def _step_up(cursor: Cursor, found: int) -> None:
    for version in range(found + 1, VERSION + 1):
        cursor.execute(_script(version))


def _script(version: int) -> str:
    from importlib import resources

    return (resources.files("perdure.stores.sqlite") / "sql" / f"v{version}.sql").read_text("utf-8")
