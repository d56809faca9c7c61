"""Pieces of answers on their way through PostgreSQL: a table that no log is written for and no crash survives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.stores.live import MOST

if TYPE_CHECKING:
    from perdure.links.postgres import Link


class PostgresLive:
    """Implements :class:`perdure.protocols.Live` in the table ``perdure_live``, which is made when first needed."""

    def __init__(self, link: Link, schema: str) -> None:
        self._link = link
        self._table = f"{schema}.perdure_live"
        self._there = False
        self._bytes: dict[str, int] = {}
        """What this process has said of each session."""

    def publish(self, session: str, piece: bytes) -> None:
        """Append a piece."""
        said = self._bytes.get(session, 0) + len(piece)
        if said > MOST:
            return
        self._make()
        self._link.ask("live", f"insert into {self._table} (session, body) values (%s, %s)", (session.encode(), piece))
        self._bytes[session] = said

    def poll(self, session: str, after: str) -> tuple[list[bytes], str]:
        """The pieces after a cursor, and the next one."""
        if not self._is_there():
            return [], ""
        rows = self._link.ask(
            "live",
            f"select no, body from {self._table} where session = %s and no > %s order by no limit 10000",
            (session.encode(), int(after or 0)),
            writes=False,
        )
        return [bytes(body) for _, body in rows], str(rows[-1][0]) if rows else after

    def clear(self, session: str) -> None:
        """Forget what was published."""
        self._bytes.pop(session, None)
        if self._is_there():
            self._link.ask("live", f"delete from {self._table} where session = %s", (session.encode(),))

    def _is_there(self) -> bool:
        if not self._there:
            ((found,),) = self._link.ask("live", "select to_regclass(%s) is not null", (self._table,), writes=False)
            self._there = bool(found)
        return self._there

    def _make(self) -> None:
        if not self._is_there():
            script = (
                f"create unlogged table if not exists {self._table}"
                " (no bigint generated always as identity, session bytea not null, body bytea not null);"
                f"create index if not exists perdure_live_session on {self._table} (session, no)"
            )
            self._link.do("live", lambda connection: connection.run(script))
