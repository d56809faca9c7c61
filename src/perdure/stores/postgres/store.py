"""The PostgreSQL store: any number of processes on any number of machines. Each change is one statement."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from perdure import model
from perdure.errors import OutcomeUnknown, StoreFull
from perdure.links.postgres import Clash, Link, Rows, Time, packed, place_of, unpacked
from perdure.stores import rules
from perdure.stores.listing import Asked
from perdure.stores.postgres import rows
from perdure.stores.postgres.live import PostgresLive
from perdure.stores.postgres.tables import ENOUGH, JUMP, Table, clean, new_epoch, open_schema, settle, tables
from perdure.system import faults
from perdure.system.lease_holders import busy, is_dead

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Unpack

    from perdure.errors import PerdureError
    from perdure.links.postgres import Connection
    from perdure.protocols import Clock, Wanted
    from perdure.stores.listing import Count
    from perdure.stores.postgres.board import PostgresBoard

T = TypeVar("T")
Ask = Callable[..., Rows]
"""Asks a statement with its values: through the handle, or inside a transaction."""

BATCH = 512
"""Commits in one transaction at most."""
DELETED_AT_ONCE = 5_000
"""Rows that are deleted in the transaction that says so; more than that follow bit by bit."""
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
        self._time = Time(clock)
        schema = opened.schema
        self._session = (
            "select s.id, s.owner, s.status, s.created, s.updated, s.expires, s.reason, s.lines, s.holder, s.token,"
            " s.until - now.mono, now.wall, s.line, s.step, s.head, s.agent, s.error, s.label,"
            f" (select count(*) from {schema}.perdure_inbox i where i.no = s.no and i.taken is null),"
            f" {schema}.perdure_posts(s.no, s.posts),"
            " (select jsonb_agg(jsonb_build_array(b.name, b.line, b.step, encode(b.head, 'hex')))"
            f"  from {schema}.perdure_branch b where b.no = s.no)"
            f" from {schema}.perdure_session s, (select coalesce(%s, w) as wall, coalesce(%s, w) as mono"
            f" from (select {schema}.perdure_now() as w) as n) as now"
        )
        self._dead = 0
        self._timeline = opened.timeline
        """The one that the handle's epoch belongs to."""
        numbers = ", ".join(f"${n}" for n in range(1, 30))
        self._one = f"select * from {schema}.perdure_append_one({numbers})"
        self._many = f"select * from {schema}.perdure_append(%s{', %s' * 28})"

    def _write(self, what: str, work: Callable[[Connection], T], *, whole: bool = True) -> T:
        """Change something; when the server turns out to have been promoted, the store gets a new epoch first."""

        def do(connection: Connection) -> T:
            while True:
                try:
                    return work(connection)
                except rows.Promoted:
                    _, self.epoch, self._timeline = settle(connection, self.schema)

        if faults.hook is not None:
            faults.point(f"postgres.{what}.before_send")
        result = self._link.do(what, do, whole=whole)
        if faults.hook is not None:
            faults.point(f"postgres.{what}.after_send")
        return result

    def live(self) -> PostgresLive:
        """Carries pieces of answers on their way, in a table that no log is written for."""
        return PostgresLive(self._link, self.schema)

    def has_board(self) -> bool:
        """Whether the board of a fleet was made."""
        from perdure.stores.postgres.board import version

        return self._read("board", lambda connection: version(connection, self.schema)) > 0

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
                return self._write("append", lambda connection: self._append(connection, items), whole=len(items) == 1)
            except OutcomeUnknown as error:
                return [OutcomeUnknown(f"commit {item.id.hex()}: {error}", item.id) for item in items]

        return rules.append_batch(batch, BATCH, transact, PASSING)

    def _append(self, connection: Connection, items: Sequence[model.Append]) -> list[model.Landed | PerdureError]:
        dead: list[int] = []
        while True:
            if len(items) == 1:
                found = [self._append_one(connection, items[0], dead)]
            else:
                found = self._append_many(connection, items, dead)
            if found[0][0] == "p":
                raise rows.Promoted
            # A lease whose holder is certainly dead counts as free: said to the server, and asked once more. What
            # landed meanwhile is known by its id.
            gone = {row[5] for row in found if row[0] == "b" and is_dead(unpacked(row[4]))}
            if gone <= set(dead):
                return [rows.answer_of(item, row) for item, row in zip(items, found, strict=True)]
            dead += sorted(gone)

    def _append_one(self, connection: Connection, item: model.Append, dead: list[int]) -> tuple[Any, ...]:
        """One commit the short way: what every agent waits for after every step."""
        wall, mono = self._time.now()
        holders = "{" + ",".join(map(str, dead)) + "}"
        values = (self._timeline, wall, mono, holders, *rows.values_of(item))
        result = connection.ask_raw(self._one, list(map(rows.encoded, values)), rows.FORMATS)
        code, line, step, id, detail, number, until = (result.get_value(0, column) for column in range(7))
        return (
            (code or b"").decode(), line and int(line), step and int(step), id and bytes.fromhex(id[2:].decode()),
            (detail or b"").decode(), number and int(number), until and int(until),
        )  # fmt: skip

    def _append_many(self, connection: Connection, items: Sequence[model.Append], dead: list[int]) -> Rows:
        columns = map(list, zip(*map(rows.values_of, items), strict=True))
        return connection.ask(self._many, (self._timeline, *self._time.now(), dead, *columns))

    def post(self, entries: Sequence[model.InboxEntry]) -> list[bool | model.Outrun | PerdureError]:
        """Put entries into inboxes, in one transaction; one by one when that fails."""

        def transact(entries: Sequence[model.InboxEntry]) -> list[bool | model.Outrun | PerdureError]:
            whole = len(entries) <= 1
            return self._write("post", lambda connection: self._post(connection, entries), whole=whole)

        return rules.post_batch(entries, transact, PASSING)

    def _post(
        self, connection: Connection, entries: Sequence[model.InboxEntry]
    ) -> list[bool | model.Outrun | PerdureError]:
        if not entries:
            return []
        # In the order of sessions: two that post to several must not wait for each other.
        placed = sorted(enumerate(entries), key=lambda pair: pair[1].session)
        values = [(packed(e.session), packed(e.key), packed(e.kind), *e[3:7]) for _, e in placed]
        columns = list(map(list, zip(*values, strict=True)))
        sql = f"select code, number from {self.schema}.perdure_post(%s{', %s' * 8})"
        found = connection.ask(sql, (self._timeline, self._time.now()[0], *columns))
        if found[0][0] == "p":
            raise rows.Promoted
        answers: dict[int, bool | model.Outrun | PerdureError] = {}
        for (place, entry), (code, number) in zip(placed, found, strict=True):
            answers[place] = code == "new"
            if code == "other":
                answers[place] = rules.other_post(entry.session, entry.key)
            elif code == "outrun":
                answers[place] = model.Outrun(number)
        return [answers[place] for place in range(len(entries))]

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
        return rows.session_row(found[0]) if found else None

    def starts(self, session: str, branch: str | None) -> list[model.Row]:
        """The first rows of all lines of a branch (None: of all branches)."""
        found = self._ask(
            "starts",
            f"select {rows.of('r', rows.ROW)} from {self.schema}.perdure_row r"
            f" join {self.schema}.perdure_session s on s.no = r.no"
            " where s.id = %s and r.starts and (%s::text is null or r.branch = %s) order by r.line",
            (packed(session), *([None if branch is None else packed(branch)] * 2)),
        )
        return [model.Row(*values) for values in found]

    def load(self, session: str, line: int, step: int | None = None, *, refs: bool = True) -> model.Bundle:
        """What is needed to rebuild a line at a step (None: its last)."""
        sql = f"select * from {self.schema}.perdure_load(%s, %s, %s, %s)"
        return rows.bundle_of(self._ask("load", sql, (packed(session), line, step, refs)), session, line, step)

    def slice(self, session: str, line: int, lo: int, hi: int) -> model.Bundle:
        """Rows lo..hi of a line, with the packs that hold the thin ones."""
        sql = f"select * from {self.schema}.perdure_slice(%s, %s, %s, %s)"
        return rows.bundle_of(self._ask("slice", sql, (packed(session), line, lo, hi)), session, line, None)

    def artifacts(self, session: str) -> list[model.Artifact]:
        """All artifacts of a session."""
        return self._artifacts(partial(self._ask, "artifacts"), session)

    def _artifacts(self, ask: Ask, session: str) -> list[model.Artifact]:
        found = ask(
            f"select a.kind, a.line, a.lo, a.hi, a.body, a.refs, a.blobs from {self.schema}.perdure_artifact a"
            f" join {self.schema}.perdure_session s on s.no = a.no where s.id = %s order by a.kind, a.line, a.lo",
            (packed(session),),
        )
        return [rows.artifact_of(*values) for values in found]

    def sessions(self, **wanted: Unpack[Wanted]) -> list[model.SessionRow]:
        """Sessions in order of id, or the newest first, without tombstones."""
        asked = Asked(**wanted)
        tests, values, order = asked.sql("s.", "%s", "strpos", "now.wall", packed)
        sql = f"{self._session} where {' and '.join(tests)}"
        found = self._ask("sessions", f"{sql} order by {order} limit %s", (*self._time.now(), *values, asked.limit))
        return [rows.session_row(values) for values in found]

    def counts(self) -> list[Count]:
        """How many sessions there are by status, agent and error."""
        found = self._ask(
            "counts",
            f"select status, agent, error, count(*) from {self.schema}.perdure_session where reason = ''"
            " and strpos(id, %s) <> 1 group by 1, 2, 3"
            ' order by status collate "C", agent collate "C", error collate "C"',
            (model.ASIDE,),
        )
        return [(unpacked(status), unpacked(agent), unpacked(error), number) for status, agent, error, number in found]

    def changes(self, after: str | None = None, limit: int = 1000) -> model.ChangePage:
        """Commits after a cursor."""
        cursor = rows.parse(after)
        while True:
            sql = (
                f"select * from {self.schema}.perdure_changes(%s::text::pg_snapshot, %s::text::pg_snapshot,"
                " %s::text::xid8, %s, %s)"
            )
            (first, *found) = self._ask("changes", sql, (*cursor[1:], limit))
            epoch, snapshot, lost = first[0], first[1], first[9]
            if after is not None and cursor.epoch != epoch:
                raise rules.other_past()
            if lost:
                raise rules.missed()
            if len(found) == limit:
                pos, seq = found[-1][8:]
                return model.ChangePage(rows.changes_of(found), str(rows.Cursor(epoch, cursor.old, snapshot, pos, seq)))
            # That was the way up to this snapshot; when it ended just here, there may be more by now.
            was_last = not found and cursor.new is not None
            cursor = rows.Cursor(epoch, snapshot)
            if not was_last:
                return model.ChangePage(rows.changes_of(found), str(cursor))

    def blob_refs(self) -> Iterator[str]:
        """Every blob that any row or artifact refers to."""
        # Rows in pages. Artifacts come after them: what maintenance moves meanwhile goes from rows to artifacts.
        session = f"join {self.schema}.perdure_session s on s.no ="
        blobs_of = f"select r.seq, r.blobs from {self.schema}.perdure_row r {session} r.no where r.blobs is not null"
        after = 0
        while found := self._ask("blobs", f"{blobs_of} and r.seq > %s order by r.seq limit 1000", (after,)):
            after = found[-1][0]
            yield from (unpacked(ref) for _, blobs in found for ref in blobs)
        # At one instant: refs may move from one artifact to another.
        artifacts = f"select a.blobs from {self.schema}.perdure_artifact a {session} a.no where a.blobs is not null"
        yield from (unpacked(ref) for (blobs,) in self._ask("blobs", artifacts) for ref in blobs)

    # -- leases ------------------------------------------------------------------------------------

    def acquire(self, session: str, holder: str, ttl: int) -> model.Lease:
        """Take the lease for ``ttl`` ms, or raise ``Busy``."""
        claim = rows.new_claim()

        def ask(connection: Connection) -> model.Lease:
            sql = f"select * from {self.schema}.perdure_acquire(%s{', %s' * 7})"
            values = (claim, packed(session), packed(holder), ttl)
            _, number, until = self._fenced(connection, sql, values, session)
            return model.Lease(session, holder, number, until)

        return self._write("acquire", ask)

    def _fenced(self, connection: Connection, sql: str, values: tuple[Any, ...], session: str) -> tuple[Any, ...]:
        """Ask for something that a living lease forbids; a dead holder's does not."""
        dead: list[int] = []
        while True:
            ((code, *rest),) = connection.ask(sql, (self._timeline, *self._time.now(), dead, *values))
            match code:
                case "p":
                    raise rows.Promoted
                case "n":
                    raise rules.no_session(session)
                case "f":
                    raise rules.lease_lost(session)
                case "b":
                    detail, number, until = rest
                    if number in dead or not is_dead(unpacked(detail)):
                        raise busy(session, unpacked(detail), until)
                    dead.append(number)
                case _:
                    return tuple(rest)

    def renew(self, leases: Sequence[model.Lease], ttl: int) -> list[bool]:
        """Extend leases; False where the token is no longer the current one."""
        self._link.check()
        if not leases:
            return []

        def ask(connection: Connection) -> list[bool]:
            sessions, tokens = [packed(lease.session) for lease in leases], [lease.token for lease in leases]
            sql = f"select session, token from {self.schema}.perdure_renew(%s, %s, %s, %s, %s)"
            found = connection.ask(sql, (self._timeline, self._time.now()[1], ttl, sessions, tokens))
            if found and found[0][0] is None:
                raise rows.Promoted
            return [pair in found for pair in zip(sessions, tokens, strict=True)]

        return self._write("renew", ask)

    def release(self, lease: model.Lease) -> None:
        """Give a lease back."""
        sql, values = f"select {self.schema}.perdure_release(%s, %s)", (packed(lease.session), lease.token)
        self._write("release", lambda connection: connection.ask(sql, values))

    # -- maintenance -------------------------------------------------------------------------------

    def rewrite(self, change: model.Rewrite) -> bool:
        """Do maintenance in one transaction; False when it no longer applies."""
        claim = rows.new_claim()
        # Before and not after: by now no transaction is left that may still look at what the last call replaced.
        self._clean(0)
        done, later = self._write("rewrite", lambda connection: self._rewrite(connection, change, claim))
        if later:
            self._sweep()
        if done:
            self._dead += sum(span.hi - span.lo + 1 for span in (*change.thin, *change.drop))
        return done

    def _rewrite(self, connection: Connection, change: model.Rewrite, claim: int) -> tuple[bool, bool]:
        put = [
            (packed(a.kind), *a[1:5], rows.json_of(a.refs), rows.json_of(tuple(map(packed, a.blobs))))
            for a in change.put
        ]
        discard = [(packed(kind), line, lo) for kind, line, lo in change.discard]
        sql = f"select code from {self.schema}.perdure_rewrite(%s{', %s' * 18})"
        ((code,),) = connection.ask(
            sql,
            (
                self._timeline, self._time.now()[1], claim, packed(change.session), change.token,
                *rows.columns_of(put, 7), rows.flat(change.thin), rows.flat(change.drop), rows.flat(change.needs),
                *rows.columns_of(discard, 3), DELETED_AT_ONCE,
            ),
        )  # fmt: skip
        match code:
            case "p":
                raise rows.Promoted
            case "f":
                raise rules.lease_lost(change.session)
            case _:
                return code != "x", code == "l"

    def drop(self, session: str, token: int | None, reason: str, *, keep_waiting: bool = False) -> None:
        """Delete a session and leave a tombstone; it is gone at once, and its rows bit by bit."""
        sql = f"select * from {self.schema}.perdure_drop(%s{', %s' * 9})"
        status, why = rules.status_of_gone(reason), packed(reason or "deleted")
        values = (rows.new_claim(), packed(session), token, status, why, keep_waiting)
        self._write("drop", lambda connection: self._fenced(connection, sql, values, session))
        self._sweep()

    def _sweep(self) -> None:
        """Delete what nobody needs, in short transactions between which others can work."""
        while (deleted := self._write("sweep", self._sweep_some)) >= 0:
            self._clean(deleted)

    def _sweep_some(self, connection: Connection) -> int:
        """Delete some rows that nobody needs, and say how many; -1 when there are none."""
        ((done,),) = connection.ask(f"select {self.schema}.perdure_sweep(%s)", (DELETED_AT_ONCE,))
        return done

    def _clean(self, dead: int) -> None:
        """Note that rows died, and make their room free again once there are enough of them."""
        self._dead += dead
        # Read and written by several threads without a lock: it need not be exact.
        if self._dead >= ENOUGH and self._write("clean", partial(clean, schema=self.schema, dead=self._dead)):
            self._dead = 0

    def dump(self, session: str) -> model.Dump:
        """A whole session as stored, at one instant."""

        def ask(connection: Connection) -> model.Dump:
            connection.run("begin isolation level repeatable read read only")
            try:
                row = self._look(connection.ask, session)
                if row is None:
                    raise rules.no_session(session)
                if row.reason:
                    raise rules.gone(session, row.reason)
                found = connection.ask(
                    f"select {rows.of('r', rows.ROW)}, {rows.of('r', rows.SHOWN)} from {self.schema}.perdure_row r"
                    f" join {self.schema}.perdure_session s on s.no = r.no where s.id = %s order by r.pos, r.seq",
                    (packed(session),),
                )
                entries = self._entries(connection.ask, session, "true order by i.seq", ())
                artifacts = self._artifacts(connection.ask, session)
            finally:
                if not connection.closed:
                    connection.run("rollback")
            kept = tuple((model.Row(*values[:6]), rows.shown_of(values[6:])) for values in found)
            return model.Dump(row._replace(now=0), kept, tuple(artifacts), tuple(entries))

        return self._read("dump", ask)

    def restore(self, dump: model.Dump) -> None:
        """Put a dumped session into this store."""
        self._link.check()
        restored, claim, wall = rows.restored_rows(dump), rows.new_claim(), self._time.now()[0]
        self._write(
            "restore", lambda connection: rows.insert_dump(connection, self.schema, dump, restored, claim, wall)
        )

    def renew_epoch(self) -> None:
        """Give the store a new epoch: cursors expire and every lease ends."""
        epoch = new_epoch()
        sql = f"select {self.schema}.perdure_renew_epoch(%s, '', %s, %s)"
        self._write("renew_epoch", lambda connection: connection.ask(sql, (epoch, self._timeline, JUMP)))
        self.epoch = epoch

    def usage(self) -> model.Usage:
        """Sizes; bytes are those of what is kept, without indexes and room that was freed: see ``bloat``."""
        ((sessions, checkpoints, size),) = self._ask(
            "usage",
            "select count(*) filter (where reason = ''), coalesce(sum(rows), 0)::bigint,"
            f" coalesce(sum(bytes), 0)::bigint from {self.schema}.perdure_session",
        )
        return model.Usage(sessions, checkpoints, size)

    def bloat(self) -> list[Table]:
        """Each table with its sizes on disk, rows and dead rows, as far as the server's statistics know."""
        return self._read("bloat", partial(tables, schema=self.schema))

    def query(self, sql: str, *, limit: int = 1000, seconds: float = 30.0) -> rows.Answer:
        """Ask one question in SQL; see the views ``perdure_sessions``, ``_steps``, ``_effects`` and ``_approvals``."""
        return self._read("query", partial(rows.query, schema=self.schema, sql=sql, limit=limit, seconds=seconds))

    def close(self) -> None:
        """Close all connections."""
        self._link.close()
