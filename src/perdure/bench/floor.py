"""The physical limit to compare with: what a plain program does to keep one JSON message, at the same durability."""

from __future__ import annotations

import json
import os
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import apsw

if TYPE_CHECKING:
    from pathlib import Path


class SqliteFloor:
    """One row per message; WAL, synchronous=FULL, everything else as SQLite has it by default."""

    def __init__(self, path: Path, messages: list[dict[str, Any]]) -> None:
        self.path = path
        self._messages = messages
        self._at = 0
        self._connection: Any = apsw.Connection(str(path))
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = full")
        self._connection.execute("create table messages (id integer primary key, body text)")

    def save(self) -> int:
        """Insert the next message; nanoseconds until it was durable."""
        message = self._messages[self._at]
        self._at += 1
        start = perf_counter_ns()
        self._connection.execute("insert into messages (body) values (?)", (json.dumps(message),))
        return perf_counter_ns() - start

    def load(self) -> list[Any]:
        """Open the database and read every message, as a program that starts would."""
        connection: Any = apsw.Connection(str(self.path))
        rows = connection.execute("select body from messages order by id")
        found = [json.loads(body) for (body,) in rows]
        touch(found)
        return [connection, found]

    def close(self) -> None:
        """Close the database."""
        self._connection.close()


class FileFloor:
    """One line per message, appended and synced."""

    def __init__(self, path: Path, messages: list[dict[str, Any]]) -> None:
        self._messages = messages
        self._at = 0
        self._sync = getattr(os, "fdatasync", os.fsync)
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def save(self) -> int:
        """Append the next message; nanoseconds until it was durable."""
        message = self._messages[self._at]
        self._at += 1
        start = perf_counter_ns()
        os.write(self._fd, json.dumps(message).encode() + b"\n")
        self._sync(self._fd)
        return perf_counter_ns() - start

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def touch(messages: Any) -> int:
    """Look at every message; returns how many characters they say."""
    return sum(len(message["content"]) for message in messages)
