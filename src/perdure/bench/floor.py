"""The physical limit to compare with: what a plain program does to keep one JSON message, at the same durability."""

from __future__ import annotations

import json
import os
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import apsw

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.bench.timing import Round


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

    def save(self, count: int) -> Round:
        """Insert the next messages, each durable before the next."""
        spent: Round = []
        execute = self._connection.execute
        for message in self._messages[self._at : self._at + count]:
            start = perf_counter_ns()
            execute("insert into messages (body) values (?)", (json.dumps(message),))
            spent.append(perf_counter_ns() - start)
        self._at += count
        return spent

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
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def save(self, count: int) -> Round:
        """Append the next messages, each durable before the next."""
        spent: Round = []
        fd = self._fd
        sync = getattr(os, "fdatasync", os.fsync)
        for message in self._messages[self._at : self._at + count]:
            start = perf_counter_ns()
            os.write(fd, json.dumps(message).encode() + b"\n")
            sync(fd)
            spent.append(perf_counter_ns() - start)
        self._at += count
        return spent

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def touch(messages: Any) -> int:
    """Look at every message; returns how many characters they say."""
    return sum(len(message["content"]) for message in messages)
