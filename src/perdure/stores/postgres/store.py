"""The PostgreSQL store: any number of processes on any number of machines. The handle; its parts lie beside it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from perdure.errors import OutcomeUnknown, StoreFull
from perdure.links.postgres import Link, Time, place_of
from perdure.links.postgres_errors import Clash
from perdure.model import Usage
from perdure.stores import batches
from perdure.stores.listing import Asked
from perdure.stores.postgres.live import PostgresLive
from perdure.stores.postgres.read import Answer, Reader, query
from perdure.stores.postgres.tables import ENOUGH, JUMP, Table, clean, new_epoch, open_schema, settle, tables
from perdure.stores.postgres.write import Promoted, Writer, new_claim, restored_rows
from perdure.system import faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Unpack

    from perdure.errors import PerdureError
    from perdure.links.postgres import Connection
    from perdure.model import (
        Append,
        Artifact,
        Bundle,
        ChangePage,
        Dump,
        InboxEntry,
        Landed,
        Lease,
        Rewrite,
        Row,
        SessionRow,
    )
    from perdure.protocols import Clock
    from perdure.stores.listing import Count, Wanted
    from perdure.stores.postgres.board import PostgresBoard

T = TypeVar("T")

BATCH = 512
"""Commits in one transaction at most."""
PASSING = (StoreFull, Clash)
"""What ends the transaction of one item and leaves the others a chance."""


class PostgresStore:
    """Implements :class:`perdure.protocols.Store` in one schema of a PostgreSQL database.

    The URL's parameter ``schema`` names it (else it is the connection's current one); ``pgbouncer=true`` says that
    PgBouncer is in between, where that is not seen by itself. Without ``create`` no tables are made. ``pool`` is how
    many connections the handle makes at most; ``patience`` for how many seconds a lost connection is made again
    before an error is told; ``timeout`` how many seconds it waits for the answer to one statement.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        create: bool = True,
        pool: int = 8,
        patience: float = 10.0,
        timeout: float = 20.0,
    ) -> None:
        place = place_of(url)
        self.url = place.url
        self._link = Link(place, size=pool, patience=patience, timeout=timeout)
        try:
            opened = self._link.do("open", partial(open_schema, wanted=place.schema, url=place.url, create=create))
        except BaseException:
            self._link.close()
            raise
        self.schema = opened.schema
        self.id = opened.id
        self.epoch = opened.epoch
        self.promise = opened.promise
        time = self._time = Time(clock)
        self._reader = Reader(opened.schema, time)
        self._dead = 0
        self._writer = Writer(opened.schema, time, opened.timeline)

    def _write(self, what: str, work: Callable[[Connection], T], *, whole: bool = True) -> T:
        """Change something; when the server turns out to have been promoted, the store gets a new epoch first."""

        def do(connection: Connection) -> T:
            while True:
                try:
                    return work(connection)
                except Promoted:
                    _, self.epoch, self._writer.timeline = settle(connection, self.schema)

        if faults.hook is not None:
            faults.point(f"postgres.{what}.before_send")
        result = self._link.do(what, do, whole=whole)
        if faults.hook is not None:
            faults.point(f"postgres.{what}.after_send")
        return result

    def live(self) -> PostgresLive:
        """Carries pieces of answers on their way, in a table that no log is written for."""
        return PostgresLive(self._link, self.schema)

    def board(self) -> PostgresBoard:
        """The board of a fleet, in tables beside the store's own, which are made when it is first asked for."""
        from perdure.stores.postgres.board import PostgresBoard

        return PostgresBoard(self._link, self.schema, self._time)

    def _read(self, what: str, work: Callable[[Connection], T]) -> T:
        return self._link.do(what, work, writes=False)

    # -- commits and inbox -------------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> list[Landed | PerdureError]:
        """Make a batch durable in as few transactions as possible; see the protocol for the rules."""
        self._link.check()

        def transact(items: Sequence[Append]) -> list[Landed | PerdureError]:
            try:
                return self._write(
                    "append", lambda connection: self._writer.append(connection, items), whole=len(items) == 1
                )
            except OutcomeUnknown as error:
                return [OutcomeUnknown(f"commit {item.id.hex()}: {error}", item.id) for item in items]

        return batches.append(batch, BATCH, transact, PASSING)

    def post(self, entries: Sequence[InboxEntry]) -> list[bool | PerdureError]:
        """Put entries into inboxes, in one transaction; one by one when that fails."""

        def transact(entries: Sequence[InboxEntry]) -> list[bool | PerdureError]:
            whole = len(entries) <= 1
            return self._write("post", lambda connection: self._writer.post(connection, entries), whole=whole)

        return batches.post(entries, transact, PASSING)

    def inbox(self, session: str, limit: int = 100, key: str | None = None) -> list[InboxEntry]:
        """Waiting entries in order of arrival; with ``key`` only the one of that key."""
        return self._read("inbox", lambda connection: self._reader.inbox(connection, session, limit, key))

    # -- looking -----------------------------------------------------------------------------------

    def look(self, session: str) -> SessionRow | None:
        """What is known of a session, a tombstone included."""
        return self._read("look", lambda connection: self._reader.look(connection, session))

    def starts(self, session: str, branch: str | None) -> list[Row]:
        """The first rows of all lines of a branch (None: of all branches)."""
        return self._read("starts", lambda connection: self._reader.starts(connection, session, branch))

    def load(self, session: str, line: int, step: int | None = None, *, refs: bool = True) -> Bundle:
        """What is needed to rebuild a line at a step (None: its last)."""
        return self._read("load", lambda connection: self._reader.load(connection, session, line, step, refs=refs))

    def slice(self, session: str, line: int, lo: int, hi: int) -> Bundle:
        """Rows lo..hi of a line, with the packs that hold the thin ones."""
        return self._read("slice", lambda connection: self._reader.slice(connection, session, line, lo, hi))

    def artifacts(self, session: str) -> list[Artifact]:
        """All artifacts of a session."""
        return self._read("artifacts", lambda connection: self._reader.artifacts(connection, session))

    def sessions(self, **wanted: Unpack[Wanted]) -> list[SessionRow]:
        """Sessions in order of id, or the newest first, without tombstones."""
        return self._read("sessions", partial(self._reader.sessions, asked=Asked(**wanted)))

    def counts(self) -> list[Count]:
        """How many sessions there are by status, agent and error."""
        return self._read("counts", self._reader.counts)

    def changes(self, after: str | None = None, limit: int = 1000) -> ChangePage:
        """Commits after a cursor."""
        return self._read("changes", lambda connection: self._reader.changes(connection, after, limit))

    def blob_refs(self) -> Iterator[str]:
        """Every blob that any row or artifact refers to."""
        # Rows in pages. Artifacts come after them: what maintenance moves meanwhile goes from rows to artifacts.
        after: int | None = 0
        while after is not None:
            refs, after = self._read("blobs", partial(self._reader.blob_page, after=after, limit=1000))
            yield from refs
        yield from self._read("blobs", self._reader.artifact_blobs)

    # -- leases ------------------------------------------------------------------------------------

    def acquire(self, session: str, holder: str, ttl: int) -> Lease:
        """Take the lease for ``ttl`` ms, or raise ``Busy``."""
        claim = new_claim()
        return self._write("acquire", lambda connection: self._writer.acquire(connection, session, holder, ttl, claim))

    def renew(self, leases: Sequence[Lease], ttl: int) -> list[bool]:
        """Extend leases; False where the token is no longer the current one."""
        return self._write("renew", lambda connection: self._writer.renew(connection, leases, ttl))

    def release(self, lease: Lease) -> None:
        """Give a lease back."""
        self._write("release", lambda connection: self._writer.release(connection, lease))

    # -- maintenance -------------------------------------------------------------------------------

    def rewrite(self, change: Rewrite) -> bool:
        """Do maintenance in one transaction; False when it no longer applies."""
        claim = new_claim()
        # Before and not after: by now no transaction is left that may still look at what the last call replaced.
        self._clean(0)
        done, later = self._write("rewrite", lambda connection: self._writer.rewrite(connection, change, claim))
        if later:
            self._sweep()
        if done:
            self._dead += sum(span.hi - span.lo + 1 for span in (*change.thin, *change.drop))
        return done

    def drop(self, session: str, token: int | None, reason: str) -> None:
        """Delete a session and leave a tombstone; it is gone at once, and its rows bit by bit."""
        claim = new_claim()
        self._write("drop", lambda connection: self._writer.drop(connection, session, token, reason, claim))
        self._sweep()

    def _sweep(self) -> None:
        """Delete what nobody needs, in short transactions between which others can work."""
        while (deleted := self._write("sweep", self._writer.sweep)) >= 0:
            self._clean(deleted)

    def _clean(self, dead: int) -> None:
        """Note that rows died, and make their room free again once there are enough of them."""
        self._dead += dead
        # Read and written by several threads without a lock: it need not be exact.
        if self._dead >= ENOUGH and self._write("clean", partial(clean, schema=self.schema, dead=self._dead)):
            self._dead = 0

    def dump(self, session: str) -> Dump:
        """A whole session as stored, at one instant."""
        return self._read("dump", lambda connection: self._reader.dump(connection, session))

    def restore(self, dump: Dump) -> None:
        """Put a dumped session into this store."""
        self._link.check()
        rows, claim = restored_rows(dump), new_claim()
        self._write("restore", lambda connection: self._writer.restore(connection, dump, rows, claim))

    def renew_epoch(self) -> None:
        """Give the store a new epoch: cursors expire and every lease ends."""
        epoch = new_epoch()
        self._write("renew_epoch", lambda connection: self._writer.renew_epoch(connection, epoch, "", JUMP))
        self.epoch = epoch

    def usage(self) -> Usage:
        """Sizes; bytes are those of what is kept, without indexes and room that was freed: see ``bloat``."""
        return Usage(*self._read("usage", self._reader.count))

    def bloat(self) -> list[Table]:
        """Each table with its sizes on disk, rows and dead rows, as far as the server's statistics know."""
        return self._read("bloat", partial(tables, schema=self.schema))

    def query(self, sql: str, *, limit: int = 1000, seconds: float = 30.0) -> Answer:
        """Ask one question in SQL; see the views ``perdure_sessions``, ``_steps``, ``_effects`` and ``_approvals``."""
        return self._read("query", partial(query, schema=self.schema, sql=sql, limit=limit, seconds=seconds))

    def close(self) -> None:
        """Close all connections."""
        self._link.close()
