"""Blobs inside a PostgreSQL database: what a ``postgresql://`` database uses unless told otherwise.

They lie in the table ``perdure_blob`` of the store's schema, which is made when the first one is put.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.blobs.content import CHUNK, WholeStreams, check_content, check_ref, check_size, checked, verified
from perdure.errors import NotFound
from perdure.links.postgres import SERVER_NOW, Link, Time, place_of, quoted
from perdure.system.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.links.postgres import Connection
    from perdure.protocols import Clock

MAX_BLOB = 64 * 1024 * 1024
"""The largest blob kept in a table, where each is held in memory as a whole by client and server."""
PAGE = 1000
LOCK = 0x5045524455524501
"""Of the transactions that make the table."""

_TABLE = """
create table {table} (
    renewed bigint not null,
    size bigint not null,
    ref text collate "C" primary key,
    body bytea not null
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
alter table {table} alter body set storage external;
"""


class PostgresBlobs(WholeStreams):
    """Implements :class:`perdure.protocols.Blobs` in a table of a PostgreSQL database."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        pool: int = 4,
        patience: float = 10.0,
        timeout: float = 60.0,
    ) -> None:
        self._place = place_of(url)
        self._url = self._place.url
        self._system = clock or SystemClock()
        self._time = Time(clock)
        self._link = Link(self._place, size=pool, patience=patience, timeout=timeout)
        self._table = ""

    def put(self, ref: str, data: bytes) -> None:
        """Make the content durable under its ref; when it is there already, and whole, renew it instead."""
        check_content(ref, data)
        check_size(data, MAX_BLOB, "PostgreSQL")
        self._link.do("put", lambda connection: self._put(connection, ref, data))

    def _put(self, connection: Connection, ref: str, data: bytes) -> None:
        table = self._found(connection) or self._make(connection)
        now = f"coalesce(%s, {SERVER_NOW})"
        # Never back in time: a clock that was set back must not make a blob look older than it is.
        renewed = connection.ask(
            f"update {table} set renewed = greatest(renewed, {now})"
            " where ref = %s and size = %s and sha256(body) = %s returning 1",
            (self._time.now()[0], ref, len(data), bytes.fromhex(ref)),
        )
        if not renewed:
            connection.ask(
                f"insert into {table} as t (ref, size, body, renewed) values (%s, %s, %s, {now}) on conflict (ref)"
                " do update set size = excluded.size, body = excluded.body,"
                " renewed = greatest(t.renewed, excluded.renewed)",
                (ref, len(data), data, self._time.now()[0]),
            )

    def get(self, ref: str) -> bytes:
        """The content, verified; ``NotFound`` when missing, ``Corrupted`` when altered."""
        check_ref(ref)
        found = self._ask("get", "select body from {table} where ref = %s", (ref,))
        if not found:
            raise self._missing(ref)
        return verified(ref, self._where(ref), found[0][0])

    def get_stream(self, ref: str) -> Iterator[bytes]:
        """The content in pieces, verified before its last one is given out."""
        check_ref(ref)
        return checked(ref, self._where(ref), self._pieces(ref))

    def _pieces(self, ref: str) -> Iterator[bytes]:
        at = 0
        while True:
            # Stored as it is, so the server reads only the part that is asked for.
            sql = "select substring(body from %s::integer for %s::integer) from {table} where ref = %s"
            found = self._ask("get", sql, (at + 1, CHUNK, ref))
            if not found:
                raise self._missing(ref)
            if found[0][0]:
                yield found[0][0]
            if len(found[0][0]) < CHUNK:
                return
            at += CHUNK

    def refs(self) -> Iterator[tuple[str, int]]:
        """All refs with the time (ms) each was last put or renewed, by the caller's own clock."""
        self._link.check()
        ahead, after = self._ahead(), ""
        while True:
            sql = "select ref, renewed from {table} where ref > %s order by ref limit %s"
            found = self._ask("refs", sql, (after, PAGE))
            for ref, renewed in found:
                yield ref, renewed - ahead
            if len(found) < PAGE:
                return
            after = found[-1][0]

    def delete(self, ref: str, unless_renewed_since: int) -> bool:
        """Delete unless it was renewed at or after that time (ms) of the caller's clock; True when deleted."""
        check_ref(ref)
        since = unless_renewed_since + self._ahead()
        # One statement: when somebody renews it at this very moment, the row is looked at again after that.
        return bool(
            self._ask("delete", "delete from {table} where ref = %s and renewed < %s returning 1", (ref, since))
        )

    def close(self) -> None:
        """Close all connections."""
        self._link.close()

    # -- the table ---------------------------------------------------------------------------------

    def _ask(self, what: str, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Ask the table; nothing is found in one that was not made yet."""

        def ask(connection: Connection) -> list[tuple[Any, ...]]:
            table = self._found(connection)
            return connection.ask(sql.format(table=table), values) if table else []

        return self._link.do(what, ask, writes=what == "delete")

    def _found(self, connection: Connection) -> str:
        """The table's name in SQL; "" while there is none."""
        if not self._table:
            ((schema, there),) = connection.ask(
                # Not by to_regclass: a connection remembers for a while that a name was nobody's.
                "select s, exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace"
                " where n.nspname = s and c.relname = 'perdure_blob')"
                " from (select coalesce(nullif(%s, ''), current_schema())) as t (s)",
                (self._place.schema,),
            )
            if not there:
                # Not written down: another thread may have made the table since we asked, and noted it.
                return ""
            self._table = f"{quoted(schema)}.perdure_blob"
        return self._table

    def _make(self, connection: Connection) -> str:
        with connection.transaction():
            connection.ask("select pg_advisory_xact_lock(%s)", (LOCK,))
            if not self._found(connection):
                schema = quoted(self._place.schema or connection.ask("select current_schema()")[0][0])
                connection.run(_TABLE.format(table=f"{schema}.perdure_blob"))
        return self._found(connection)

    def _ahead(self) -> int:
        """How far the server's clock is ahead of ours, in ms, and rather too little: then a blob looks younger."""
        if self._time.now()[0] is not None:
            return 0
        ((now,),) = self._link.ask("time", f"select {SERVER_NOW}", writes=False)
        return now - self._system.wall() - 1

    def _where(self, ref: str) -> str:
        return f"{self._url}, blob {ref}"

    def _missing(self, ref: str) -> NotFound:
        return NotFound(f"there is no blob {ref} in {self._url}")
