"""The servers that stores are measured on, and the floor on each: what a plain program does to keep one message."""

from __future__ import annotations

import importlib
import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

import perdure
from perdure.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Generator

POSTGRES, REDIS = "PERDURE_BENCH_POSTGRES", "PERDURE_BENCH_REDIS"
"""Variables that name servers; what is written there is dropped afterwards."""


class Servers(NamedTuple):
    """Where to measure: URLs without a schema or prefix."""

    postgres: str
    redis: str

    def url(self, kind: str, name: str) -> str:
        """A store of its own on the servers."""
        sep = "&" if "?" in self.postgres else "?"
        postgres = f"{self.postgres}{sep}schema=bench_{name}"
        redis = f"{self.redis}{'&' if '?' in self.redis else '?'}prefix=bench_{name}"
        return {"postgres": postgres, "redis": redis, "tiered": f"tiered:{redis},{postgres}"}[kind]


@contextmanager
def servers() -> Generator[Servers]:
    """The servers that the environment names, or those a source checkout can start for its tests."""
    if POSTGRES in os.environ and REDIS in os.environ:
        yield Servers(os.environ[POSTGRES], os.environ[REDIS])
        return
    root = Path(perdure.__file__).resolve().parents[2]
    if not (root / "tests" / "servers").is_dir():
        raise InvalidInput(f"no servers to measure on: set {POSTGRES} and {REDIS} to the URLs of empty ones")
    sys.path.insert(0, str(root))
    start: Any = importlib.import_module("tests.servers.postgres")
    keep: Any = importlib.import_module("tests.servers.valkey")
    process: Any = importlib.import_module("tests.servers.process")
    postgres = start.start_postgres()
    try:
        redis = keep.start_valkey()
        try:
            yield Servers(start.postgres_url(postgres), keep.redis_url(redis))
        finally:
            process.stop(redis)
    finally:
        process.stop(postgres)


class PostgresFloor:
    """One row per message, each in a transaction of its own; statements are prepared by the driver."""

    def __init__(self, url: str, messages: list[dict[str, Any]], name: str = "floor") -> None:
        try:
            import psycopg
        except ImportError:
            raise MissingExtra("psycopg", "postgres") from None
        self._messages = iter(messages)
        self._connection: Any = psycopg.connect(url, autocommit=True)
        self._connection.execute(f"drop table if exists bench_{name}")
        self._connection.execute(f"create table bench_{name} (id bigserial primary key, body text not null)")
        self._insert = f"insert into bench_{name} (body) values (%s)"

    def save(self) -> int:
        """Insert the next message; nanoseconds until it was durable."""
        message = next(self._messages)
        start = perf_counter_ns()
        self._connection.execute(self._insert, (json.dumps(message),))
        return perf_counter_ns() - start

    def size(self, schema: str) -> dict[str, int]:
        """Bytes of every table of a schema with its indexes, after what autovacuum would do by and by."""
        self._connection.execute("checkpoint")
        tables = self._connection.execute(
            "select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace"
            " where n.nspname = %s and c.relkind = 'r' order by 1",
            (schema,),
        ).fetchall()
        sizes: dict[str, int] = {}
        for (table,) in tables:
            self._connection.execute(f'vacuum "{schema}"."{table}"')
            row = self._connection.execute("select pg_total_relation_size(%s)", (f'"{schema}"."{table}"',)).fetchone()
            sizes[table] = row[0]
        return sizes

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class RedisFloor:
    """One key per message; the server syncs as it is told to, for both sides alike."""

    def __init__(self, url: str, messages: list[dict[str, Any]]) -> None:
        try:
            driver: Any = importlib.import_module("redis")
        except ImportError:
            raise MissingExtra("redis", "redis") from None
        self._messages = iter(messages)
        self._client: Any = driver.Redis.from_url(url)
        self._at = 0

    def save(self) -> int:
        """Set the next message; nanoseconds until it was durable."""
        message = next(self._messages)
        self._at += 1
        start = perf_counter_ns()
        self._client.set(f"floor:{self._at}", json.dumps(message))
        return perf_counter_ns() - start

    def appendfsync(self) -> str:
        """When the server syncs."""
        return self._client.config_get("appendfsync").get("appendfsync", "?")

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
