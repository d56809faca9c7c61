"""The SQLite store: one file, any number of processes on one machine. The handle; its parts lie beside it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from perdure.errors import InvalidInput
from perdure.model import Lease, Promise, Usage
from perdure.stores import batches
from perdure.stores.lease_clock import LeaseJudge
from perdure.stores.listing import Asked
from perdure.stores.live import FolderLive
from perdure.stores.sqlite.file import SqliteFile
from perdure.stores.sqlite.read import Reader
from perdure.stores.sqlite.write import Writer
from perdure.system.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Unpack

    from perdure.errors import PerdureError
    from perdure.model import (
        Append,
        Artifact,
        Bundle,
        ChangePage,
        Dump,
        InboxEntry,
        Landed,
        Rewrite,
        Row,
        SessionRow,
    )
    from perdure.protocols import Clock
    from perdure.stores.listing import Count, Wanted
    from perdure.stores.sqlite.board import SqliteBoard

BATCH = 512
"""Commits in one transaction at most."""

_PROMISES = {
    "full": Promise(
        process_crash=True,
        power_loss=True,
        words=(
            "When a commit has returned it is in SQLite's log and the log was synced (synchronous=FULL): "
            "it survives the end of the process and a loss of power, as far as the disk keeps what it "
            "says it has synced."
        ),
    ),
    "normal": Promise(
        process_crash=True,
        power_loss=False,
        words=(
            "When a commit has returned it is in SQLite's log (synchronous=NORMAL): it survives the end of "
            "the process. A loss of power may take back the newest commits, all since the last checkpoint "
            "of the log; what is left is consistent."
        ),
    ),
}


class SqliteStore:
    """Implements :class:`perdure.protocols.Store` on one SQLite file.

    ``synchronous="normal"`` gives up the promise about power loss for speed; ``busy_timeout`` is how many
    seconds to wait for other processes that are writing. ``vfs`` is for tests that lose power.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        synchronous: str = "full",
        busy_timeout: float = 30.0,
        vfs: str | None = None,
    ) -> None:
        mode = synchronous.lower()
        if mode not in _PROMISES:
            raise InvalidInput(f'synchronous is "full" or "normal", not {synchronous!r}')
        self.url = f"sqlite:///{os.fspath(path)}"
        self.promise = _PROMISES[mode]
        self._clock: Clock = clock or SystemClock()
        self._file = SqliteFile(os.path.abspath(path), synchronous=mode, busy_timeout=busy_timeout, vfs=vfs)
        self._judge = LeaseJudge(self._clock)
        self._reader = Reader(self._file.path, self._judge)
        self._writer = Writer(self._clock, self._judge, self._reader)
        try:
            with self._file.read(brief=True) as cursor:
                self.id = str(self._reader.meta(cursor, "id"))
                self.epoch = str(self._reader.meta(cursor, "epoch"))
        except BaseException:
            self._file.close()
            raise

    def live(self) -> FolderLive:
        """Carries pieces of answers on their way, in a folder beside the file."""
        return FolderLive(f"{self.url.removeprefix('sqlite:///')}-live")

    def board(self) -> SqliteBoard:
        """The board of a fleet, which is made when it is first asked for."""
        from perdure.stores.sqlite.board import SqliteBoard

        return SqliteBoard(self._file, self._clock, self._judge, self._writer.number)

    # -- commits and inbox -------------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> list[Landed | PerdureError]:
        """Make a batch durable in as few transactions as possible; see the protocol for the rules."""
        self._file.check()

        def transact(items: Sequence[Append]) -> list[Landed | PerdureError]:
            return self._file.write("append", lambda cursor: self._writer.append(cursor, items), items)

        return batches.append(batch, BATCH, transact)

    def post(self, entries: Sequence[InboxEntry]) -> list[bool | PerdureError]:
        """Put entries into inboxes, in one transaction; one by one when that fails."""

        def transact(entries: Sequence[InboxEntry]) -> list[bool | PerdureError]:
            return self._file.write("post", lambda cursor: self._writer.post(cursor, entries))

        return batches.post(entries, transact)

    def inbox(self, session: str, limit: int = 100, key: str | None = None) -> list[InboxEntry]:
        """Waiting entries in order of arrival; with ``key`` only the one of that key."""
        with self._file.read() as cursor:
            return self._reader.inbox(cursor, session, limit, key)

    # -- looking -----------------------------------------------------------------------------------

    def look(self, session: str) -> SessionRow | None:
        """What is known of a session, a tombstone included."""
        with self._file.read(brief=True) as cursor:
            return self._reader.look(cursor, session)

    def starts(self, session: str, branch: str | None) -> list[Row]:
        """The first rows of all lines of a branch (None: of all branches)."""
        with self._file.read(brief=True) as cursor:
            return self._reader.starts(cursor, session, branch)

    def load(self, session: str, line: int, step: int | None = None, *, refs: bool = True) -> Bundle:
        """What is needed to rebuild a line at a step (None: its last)."""
        with self._file.read(brief=True) as cursor:
            return self._reader.load(cursor, session, line, step, refs=refs)

    def slice(self, session: str, line: int, lo: int, hi: int) -> Bundle:
        """Rows lo..hi of a line, with the packs that hold the thin ones."""
        with self._file.read() as cursor:
            return self._reader.slice(cursor, session, line, lo, hi)

    def artifacts(self, session: str) -> list[Artifact]:
        """All artifacts of a session."""
        with self._file.read() as cursor:
            return self._reader.artifacts(cursor, session)

    def sessions(self, **wanted: Unpack[Wanted]) -> list[SessionRow]:
        """Sessions in order of id, or the newest first, without tombstones."""
        with self._file.read() as cursor:
            return self._reader.sessions(cursor, Asked(**wanted))

    def counts(self) -> list[Count]:
        """How many sessions there are by status, agent and error."""
        with self._file.read() as cursor:
            return self._reader.counts(cursor)

    def changes(self, after: str | None = None, limit: int = 1000) -> ChangePage:
        """Commits after a cursor."""
        with self._file.read() as cursor:
            return self._reader.changes(cursor, after, limit)

    def blob_refs(self) -> Iterator[str]:
        """Every blob that any row or artifact refers to."""
        # Rows in pages, so that no long transaction keeps the log from being emptied. Artifacts come after
        # them: what maintenance moves meanwhile goes from rows to artifacts.
        after: int | None = 0
        while after is not None:
            with self._file.read() as cursor:
                refs, after = self._reader.blob_page(cursor, after, 1000)
            yield from refs
        with self._file.read() as cursor:
            refs = self._reader.artifact_blobs(cursor)
        yield from refs

    # -- leases ------------------------------------------------------------------------------------

    def acquire(self, session: str, holder: str, ttl: int) -> Lease:
        """Take the lease for ``ttl`` ms, or raise ``Busy``."""
        lease = self._file.write("acquire", lambda cursor: self._writer.acquire(cursor, session, holder, ttl))
        return Lease(session, holder, lease.token, self._clock.wall() + ttl)

    def renew(self, leases: Sequence[Lease], ttl: int) -> list[bool]:
        """Extend leases; False where the token is no longer the current one."""
        return self._file.write("renew", lambda cursor: self._writer.renew(cursor, leases, ttl))

    def release(self, lease: Lease) -> None:
        """Give a lease back."""
        self._file.write("release", lambda cursor: self._writer.release(cursor, lease))

    # -- maintenance -------------------------------------------------------------------------------

    def rewrite(self, change: Rewrite) -> bool:
        """Do maintenance in one transaction; False when it no longer applies."""
        done = self._file.write("rewrite", lambda cursor: self._writer.rewrite(cursor, change))
        if done and (change.thin or change.drop or change.discard):
            self._file.shrink()
        return done

    def drop(self, session: str, token: int | None, reason: str) -> None:
        """Delete a session and leave a tombstone; the file gets smaller by it."""
        self._file.write("drop", lambda cursor: self._writer.drop(cursor, session, token, reason))
        self._file.shrink()

    def dump(self, session: str) -> Dump:
        """A whole session as stored, at one instant."""
        with self._file.read() as cursor:
            return self._reader.dump(cursor, session)

    def restore(self, dump: Dump) -> None:
        """Put a dumped session into this store."""
        self._file.write("restore", lambda cursor: self._writer.restore(cursor, dump))

    def renew_epoch(self) -> None:
        """Give the store a new epoch: cursors expire and every lease ends."""
        epoch = os.urandom(8).hex()
        self._file.write("renew_epoch", lambda cursor: self._writer.renew_epoch(cursor, epoch))
        self.epoch = epoch

    def usage(self) -> Usage:
        """Sizes; bytes are those of the main file and its log."""
        with self._file.read() as cursor:
            sessions, checkpoints = self._reader.count(cursor)
        return Usage(sessions, checkpoints, self._file.size())

    def close(self) -> None:
        """Close all connections."""
        self._file.close()
