"""The shop: orders, stock and a ledger in a file of its own. Nothing in it knows of Perdure.

Like a real provider it recognises a request that is repeated with the same idempotency key, and answers it with the
first receipt; a request with another key, or with none, is carried out, however often the same order was named before.
It writes down every request that reaches it, so what happened twice can be counted afterwards, order by order.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw

if TYPE_CHECKING:
    from collections.abc import Iterable

REFUND, EXCHANGE = "refund", "exchange"
EFFECTS = (REFUND, EXCHANGE)
_TABLES = """
create table if not exists orders (
  id text primary key, customer text not null, sku text not null, cents integer not null, status text not null,
  carrier text not null, eta text not null
);
create table if not exists stock (sku text primary key, count integer not null);
create table if not exists requests (n integer primary key, kind text not null, subject text not null, key text);
create table if not exists ledger (
  n integer primary key, order_id text not null, kind text not null, cents integer not null, sku text, key text,
  receipt text not null
);
create index if not exists ledger_keys on ledger (key);
"""


class Order(NamedTuple):
    """What a customer has bought."""

    id: str
    customer: str
    sku: str
    cents: int
    status: str
    carrier: str
    eta: str


class Entry(NamedTuple):
    """Money given back, or an article sent out."""

    order: str
    kind: str
    cents: int
    key: str | None


class Unknown(LookupError):
    """The shop has no such order or article; nothing was done."""


class Shop:
    """The shop in one file; any number of processes may have it open."""

    def __init__(self, path: str) -> None:
        self._db: Any = apsw.Connection(path)
        self._db.set_busy_timeout(60_000)
        # A kill of any process takes nothing from this file; only a loss of power could, and none is played here.
        for pragma in ("journal_mode = wal", "synchronous = normal"):
            self._db.execute(f"pragma {pragma}")
        self._db.execute(_TABLES)
        self._lock = threading.Lock()

    def stock_up(self, orders: Iterable[Order], stock: dict[str, int]) -> None:
        """Begin the night."""
        with self._lock, self._db:
            self._db.executemany("insert into orders values (?, ?, ?, ?, ?, ?, ?)", list(orders))
            self._db.executemany("insert into stock values (?, ?)", list(stock.items()))

    # -- what the desk asks ---------------------------------------------------------------------------------------

    def order(self, order: str) -> dict[str, Any]:
        """Where an order is."""
        with self._lock, self._db:
            self._note("order", order, None)
            found = self._order(order)
        shown = found._asdict()
        del shown["customer"], shown["cents"]
        return {**shown, "amount": found.cents / 100}

    def stock(self, sku: str) -> int:
        """How many there are."""
        with self._lock, self._db:
            self._note("stock", sku, None)
            return self._count(sku)

    def refund(self, order: str, amount: float, key: str | None = None) -> dict[str, Any]:
        """Give money back."""
        return self._carry_out(REFUND, order, round(amount * 100), None, key)

    def exchange(self, order: str, sku: str, key: str | None = None) -> dict[str, Any]:
        """Send another article out in exchange."""
        return self._carry_out(EXCHANGE, order, 0, sku, key)

    def _carry_out(self, kind: str, order: str, cents: int, sku: str | None, key: str | None) -> dict[str, Any]:
        with self._lock:
            # Written at once, so that a second request with the same key waits for the first.
            self._db.execute("begin immediate")
            try:
                self._note(kind, order, key)
                receipt = self._known(key) or self._enter(kind, order, cents, sku, key)
            except BaseException:
                self._db.execute("rollback")
                raise
            self._db.execute("commit")
        return receipt

    def _known(self, key: str | None) -> dict[str, Any] | None:
        if key is None:
            return None
        row = self._row("select receipt from ledger where key = ?", (key,))
        return None if row is None else json.loads(row[0])

    def _enter(self, kind: str, order: str, cents: int, sku: str | None, key: str | None) -> dict[str, Any]:
        self._order(order)
        number = self._row("select count(*) from ledger", ())[0] + 1
        receipt: dict[str, Any] = {"receipt": f"{kind[0].upper()}{number:06}", "order": order}
        if sku is not None:
            if self._count(sku) < 1:
                raise Unknown(f"{sku} is sold out")
            self._db.execute("update stock set count = count - 1 where sku = ?", (sku,))
            receipt["sent"] = sku
        else:
            receipt["refunded"] = cents / 100
        self._db.execute(
            "insert into ledger (order_id, kind, cents, sku, key, receipt) values (?, ?, ?, ?, ?, ?)",
            (order, kind, cents, sku, key, json.dumps(receipt)),
        )
        return receipt

    def _order(self, order: str) -> Order:
        row = self._row("select * from orders where id = ?", (order,))
        if row is None:
            raise Unknown(f"there is no order {order}")
        return Order(*row)

    def _count(self, sku: str) -> int:
        row = self._row("select count from stock where sku = ?", (sku,))
        if row is None:
            raise Unknown(f"there is no article {sku}")
        return row[0]

    def _note(self, kind: str, subject: str, key: str | None) -> None:
        self._db.execute("insert into requests (kind, subject, key) values (?, ?, ?)", (kind, subject, key))

    def _row(self, sql: str, values: tuple[Any, ...]) -> Any:
        return next(iter(self._db.execute(sql, values)), None)

    # -- what an auditor asks -------------------------------------------------------------------------------------

    def ledger(self) -> list[Entry]:
        """Everything that was carried out, oldest first."""
        with self._lock:
            return [Entry(*row) for row in self._db.execute("select order_id, kind, cents, key from ledger order by n")]

    def requests(self) -> dict[str, int]:
        """How many requests reached the shop, by kind."""
        with self._lock:
            return dict(self._db.execute("select kind, count(*) from requests group by kind"))

    def left(self) -> dict[str, int]:
        """What is in stock now."""
        with self._lock:
            return dict(self._db.execute("select sku, count from stock"))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()
