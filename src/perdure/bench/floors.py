"""Floors, and taking times against them: two things measured in turns, so that both meet the same disk or server.

A floor is the physical limit: what a plain program does to keep one JSON message at the same durability.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import apsw

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

Round = list[int]
"""Nanoseconds of one operation after the other."""


def percentile(times: Sequence[float], q: float) -> float:
    """The value below which a share ``q`` of the values lies.

    >>> percentile([4, 1, 3, 2], 0.5), percentile(range(1000), 0.99)
    (3, 990)
    """
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * q))]


def micros(times: Sequence[float], q: float = 0.5) -> float:
    """A percentile of nanoseconds, in microseconds."""
    return round(percentile(times, q) / 1000, 1)


def timed(work: Callable[[], Any]) -> int:
    """Nanoseconds a piece of work takes, started on a clean heap; its result is let go outside."""
    gc.collect()
    start = perf_counter_ns()
    result = work()
    spent = perf_counter_ns() - start
    del result
    return spent


UNSTEADY = 4.0
"""The floor's p90 / p10 from which a disk counts as unsteady: others use it, and no ratio of syncs means much."""


class Turns:
    """Times of two things that took turns, one operation each, compared block by block.

    Turns are single operations because a shared disk has fast and slow moments: in longer turns one side can get
    all the fast ones, and the ratio then compares moments instead of programs.
    """

    def __init__(self, block: int) -> None:
        self.floor: Round = []
        self.ours: Round = []
        self._block = block

    def ratios(self, start: int = 0, stop: int | None = None) -> list[float]:
        """Our p50 against the floor's, for every block of operations from ``start`` on."""
        floor, ours, size = self.floor[start:stop], self.ours[start:stop], self._block
        return [
            percentile(ours[at : at + size], 0.5) / percentile(floor[at : at + size], 0.5)
            for at in range(0, len(ours) - size + 1, size)
        ]

    def ratio(self, start: int = 0, stop: int | None = None) -> float:
        """The median of the blocks."""
        return statistics.median(self.ratios(start, stop))

    def steady(self, start: int = 0) -> bool:
        """Whether the floor took about the same time all along."""
        floor = self.floor[start:]
        return percentile(floor, 0.9) <= UNSTEADY * percentile(floor, 0.1)

    def detail(self, start: int = 0) -> dict[str, Any]:
        """What lies behind the ratio."""
        shown = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99}
        blocks = self.ratios(start)
        return {
            "floor_us": {name: micros(self.floor[start:], q) for name, q in shown.items()},
            "ours_us": {name: micros(self.ours[start:], q) for name, q in shown.items()},
            "blocks": {"p25": round(percentile(blocks, 0.25), 3), "p75": round(percentile(blocks, 0.75), 3)},
            "saves": len(self.ours) - start,
        }


def take_turns(floor: Callable[[], int], ours: Callable[[], int], count: int, block: int) -> Turns:
    """Do both ``count`` times, one after the other; who goes first changes with every turn."""
    turns = Turns(block)
    for turn in range(count):
        if turn % 2:
            turns.ours.append(ours())
            turns.floor.append(floor())
        else:
            turns.floor.append(floor())
            turns.ours.append(ours())
    return turns


class Floor:
    """What a plain program does to keep one JSON message after the other."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self._messages = iter(messages)

    def save(self) -> int:
        """Keep the next message; nanoseconds until it was durable."""
        message = next(self._messages)
        start = perf_counter_ns()
        self.keep(json.dumps(message))
        return perf_counter_ns() - start

    def keep(self, body: str) -> None:
        """Make a message durable."""
        raise NotImplementedError

    def close(self) -> None:
        """Close what it is kept in."""
        raise NotImplementedError


class SqliteFloor(Floor):
    """One row per message; WAL, synchronous=FULL, everything else as SQLite has it by default."""

    def __init__(self, path: Path, messages: list[dict[str, Any]]) -> None:
        super().__init__(messages)
        self.path = path
        self._connection: Any = apsw.Connection(str(path))
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = full")
        self._connection.execute("create table messages (id integer primary key, body text)")

    def keep(self, body: str) -> None:
        self._connection.execute("insert into messages (body) values (?)", (body,))

    def load(self) -> list[Any]:
        """Open the database and read every message, as a program that starts would."""
        connection: Any = apsw.Connection(str(self.path))
        rows = connection.execute("select body from messages order by id")
        found = [json.loads(body) for (body,) in rows]
        touch(found)
        return [connection, found]

    def close(self) -> None:
        self._connection.close()


class FileFloor(Floor):
    """One line per message, appended and synced."""

    def __init__(self, path: Path, messages: list[dict[str, Any]]) -> None:
        super().__init__(messages)
        self._sync = getattr(os, "fdatasync", os.fsync)
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def keep(self, body: str) -> None:
        os.write(self._fd, body.encode() + b"\n")
        self._sync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class PostgresFloor(Floor):
    """One row per message, each in a transaction of its own; statements are prepared by the driver."""

    def __init__(self, url: str, messages: list[dict[str, Any]], name: str = "floor") -> None:
        # Imported from there because it says what to install.
        from perdure.links.postgres import psycopg

        super().__init__(messages)
        self._connection: Any = psycopg.connect(url, autocommit=True)
        self._connection.execute(f"drop table if exists bench_{name}")
        self._connection.execute(f"create table bench_{name} (id bigserial primary key, body text not null)")
        self._insert = f"insert into bench_{name} (body) values (%s)"

    def keep(self, body: str) -> None:
        self._connection.execute(self._insert, (body,))

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
        self._connection.close()


class RedisFloor(Floor):
    """One key per message; the server syncs as it is told to, for both sides alike."""

    def __init__(self, url: str, messages: list[dict[str, Any]]) -> None:
        from perdure.links.redis import redis

        super().__init__(messages)
        driver: Any = redis
        self._client: Any = driver.Redis.from_url(url)
        self._at = 0

    def keep(self, body: str) -> None:
        self._at += 1
        self._client.set(f"floor:{self._at}", body)

    def appendfsync(self) -> str:
        """When the server syncs."""
        return self._client.config_get("appendfsync").get("appendfsync", "?")

    def close(self) -> None:
        self._client.close()


def touch(messages: Any) -> int:
    """Look at every message; returns how many characters they say."""
    return sum(len(message["content"]) for message in messages)
