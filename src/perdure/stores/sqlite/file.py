"""One SQLite file: its pragmas, connections, one writer, several readers, transactions; typed cursors, checks of what
is read, and what the errors of apsw mean to a caller. Its contents are not known here.

Long because a transaction, and what becomes of it when somebody takes its files away, are one thing.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import shlex
import threading
import time
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar, cast

import apsw

from perdure import errors
from perdure.model import Span
from perdure.stores.rules import StoredLease
from perdure.stores.sqlite.own_locks import CUT, DATABASE, IN_PLACE, INDEX, PUT_BACK, RESCUED, WRITTEN_OVER, OwnFile
from perdure.system import faults
from perdure.system.commands import door
from perdure.system.flow import HandleGuard

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from perdure.model import Append

T = TypeVar("T")

# -- pragmas: how SQLite is told to keep the file, and what holds when nobody says otherwise ---------------------------

SYNCHRONOUS = "full"
"""``pragma synchronous``: "full" waits for the disk with each commit, "normal" with each checkpoint of the log."""
BUSY_TIMEOUT = 30.0
"""Seconds to wait for other processes that are writing. SQLite's own ``busy_timeout`` is not used: see
:func:`wait_for_others`."""
LOG_LIMIT = 64 << 20
"""``pragma journal_size_limit``: a log that once grew (a long reader) is cut to this many bytes when it is next used
from its start."""
CHECKPOINT_PAGES = 1000
"""Pages in the log before they are moved into the main file. A longer log is no faster: until it has been written once
from end to end, each commit makes the file longer, which costs a third more."""


def set_pragmas(cursor: Cursor, path: str, *, fresh: bool, synchronous: str, patience: float) -> None:
    """Say how the file is kept and written; ``fresh`` is one in which nothing was made yet."""
    if fresh:
        # Takes effect only before anything is written, so it comes before the switch to a log.
        cursor.execute("pragma auto_vacuum = incremental")
    use_log(cursor, path, patience)
    cursor.execute(f"pragma synchronous = {synchronous}")
    # Elsewhere than on Darwin these say nothing; there, a plain sync stops at the drive's own cache.
    cursor.execute("pragma fullfsync = 1")
    cursor.execute("pragma checkpoint_fullfsync = 1")
    value_of(cursor, f"pragma journal_size_limit = {LOG_LIMIT}")


def use_log(cursor: Cursor, path: str, patience: float) -> None:
    """Switch to write-ahead logging. SQLite does not wait for others here, so we do."""
    deadline = time.monotonic() + patience
    while True:
        try:
            mode = value_of(cursor, "pragma journal_mode = wal")
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise errors.Unavailable(
                f"{path}: SQLite cannot keep its log here (mode {mode}): use a local disk that can be written"
            )
        return


READERS = 8
"""Idle reading connections that are kept open."""
VACUUM_STEP = 512
"""Pages given back to the filesystem in one transaction."""
LAST_MOVE = 2000
"""Milliseconds for which readers may keep a log, which was removed, from being moved into the database."""
KEEP_FREE = 64
"""Free pages that are left in the file for the next commits."""
KEEP_SHARE = 8
"""Of a large file this part (1/8) may stay free: rows are packed all the time, and the room is soon used again."""


class SqliteFile:
    """Transactions on one database file that is there; ``prepare`` makes its tables. May be used from any thread."""

    def __init__(
        self,
        path: str,
        prepare: Callable[[Cursor], None],
        *,
        synchronous: str,
        busy_timeout: float,
        vfs: str | None = None,
    ) -> None:
        self.path = path
        self._guard = HandleGuard(f"{path}: this handle")
        self.check = self._guard.check
        """Refuses to work on a handle that is closed, poisoned or from another process."""
        self._busy_ms = max(0, round(busy_timeout * 1000))
        self._vfs = vfs
        self._lock = threading.Lock()
        self._owner = 0
        """The thread that is inside a writing transaction."""
        self._pool_lock = threading.Lock()
        self._idle: list[apsw.Connection] = []
        self._pooled = False
        """Whether reading connections were opened beside the writing one."""
        self._synchronous = synchronous
        self._unsynced = False
        """Whether the writing connection may be set to write without waiting for the disk."""
        self._watch_lock = threading.Lock()
        self._watcher: apsw.Connection | None = None
        self._logged = 0
        """Pages in the log when it was last written."""
        self._orphaned = False
        """Whether the log is ours alone: others, who do not know of it, have another one."""
        self._unsaved = self._moved = False
        """Whether something that was acknowledged is not in the database any more."""
        self._own = OwnFile(path)
        try:
            self._writer = self._connect()
            try:
                self._cursor = cursor_of(self._writer)
                prepare(self._cursor)
                # In place of SQLite's own, which moves the log within the commit.
                self._writer.set_wal_hook(self._log_grew)
                self._own.astray()  # from now on it is known how all is when it is well
            except BaseException:
                self._writer.close(True)
                raise
            _left_open.add(self)
        except BaseException as error:
            self._own.close()
            known = self._translate(error)
            if known is None:
                raise
            raise known from error

    # -- transactions ------------------------------------------------------------------------------

    def glance(self, work: Callable[[Cursor], T]) -> T:
        """Do some short reading in a transaction that sees one instant; it writes nothing meanwhile."""
        self.check()
        # A second connection takes as long to open as most reads: until two threads meet, the first one serves.
        if self._pooled or self._lock.locked():
            with self.read() as cursor:
                return work(cursor)
        with self._lock:
            self.check()
            self._look()
            try:
                if self._writer.in_transaction:  # a second interrupt hit while the first was dealt with
                    self._cursor.execute("rollback")
                self._cursor.execute("begin")
                result = work(self._cursor)
                self._cursor.execute("commit")
            except BaseException as error:
                self._rollback()
                known = self._translate(error)
                if known is None or known is error:
                    raise
                raise known from error
        return result

    @contextmanager
    def read(self) -> Generator[Cursor]:
        """A transaction that sees one instant and never waits for a writer."""
        self.check()
        self._look_before_reading()
        connection = self._take_reader()
        cursor = cursor_of(connection)
        try:
            cursor.execute("begin")
            yield cursor
            cursor.execute("commit")
        except errors.PerdureError:
            # By the same cursor, which ends its statement: one that is left open goes on seeing what it saw, and with
            # it whoever reads through this connection next, for as long as somebody keeps the error.
            cursor.execute("rollback")
            self._give_reader(connection)
            raise
        except BaseException as error:
            # Whatever state the connection is in, nobody will meet it again.
            connection.close(True)
            known = self._translate(error)
            if known is None:
                raise
            raise known from error
        self._give_reader(connection)

    def write(
        self, what: str, work: Callable[[Cursor], T], commits: Sequence[Append] = (), *, synced: bool = True
    ) -> T:
        """Do some work in a writing transaction: durable when this returns, undone when the work raises.

        ``what`` names the crash points; ``commits`` are those to name when the outcome is unknown. What is not
        ``synced`` survives the end of the process, and a loss of power once something that is was written after it.
        """
        if self._owner == threading.get_ident():
            # A handler of a signal would wait for what it interrupts.
            raise errors.Misuse(f"{self.path} is being written in this very thread: not in a signal's handler")
        with self._lock:
            self.check()
            self._owner = threading.get_ident()
            try:
                result = self._transact(what, work, commits, synced)
            finally:
                self._owner = 0
            if gone := self._own.astray():
                self._rescue(gone, _in_doubt(commits))
            elif self._logged >= CHECKPOINT_PAGES:
                self._checkpoint()
            return result

    def _transact(self, what: str, work: Callable[[Cursor], T], commits: Sequence[Append], synced: bool) -> T:
        cursor, watched = self._cursor, faults.hook is not None
        if watched:
            faults.point(f"sqlite.{what}.before_begin")
        try:
            if self._writer.in_transaction:  # a second interrupt hit while the first was dealt with
                cursor.execute("rollback")
            if synced is self._unsynced:
                self._wait_for_disk(synced)
            cursor.execute("begin immediate")
            if watched:
                faults.point(f"sqlite.{what}.after_begin")
            result = work(cursor)
            if watched:
                faults.point(f"sqlite.{what}.before_commit")
        except BaseException as error:
            known = self._known(error, commits)
            self._rollback()
            if known is error:
                raise
            raise known from error
        if (gone := self._own.astray()) and (gone in IN_PLACE or not self._own.alone()):
            # Others go on without us, maybe in the very same log by another index: not a page is written over theirs.
            self._rollback()
            self._rescue(gone, "; nothing of this was written")
            raise errors.Poisoned(self._guard.poisoned + "; nothing of this was written")
        try:
            cursor.execute("commit")
        except apsw.Error as error:
            known = self._known(error, commits, committing=True)
            self._rollback()
            raise known from error
        if watched:
            faults.point(f"sqlite.{what}.after_commit")
        return result

    def _log_grew(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._logged = pages
        return apsw.SQLITE_OK

    def _checkpoint(self) -> None:
        """Move the log into the main file, as far as no reader is in the way. Never before its files were looked at:
        once somebody has removed the log, others have another one, and this would mix the two."""
        self._logged = 0
        try:
            self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._own.astray()  # the database is another one now
        except apsw.Error as error:
            # What was committed is in the log, on a full disk, too; only a failed sync says something about the disk.
            self._known(error, ())

    def _look(self) -> None:
        """Before something is read: in a log that others do not know of, it would be out of date for ever."""
        if gone := self._own.astray():
            self._rescue(gone, "")
            raise errors.Poisoned(self._guard.poisoned)

    def save_at_last(self) -> None:
        """Before it is gone for good: when it is closed, or the program ends without that."""
        if self._guard.forked or not (gone := self._own.astray()):
            return
        # What was moved into a database that was replaced since is in no other.
        if not self._guard.poisoned or (self._moved and gone == DATABASE):
            with suppress(errors.PerdureError):
                self._rescue(gone, "")

    def _look_before_reading(self) -> None:
        """The same, for who does not have the lock and would wait for it."""
        if self._own.astray():
            with self._lock:
                self.check()
                self._look()

    def _rescue(self, gone: int, fate: str) -> None:
        """Somebody removed or replaced one of our files: bring what only this handle still has to where it is found.

        Returns when what was committed is in the database; either way this handle is not used again. ``fate`` is said
        of what it was just asked for, otherwise.
        """
        # The last one to close would move our log over what others have written by then.
        self._orphaned = True
        if gone in IN_PLACE:
            self._give_up(gone, fate)
        if gone == DATABASE and (there := self._own.moved_to()):
            # Nothing is missing there, and whatever has come here is not ours.
            self._guard.poisoned = (
                f"{self.path} was renamed while it was open, with its log: all that was committed through it is in "
                f"{there}, where it can be opened: close this handle, and open that one"
            )
            self._own.let_others_in()
            self._unsaved = self._moved = False
            return
        moved, then = False, ""
        # Named anew each time: a process may have to do this again, for a second handle or a second removal.
        aside = f"{self.path}{RESCUED}{os.getpid()}-{os.urandom(4).hex()}"
        try:
            # Whoever has opened the database since has a log of its own: to write beside it would mix two histories.
            with self._own.others_kept_out() as kept_out:
                alone = self._own.alone()
                moved = gone != DATABASE and (
                    self._own.log_is_empty() or (kept_out and alone and self._empty_lost_log())
                )
            if moved:
                left = "all that was committed through it has been moved into the database"
            elif gone == INDEX:
                # They have found it in the log, which is still where it was.
                left = "all that was committed through it before is in the database"
            else:
                self._cursor.execute("vacuum into ?", (aside,))
                left = f"all that was committed through it was set aside in {aside}"
                here, there = (shlex.quote(f"sqlite:///{os.path.abspath(path)}") for path in (aside, self.path))
                then = f", and bring it back with `perdure copy {here} {there}`; sessions that have gone on stay"
                if not alone and gone != DATABASE:
                    # Somebody may even have put another one in its place, in place: the copy would be of both.
                    left += ", with what others have written to the database meanwhile: verify it before you use it"
                if gone == DATABASE:
                    self._own.take_log_away()
        except apsw.Error as error:
            left, then = f"what was committed through it since could not be saved ({error})", ""
            with suppress(OSError):  # half of it would pass for a whole
                os.unlink(aside)
        self._guard.poisoned = (
            f"{self._own.name(gone)} was removed or replaced while it was open; {left}: "
            f"close this handle, open a new one{then}"
        )
        self._own.let_others_in()
        self._unsaved, self._moved = not (moved or gone == INDEX), moved
        if not moved:
            raise errors.Poisoned(self._guard.poisoned + fate)

    def _give_up(self, gone: int, fate: str) -> NoReturn:
        """Somebody cut a file of ours, or wrote over it: what only it had is gone, and nothing is added to the rest."""
        self._unsaved = True
        left = "what was committed since it was last moved into the database is lost"
        advice = (
            "stop whoever does that, close this handle, open a new one, and compare it with a witness, or restore a "
            "backup"
        )
        if gone == PUT_BACK:
            # By what it says now, the next page would be written over one that was committed.
            self._own.take_index_away()
            left = "what was committed is in the log still, unless another program has written over it"
            advice = (
                "stop whoever does that, close this handle and all others that have the database, and open a new one, "
                "which reads the log from its beginning"
            )
        elif gone == WRITTEN_OVER:
            # Moved into what is there now, our log would make neither of the two of it.
            left = "what was put there is left as it is"
            if aside := self._own.set_log_aside():
                left += (
                    f", and our log is set aside in {aside}: keep it, for nothing else has what was committed since it "
                    "was last moved into the database; it fits only a copy of the database that was there (as its -wal)"
                )
        elif gone == CUT:
            harmful, all_in = self._own.left_of_log()
            aside = self._own.set_log_aside() if harmful else ""
            if all_in:
                self._unsaved = False
                left = "all that was committed before is in the database"
                advice = "stop whoever does that, close this handle, and open a new one"
            elif not harmful:
                left = "what was committed, and is neither in it any more nor in the database, is lost"
            if aside:
                left += f", and what is left of the log is set aside in {aside}, for the database is newer than that"
        self._guard.poisoned = (
            f"{self._own.name(gone)} was cut or written over in place while it was open; {left}: {advice}"
        )
        self._own.let_others_in()
        raise errors.Poisoned(self._guard.poisoned + fate)

    def _empty_lost_log(self) -> bool:
        """Move all of our log into the database; False when somebody who is reading is in the way."""
        wait_for_others(self._writer, LAST_MOVE)
        try:
            self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except (apsw.BusyError, apsw.LockedError):
            return False
        return True

    def _translate(self, error: BaseException) -> errors.PerdureError | None:
        if isinstance(error, apsw.CantOpenError) and (refusal := self._own.refusal()):
            return errors.Unavailable(refusal)
        return translate(error, self.path)

    def _wait_for_disk(self, on: bool) -> None:
        """Set whether the end of a transaction waits for the disk. An interrupt leaves the cautious belief."""
        self._unsynced = True
        self._cursor.execute(f"pragma synchronous = {self._synchronous if on else 'normal'}")
        self._unsynced = not on

    def _known(self, error: BaseException, commits: Sequence[Append], *, committing: bool = False) -> BaseException:
        """The error to raise; remembers when the handle may not be used again."""
        os_error = self._writer.system_errno if isinstance(error, apsw.Error) else 0
        known = translate(error, self.path, os_error)
        if known is None:
            return error
        # A commit that failed while it was being written may be on disk all the same.
        unsure = committing and isinstance(error, apsw.IOError) and type(known) is errors.Unavailable
        if not (unsure or isinstance(known, errors.Poisoned)):
            return known
        self._guard.poisoned = (
            f"{self.path}: writing to the disk failed, so nobody knows what is on it: close this handle, "
            "see to the disk, and open a new one"
        )
        return errors.Poisoned(self._guard.poisoned + _in_doubt(commits))

    def _rollback(self) -> None:
        if self._writer.in_transaction:
            # The first error is the one to report; SQLite undoes what is left when it next opens the file.
            with suppress(apsw.Error):
                self._cursor.execute("rollback")

    # -- upkeep ------------------------------------------------------------------------------------

    def shrink(self) -> None:
        """Give free pages back to the filesystem, in short transactions between which others can write."""
        freed = False
        while self.write("shrink", _vacuum):
            freed = True
        if freed:
            self._empty_log()

    def _empty_log(self) -> None:
        """Move the log into the main file, which gets its new size by that; not when somebody is reading."""
        with self._lock:
            self.check()
            self._writer.set_busy_timeout(0)
            try:
                self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                self._own.astray()  # the database is another one now
            except (apsw.BusyError, apsw.LockedError):
                pass  # the next checkpoint does it
            except apsw.Error as error:
                raise self._known(error, ()) from error
            finally:
                wait_for_others(self._writer, self._busy_ms)

    def changed(self) -> int:
        """A number that differs once anybody has changed anything, this handle included. Waits for nobody."""
        self._look_before_reading()
        with self._watch_lock:
            self.check()
            try:
                # SQLite tells a connection what others did, so this one does nothing itself.
                if self._watcher is None:
                    self._watcher = self._connect()
                return value_of(cursor_of(self._watcher), "pragma data_version")
            except apsw.Error as error:
                raise self._translate(error) or error from error

    def size(self) -> int:
        """Bytes of the main file and its log."""
        total = 0
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                total += os.stat(self.path + suffix).st_size
        return total

    def close(self) -> None:
        """Close all connections; those in use are closed by whoever uses them. Again: no error."""
        # In a forked child the connections belong to the parent: they are left alone, not closed.
        if self._guard.closed or self._guard.forked:
            return
        # Closing must neither fail for want of space nor wait for a writer: the pages stay free instead.
        known = self._guard.poisoned
        with suppress(errors.PerdureError):
            with self._lock:
                self._writer.set_busy_timeout(0)
            self.write("shrink", lambda cursor: _vacuum(cursor, last=True))
        with self._lock, self._pool_lock, self._watch_lock:
            self._guard.closed = True
            self.save_at_last()
            if self._logged and not self._guard.poisoned:
                # Whoever is not the last one to close would leave what it wrote in the log alone.
                self._checkpoint()
            idle, self._idle = self._idle, []
            watchers = [] if self._watcher is None else [self._watcher]
            for connection in (*idle, *watchers, self._writer):
                self._end(connection)
            self._own.close()
            _left_open.discard(self)
        if self._unsaved and self._guard.poisoned != known:
            # Nobody was told before: what was acknowledged is not where it was.
            raise errors.Poisoned(self._guard.poisoned)

    # -- connections -------------------------------------------------------------------------------

    def _take_reader(self) -> apsw.Connection:
        with self._pool_lock:
            if self._idle:
                return self._idle.pop()
        self._pooled = True
        try:
            connection = self._connect()
            cursor_of(connection).execute("pragma query_only = 1")
        except apsw.Error as error:
            raise translate(error, self.path) or error from error
        return connection

    def _give_reader(self, connection: apsw.Connection) -> None:
        if connection.txn_state() == apsw.SQLITE_TXN_NONE:
            with self._pool_lock:
                if not self._guard.closed and len(self._idle) < READERS:
                    self._idle.append(connection)
                    return
        self._end(connection)

    def _end(self, connection: apsw.Connection) -> None:
        if self._orphaned:
            # The last one to close would move our log over what others have written.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.close()

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(self.path, flags=apsw.SQLITE_OPEN_READWRITE, vfs=self._vfs)
        wait_for_others(connection, self._busy_ms)
        return connection


_left_open: weakref.WeakSet[SqliteFile] = weakref.WeakSet()
"""Files that nobody has closed."""


@atexit.register
def _save_what_is_left() -> None:
    for file in list(_left_open):
        file.save_at_last()


def _in_doubt(commits: Sequence[Append]) -> str:
    names = ", ".join(commit.id.hex() for commit in commits)
    return f". It is unknown whether these commits landed: {names}" if names else ""


def _vacuum(cursor: Cursor, *, last: bool = False) -> bool:
    """Give some free pages back; False when there are not enough of them to bother, which at the end is none."""
    free = value_of(cursor, "pragma freelist_count")
    keep = 0 if last else max(KEEP_FREE, value_of(cursor, "pragma page_count") // KEEP_SHARE)
    pages = min(VACUUM_STEP, free - keep)
    if pages <= 0:
        return False
    cursor.execute(f"pragma incremental_vacuum({pages})").fetchall()
    # A file that went through somebody's VACUUM with other settings gives nothing back, however often asked.
    return value_of(cursor, "pragma freelist_count") < free


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


def translate(error: BaseException, path: str, os_error: int = 0) -> errors.PerdureError | None:
    """The error to raise instead; None when this one is not SQLite's and should go its own way.

    ``os_error`` is the system's error number behind it, where known. Messages of SQLite name tables and
    columns, never values.
    """
    match error:
        case Damaged():
            return errors.Corrupted(path, f"{error} is not what was written")
        case apsw.CorruptError() | apsw.NotADBError() | apsw.FormatError():
            return errors.Corrupted(path, "SQLite finds the file damaged")
        case apsw.FullError():
            return _full(path)
        case apsw.BusyError() | apsw.LockedError() | apsw.ProtocolError():
            return errors.Unavailable(
                f"{path} is locked for too long by another process, or another library in this one: look for one that "
                f"hangs inside a transaction (a backup, an open sqlite3 shell){_wait_longer()}; nothing was written"
            )
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError() | apsw.AuthError():
            return errors.Unavailable(
                f"{path} cannot be opened for writing: give this process write permission on the file, its "
                "-wal and -shm neighbours and their folder; nothing was written"
            )
        case apsw.IOError():
            return _io(error, path, os_error)
        case apsw.TooBigError():
            return errors.LimitExceeded(f"{path}: SQLite stores no value over 1 GB: keep large values as blobs")
        case apsw.NoMemError():
            return errors.Unavailable(f"{path}: SQLite ran out of memory; nothing was written")
        case apsw.SQLError() | apsw.SchemaChangeError():
            return errors.Corrupted(path, f"its tables are not the ones that were made ({error})")
        case apsw.Error():
            return errors.Unavailable(f"{path}: SQLite says {type(error).__name__}: {error}; nothing was written")
        case UnicodeDecodeError():
            return errors.Corrupted(path, "a text is not UTF-8")
        case UnicodeEncodeError():
            return errors.InvalidInput("a name holds half of a surrogate pair, which is no text")
        case OverflowError():
            return errors.InvalidInput("a number does not fit into 64 bits")
        case _:
            return None


def _wait_longer() -> str:
    """That one may wait for longer, for whoever can say so."""
    return ", or raise busy_timeout" if door() == "program" else ""


def _io(error: apsw.IOError, path: str, os_error: int) -> errors.PerdureError:
    code = cast("int", getattr(error, "extendedresult", 0))
    if code in _SYNC_FAILED:
        return errors.Poisoned(
            f"{path}: a sync failed, so nobody knows what is on disk: close this handle, see to the disk, "
            "and open a new one"
        )
    if code in _DAMAGED:
        return errors.Corrupted(path, "the file ends before its contents do, or the disk calls it damaged")
    if code in _NO_SPACE or os_error in (errno.ENOSPC, errno.EDQUOT):
        return _full(path)
    return errors.Unavailable(f"{path}: the disk reports an error ({error}): see to the disk; nothing was written")


def _full(path: str) -> errors.StoreFull:
    return errors.StoreFull(
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


class Damaged(Exception):
    """A value in the file cannot have been written by us; whoever reads is told where it lies."""


def whole(value: Any) -> int:
    """A number, which none of ours is below zero."""
    if type(value) is not int or value < 0:
        raise Damaged("a number")
    return value


def text(value: Any) -> str:
    """A text."""
    if type(value) is not str:
        raise Damaged("a text")
    return value


def raw(value: Any) -> bytes:
    """Bytes."""
    if type(value) is not bytes:
        raise Damaged("a sequence of bytes")
    return value


def names(stored: Any) -> tuple[str, ...]:
    """A list of texts, stored as JSON."""
    return tuple(text(name) for name in _list(stored))


def spans(stored: Any) -> tuple[Span, ...]:
    """A list of spans, stored as JSON."""
    found: list[Span] = []
    for value in _list(stored):
        if not isinstance(value, list) or len(cast("list[Any]", value)) != 3:
            raise Damaged("the reference of an artifact")
        found.append(Span(*map(whole, cast("list[Any]", value))))
    return tuple(found)


def _list(stored: Any) -> list[Any]:
    if not text(stored):
        return []
    try:
        found = json.loads(stored)
    except ValueError as error:
        raise Damaged("a list") from error
    if not isinstance(found, list):
        raise Damaged("a list")
    return cast("list[Any]", found)


def lease_of(holder: Any, token: Any, until: Any, span: Any, boot: Any) -> StoredLease:
    """A lease from its five columns."""
    if (
        type(holder) is str and type(token) is int and type(until) is int
        and type(span) is int and type(boot) is str and token >= 0 and span >= 0
    ):  # fmt: skip
        return StoredLease(holder, token, until, span, boot)
    raise Damaged("a lease")
