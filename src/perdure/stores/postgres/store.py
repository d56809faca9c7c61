"""The PostgreSQL store: any number of processes on any number of machines. The handle; its parts lie beside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from perdure import model
from perdure.errors import OutcomeUnknown, StoreFull
from perdure.links.postgres import Link, Rows, Time, packed, place_of, unpacked
from perdure.links.postgres_errors import Clash
from perdure.stores import rules
from perdure.stores.listing import Asked
from perdure.stores.postgres.live import PostgresLive
from perdure.stores.postgres.read import (
    ROW,
    SHOWN,
    Answer,
    Cursor,
    artifact_of,
    bundle_of,
    changes_of,
    missed,
    of,
    other_past,
    parse,
    query,
    session_row,
    shown_of,
)
from perdure.stores.postgres.tables import ENOUGH, JUMP, Table, clean, new_epoch, open_schema, settle, tables
from perdure.stores.postgres.write import Promoted, Writer, new_claim, restored_rows
from perdure.system import faults

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Unpack

    from perdure.errors import PerdureError
    from perdure.links.postgres import Connection
    from perdure.protocols import Clock
    from perdure.stores.listing import Count, Wanted
    from perdure.stores.postgres.board import PostgresBoard

T = TypeVar("T")
Ask = Callable[..., Rows]
"""Asks a statement with its values: through the handle, or inside a transaction."""

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
        schema = opened.schema
        self._session = (
            "select s.id, s.owner, s.status, s.created, s.updated, s.expires, s.reason, s.lines, s.holder, s.token,"
            " s.until - now.mono, now.wall, s.line, s.step, s.head, s.agent, s.error,"
            f" (select count(*) from {schema}.perdure_inbox i where i.no = s.no and i.taken is null),"
            " (select jsonb_agg(jsonb_build_array(b.name, b.line, b.step, encode(b.head, 'hex')))"
            f"  from {schema}.perdure_branch b where b.no = s.no)"
            f" from {schema}.perdure_session s, (select coalesce(%s, w) as wall, coalesce(%s, w) as mono"
            f" from (select {schema}.perdure_now() as w) as n) as now"
        )
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

    def _ask(self, what: str, sql: str, values: Sequence[Any] = ()) -> Rows:
        """One statement, and thus one instant."""
        return self._link.ask(what, sql, values, writes=False)

    # -- commits and inbox -------------------------------------------------------------------------

    def append(self, batch: Sequence[model.Append]) -> list[model.Landed | PerdureError]:
        """Make a batch durable in as few transactions as possible; see the protocol for the rules."""
        self._link.check()

        def transact(items: Sequence[model.Append]) -> list[model.Landed | PerdureError]:
            try:
                return self._write(
                    "append", lambda connection: self._writer.append(connection, items), whole=len(items) == 1
                )
            except OutcomeUnknown as error:
                return [OutcomeUnknown(f"commit {item.id.hex()}: {error}", item.id) for item in items]

        return rules.append_batch(batch, BATCH, transact, PASSING)

    def post(self, entries: Sequence[model.InboxEntry]) -> list[bool | PerdureError]:
        """Put entries into inboxes, in one transaction; one by one when that fails."""

        def transact(entries: Sequence[model.InboxEntry]) -> list[bool | PerdureError]:
            whole = len(entries) <= 1
            return self._write("post", lambda connection: self._writer.post(connection, entries), whole=whole)

        return rules.post_batch(entries, transact, PASSING)

    def inbox(self, session: str, limit: int = 100, key: str | None = None) -> list[model.InboxEntry]:
        """Waiting entries in order of arrival; with ``key`` only the one of that key."""
        if key is not None:
            return self._entries(
                partial(self._ask, "inbox"), session, "i.key = %s and i.taken is null limit %s", (packed(key), limit)
            )
        return self._entries(partial(self._ask, "inbox"), session, "i.taken is null order by i.seq limit %s", (limit,))

    def _entries(self, ask: Ask, session: str, where: str, values: tuple[Any, ...]) -> list[model.InboxEntry]:
        found = ask(
            f"select i.key, i.kind, i.at, i.digest, i.body, i.seq, i.taken from {self.schema}.perdure_inbox i"
            f" join {self.schema}.perdure_session s on s.no = i.no where s.id = %s and {where}",
            (packed(session), *values),
        )
        return [
            model.InboxEntry(session, unpacked(key), unpacked(kind), at, digest, body, seq, taken or b"")
            for key, kind, at, digest, body, seq, taken in found
        ]

    # -- looking -----------------------------------------------------------------------------------

    def look(self, session: str) -> model.SessionRow | None:
        """What is known of a session, a tombstone included."""
        return self._look(partial(self._ask, "look"), session)

    def _look(self, ask: Ask, session: str) -> model.SessionRow | None:
        found = ask(f"{self._session} where s.id = %s", (*self._time.now(), packed(session)))
        return session_row(found[0]) if found else None

    def starts(self, session: str, branch: str | None) -> list[model.Row]:
        """The first rows of all lines of a branch (None: of all branches)."""
        found = self._ask(
            "starts",
            f"select {of('r', ROW)} from {self.schema}.perdure_row r"
            f" join {self.schema}.perdure_session s on s.no = r.no"
            " where s.id = %s and r.starts and (%s::text is null or r.branch = %s) order by r.line",
            (packed(session), *([None if branch is None else packed(branch)] * 2)),
        )
        return [model.Row(*values) for values in found]

    def load(self, session: str, line: int, step: int | None = None, *, refs: bool = True) -> model.Bundle:
        """What is needed to rebuild a line at a step (None: its last)."""
        sql = f"select * from {self.schema}.perdure_load(%s, %s, %s, %s)"
        return bundle_of(self._ask("load", sql, (packed(session), line, step, refs)), session, line, step)

    def slice(self, session: str, line: int, lo: int, hi: int) -> model.Bundle:
        """Rows lo..hi of a line, with the packs that hold the thin ones."""
        sql = f"select * from {self.schema}.perdure_slice(%s, %s, %s, %s)"
        return bundle_of(self._ask("slice", sql, (packed(session), line, lo, hi)), session, line, None)

    def artifacts(self, session: str) -> list[model.Artifact]:
        """All artifacts of a session."""
        return self._artifacts(partial(self._ask, "artifacts"), session)

    def _artifacts(self, ask: Ask, session: str) -> list[model.Artifact]:
        found = ask(
            f"select a.kind, a.line, a.lo, a.hi, a.body, a.refs, a.blobs from {self.schema}.perdure_artifact a"
            f" join {self.schema}.perdure_session s on s.no = a.no where s.id = %s order by a.kind, a.line, a.lo",
            (packed(session),),
        )
        return [artifact_of(*values) for values in found]

    def sessions(self, **wanted: Unpack[Wanted]) -> list[model.SessionRow]:
        """Sessions in order of id, or the newest first, without tombstones."""
        asked = Asked(**wanted)
        tests, values, order = asked.sql("s.", "%s", "strpos", packed)
        sql = " and ".join([f"{self._session} where s.reason = ''", *tests])
        found = self._ask("sessions", f"{sql} order by {order} limit %s", (*self._time.now(), *values, asked.limit))
        return [session_row(values) for values in found]

    def counts(self) -> list[Count]:
        """How many sessions there are by status, agent and error."""
        found = self._ask(
            "counts",
            f"select status, agent, error, count(*) from {self.schema}.perdure_session where reason = ''"
            ' group by 1, 2, 3 order by status collate "C", agent collate "C", error collate "C"',
        )
        return [(unpacked(status), unpacked(agent), unpacked(error), number) for status, agent, error, number in found]

    def changes(self, after: str | None = None, limit: int = 1000) -> model.ChangePage:
        """Commits after a cursor."""
        cursor = parse(after)
        while True:
            sql = (
                f"select * from {self.schema}.perdure_changes(%s::text::pg_snapshot, %s::text::pg_snapshot,"
                " %s::text::xid8, %s, %s)"
            )
            (first, *found) = self._ask("changes", sql, (*cursor[1:], limit))
            epoch, snapshot, lost = first[0], first[1], first[9]
            if after is not None and cursor.epoch != epoch:
                raise other_past()
            if lost:
                raise missed()
            if len(found) == limit:
                pos, seq = found[-1][8:]
                return model.ChangePage(changes_of(found), str(Cursor(epoch, cursor.old, snapshot, pos, seq)))
            # That was the way up to this snapshot; when it ended just here, there may be more by now.
            was_last = not found and cursor.new is not None
            cursor = Cursor(epoch, snapshot)
            if not was_last:
                return model.ChangePage(changes_of(found), str(cursor))

    def blob_refs(self) -> Iterator[str]:
        """Every blob that any row or artifact refers to."""
        # Rows in pages. Artifacts come after them: what maintenance moves meanwhile goes from rows to artifacts.
        session = f"join {self.schema}.perdure_session s on s.no ="
        rows = f"select r.seq, r.blobs from {self.schema}.perdure_row r {session} r.no where r.blobs is not null"
        after = 0
        while found := self._ask("blobs", f"{rows} and r.seq > %s order by r.seq limit 1000", (after,)):
            after = found[-1][0]
            yield from (unpacked(ref) for _, blobs in found for ref in blobs)
        # At one instant: refs may move from one artifact to another.
        artifacts = f"select a.blobs from {self.schema}.perdure_artifact a {session} a.no where a.blobs is not null"
        yield from (unpacked(ref) for (blobs,) in self._ask("blobs", artifacts) for ref in blobs)

    # -- leases ------------------------------------------------------------------------------------

    def acquire(self, session: str, holder: str, ttl: int) -> model.Lease:
        """Take the lease for ``ttl`` ms, or raise ``Busy``."""
        claim = new_claim()
        return self._write("acquire", lambda connection: self._writer.acquire(connection, session, holder, ttl, claim))

    def renew(self, leases: Sequence[model.Lease], ttl: int) -> list[bool]:
        """Extend leases; False where the token is no longer the current one."""
        return self._write("renew", lambda connection: self._writer.renew(connection, leases, ttl))

    def release(self, lease: model.Lease) -> None:
        """Give a lease back."""
        self._write("release", lambda connection: self._writer.release(connection, lease))

    # -- maintenance -------------------------------------------------------------------------------

    def rewrite(self, change: model.Rewrite) -> bool:
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

    def dump(self, session: str) -> model.Dump:
        """A whole session as stored, at one instant."""

        def read(connection: Connection) -> model.Dump:
            connection.run("begin isolation level repeatable read read only")
            try:
                row = self._look(connection.ask, session)
                if row is None:
                    raise rules.no_session(session)
                if row.reason:
                    raise rules.gone(session, row.reason)
                found = connection.ask(
                    f"select {of('r', ROW)}, {of('r', SHOWN)} from {self.schema}.perdure_row r"
                    f" join {self.schema}.perdure_session s on s.no = r.no where s.id = %s order by r.pos, r.seq",
                    (packed(session),),
                )
                entries = self._entries(connection.ask, session, "true order by i.seq", ())
                artifacts = self._artifacts(connection.ask, session)
            finally:
                if not connection.closed:
                    connection.run("rollback")
            rows = tuple((model.Row(*values[:6]), shown_of(values[6:])) for values in found)
            return model.Dump(row, rows, tuple(artifacts), tuple(entries))

        return self._read("dump", read)

    def restore(self, dump: model.Dump) -> None:
        """Put a dumped session into this store."""
        self._link.check()
        rows, claim = restored_rows(dump), new_claim()
        self._write("restore", lambda connection: self._writer.restore(connection, dump, rows, claim))

    def renew_epoch(self) -> None:
        """Give the store a new epoch: cursors expire and every lease ends."""
        epoch = new_epoch()
        self._write("renew_epoch", lambda connection: self._writer.renew_epoch(connection, epoch, "", JUMP))
        self.epoch = epoch

    def usage(self) -> model.Usage:
        """Sizes; bytes are those of what is kept, without indexes and room that was freed: see ``bloat``."""
        ((sessions, rows, size),) = self._ask(
            "usage",
            "select count(*) filter (where reason = ''), coalesce(sum(rows), 0)::bigint,"
            f" coalesce(sum(bytes), 0)::bigint from {self.schema}.perdure_session",
        )
        return model.Usage(sessions, rows, size)

    def bloat(self) -> list[Table]:
        """Each table with its sizes on disk, rows and dead rows, as far as the server's statistics know."""
        return self._read("bloat", partial(tables, schema=self.schema))

    def query(self, sql: str, *, limit: int = 1000, seconds: float = 30.0) -> Answer:
        """Ask one question in SQL; see the views ``perdure_sessions``, ``_steps``, ``_effects`` and ``_approvals``."""
        return self._read("query", partial(query, schema=self.schema, sql=sql, limit=limit, seconds=seconds))

    def close(self) -> None:
        """Close all connections."""
        self._link.close()
