"""A tiny payment provider with a ledger of its own. Nothing in it knows of Perdure.

Like real providers it remembers the idempotency key of a request and answers a repeated one with the first receipt.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import apsw


class Books(NamedTuple):
    """What the bank has seen."""

    requests: int
    charges: int
    orders: int
    """Different orders that were charged; fewer than charges means that somebody paid twice."""
    total: int


class Bank:
    """The ledger in one file."""

    def __init__(self, path: str) -> None:
        self._db: Any = apsw.Connection(path)
        self._db.set_busy_timeout(10_000)
        self._db.execute(
            "create table if not exists charges (key text primary key, item text, amount integer);"
            "create table if not exists requests (key text)"
        )

    def charge(self, key: str, item: str, amount: int) -> str:
        """Take the money, once per key; the answer is the receipt."""
        with self._db:
            self._db.execute("insert into requests values (?)", (key,))
            self._db.execute("insert or ignore into charges values (?, ?, ?)", (key, item, amount))
        return f"receipt for {item}: {amount}"

    def books(self) -> Books:
        """The reckoning."""
        rows: list[Any] = list(
            self._db.execute(
                "select (select count(*) from requests), count(*), count(distinct item), coalesce(sum(amount), 0)"
                " from charges"
            )
        )
        return Books(*rows[0])

    def close(self) -> None:
        """Close the file."""
        self._db.close()
