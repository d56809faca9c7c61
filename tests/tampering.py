"""What somebody does who can write a store and has no key: rows of inboxes, put back as they once were."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import apsw
import psycopg
import redis

from perdure.stores.file.records import Posted, State
from perdure.stores.memory.store import room_of
from tests.campaigns.tamper.frame_level import records_of, write_records
from tests.servers import postgres, valkey
from tests.servers.postgres import postgres_url
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.model import InboxEntry

RAW = ("memory", "sqlite", "file", "postgres", "redis")
"""Stores whose inboxes can be written from outside; the cold part of a tiered one is one of them."""


class Box(Protocol):
    """The inbox of one session, from outside."""

    def keep(self) -> None:
        """Remember it as it is."""
        ...

    def put_back(self) -> None:
        """Make it what it was."""
        ...

    def alter(self, key: str, /, **fields: Any) -> None:
        """Change columns of an entry."""
        ...


class _Memory:
    def __init__(self, folder: Path, session: str) -> None:
        self._sessions = room_of(url_of("memory", folder).removeprefix("memory://")).sessions
        self._session = session
        self._old: dict[str, InboxEntry] = {}

    def keep(self) -> None:
        self._old = dict(self._sessions[self._session].inbox)

    def put_back(self) -> None:
        self._sessions[self._session].inbox.update(self._old)

    def alter(self, key: str, /, **fields: Any) -> None:
        inbox = self._sessions[self._session].inbox
        inbox[key] = inbox[key]._replace(**fields)


class _Sql:
    """SQLite and PostgreSQL: the same statements but for names and marks."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._old: list[Any] = []

    def run(self, sql: str, *values: Any) -> list[Any]:
        raise NotImplementedError

    def keep(self) -> None:
        self._old = self.run("select {no}, seq, key, kind, at, digest, body, taken from {inbox} where no = {no}")

    def put_back(self) -> None:
        self.run("delete from {inbox} where no = {no}")
        for _, *values in self._old:
            self.run(
                "insert into {inbox} (no, seq, key, kind, at, digest, body, taken) values ({no}, ?, ?, ?, ?, ?, ?, ?)",
                *values,
            )

    def alter(self, key: str, /, **fields: Any) -> None:
        for name, value in fields.items():
            self.run(f"update {{inbox}} set {name} = ? where no = {{no}} and key = ?", value, key)


class _Sqlite(_Sql):
    def __init__(self, folder: Path, session: str) -> None:
        super().__init__(session)
        self._path = url_of("sqlite", folder).removeprefix("sqlite:///")

    def run(self, sql: str, *values: Any) -> list[Any]:
        no = f"(select no from sessions where id = '{self._session}')"
        connection = apsw.Connection(self._path)
        try:
            return connection.cursor().execute(sql.format(no=no, inbox="inbox"), values).fetchall()
        finally:
            connection.close()


class _Postgres(_Sql):
    def __init__(self, folder: Path, session: str) -> None:
        super().__init__(session)
        self.schema = url_of("postgres", folder).rpartition("schema=")[2]

    def run(self, sql: str, *values: Any) -> list[Any]:
        schema = self.schema
        no = f"(select no from {schema}.perdure_session where id = '{self._session}')"
        sql = sql.format(no=no, inbox=f"{schema}.perdure_inbox").replace("?", "%s")
        with psycopg.connect(postgres_url(postgres()), autocommit=True) as connection:
            cursor = connection.execute(sql.encode(), values)
            return cursor.fetchall() if cursor.description else []


class _Redis:
    def __init__(self, folder: Path, session: str) -> None:
        prefix = url_of("redis", folder).rpartition("prefix=")[2]
        self._inbox, self._waiting = f"{prefix}:i:{session}", f"{prefix}:w:{session}"
        self._client = redis.Redis(port=valkey().port)
        self._old: tuple[Any, Any] = ({}, [])

    def keep(self) -> None:
        self._old = self._client.hgetall(self._inbox), self._client.zrange(self._waiting, 0, -1, withscores=True)

    def put_back(self) -> None:
        entries, waiting = self._old
        self._client.hset(self._inbox, mapping=entries)
        self._client.zadd(self._waiting, dict(waiting))

    def alter(self, key: str, /, **fields: Any) -> None:
        raise NotImplementedError


class _File:
    def __init__(self, folder: Path, session: str) -> None:
        self._folder = Path(url_of("file", folder).removeprefix("file://"))
        self._old: list[Posted] = []

    def _logs(self) -> Iterator[Path]:
        return self._folder.rglob("log")

    def keep(self) -> None:
        (log,) = self._logs()
        self._old = [record for record in records_of(log) if isinstance(record, Posted)]

    def put_back(self) -> None:
        (log,) = self._logs()
        write_records(log, [*records_of(log), *self._old])

    def alter(self, key: str, /, **fields: Any) -> None:
        raise NotImplementedError


def box_of(kind: str, folder: Path, session: str) -> Box:
    """The inbox of a session in the store of this kind in this folder."""
    kinds: dict[str, type[Any]] = {
        "memory": _Memory, "sqlite": _Sqlite, "file": _File, "postgres": _Postgres, "redis": _Redis
    }  # fmt: skip
    return kinds[kind](folder, session)


def forge_end(kind: str, folder: Path, session: str, reason: str = "no longer needed") -> None:
    """Have a store say that a session has ended, as somebody can who has no key; its checkpoints stay if they can."""
    match kind:
        case "memory":
            room_of(url_of("memory", folder).removeprefix("memory://")).sessions[session].reason = reason
        case "sqlite":
            _Sqlite(folder, session).run("update sessions set reason = ? where no = {no}", reason)
        case "postgres" | "tiered":
            box = _Postgres(folder, session)
            box.run(f"update {box.schema}.perdure_session set reason = ? where no = {{no}}", reason)
        case "redis":
            prefix = url_of("redis", folder).rpartition("prefix=")[2]
            redis.Redis(port=valkey().port).hset(f"{prefix}:s:{session}", "reason", reason)
        case _:
            (log,) = Path(url_of("file", folder).removeprefix("file://")).rglob("log")
            end = State("", "closed", 0, 0, None, (), reason, 0, 0, 0, 0, 0)
            write_records(log, [*records_of(log), end])
