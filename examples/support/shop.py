"""A small web shop in an SQLite file: articles in stock, orders on their way, each taken back or exchanged once."""

import sqlite3
from contextlib import closing
from typing import Any

ARTICLES = [("SHOE-42", "Trail shoe, size 42", 89.0, 3), ("SHOE-43", "Trail shoe, size 43", 89.0, 1),
            ("COAT-M", "Winter coat, size M", 240.0, 0), ("COAT-L", "Winter coat, size L", 240.0, 5)]  # fmt: skip
ORDERS = [("ORD-2024-8847", "user-12345", "SHOE-42", "in transit, arrives on Friday", "1Z-8847-01"),
          ("ORD-2024-8901", "user-12345", "COAT-L", "delivered", "1Z-8901-01"),
          ("ORD-2024-9000", "user-777", "SHOE-43", "delivered", "1Z-9000-01")]  # fmt: skip
SEND_BACK = "put the RMA number on the parcel and send it within 14 days"


class Shop:
    """The outside world. It knows nothing of agents."""

    def __init__(self, path: str) -> None:
        self._path = path
        with closing(self._open()) as db, db:
            db.execute(
                "CREATE TABLE IF NOT EXISTS articles (sku TEXT PRIMARY KEY, name TEXT, price REAL, stock INTEGER)"
            )
            db.execute(
                "CREATE TABLE IF NOT EXISTS orders (number TEXT PRIMARY KEY, customer, sku TEXT, status TEXT, tracking)"
            )
            db.execute(
                "CREATE TABLE IF NOT EXISTS returns (id INTEGER PRIMARY KEY, reference TEXT UNIQUE, number TEXT UNIQUE,"
                " reason TEXT, amount REAL, sent TEXT)"
            )
            db.executemany("INSERT OR IGNORE INTO articles VALUES (?, ?, ?, ?)", ARTICLES)
            db.executemany("INSERT OR IGNORE INTO orders VALUES (?, ?, ?, ?, ?)", ORDERS)

    def order(self, number: str) -> dict[str, Any] | None:
        """An order, or None."""
        found = self._all(
            "SELECT o.number, o.customer, o.sku, a.name, a.price, o.status, o.tracking FROM orders o "
            "JOIN articles a USING (sku) WHERE o.number = ?", number)  # fmt: skip
        keys = ("number", "customer", "sku", "name", "price", "status", "tracking")
        return dict(zip(keys, found[0], strict=True)) if found else None

    def articles(self, words: str) -> list[dict[str, Any]]:
        """Articles whose number or name has these words, and what there is instead of those that are out of stock."""
        found = self._all("SELECT sku, name, price, stock FROM articles WHERE sku LIKE ? OR name LIKE ? ORDER BY sku",
                          f"%{words}%", f"%{words}%")  # fmt: skip
        return [{"sku": sku, "name": name, "price": price, "stock": stock,
                 "alternatives": [] if stock else self.alternatives(sku)}
                for sku, name, price, stock in found]  # fmt: skip

    def alternatives(self, sku: str) -> list[str]:
        """Articles of the same kind that are in stock."""
        kind = f"{sku.partition('-')[0]}-%"
        found = self._all(
            "SELECT sku FROM articles WHERE sku LIKE ? AND sku <> ? AND stock > 0 ORDER BY sku", kind, sku
        )
        return [row[0] for row in found]

    def take_back(self, number: str, reason: str, reference: str, exchange_for: str = "") -> dict[str, Any]:
        """Take an order back for its money, or for another article: once for each order, and once per reference.

        ``LookupError`` says that nothing happened, and why.
        """
        with closing(self._open()) as db, db:
            db.execute("BEGIN IMMEDIATE")
            (sku, price), = db.execute("SELECT sku, price FROM orders JOIN articles USING (sku) WHERE number = ?",
                                       (number,))  # fmt: skip
            done = db.execute("SELECT reference FROM returns WHERE number = ?", (number,)).fetchone()
            if done and done[0] != reference:
                raise LookupError(f"{number} was taken back already")
            if not done:
                self._move(db, number, sku, exchange_for)
                db.execute("INSERT INTO returns (reference, number, reason, amount, sent) VALUES (?, ?, ?, ?, ?)",
                           (reference, number, reason, 0 if exchange_for else price, exchange_for))  # fmt: skip
            (rma, reason, amount, sent), = db.execute("SELECT id, reason, amount, sent FROM returns WHERE number = ?",
                                                      (number,))  # fmt: skip
        answer = {"order": number, "rma": f"RMA-{rma:06}", "reason": reason, "instructions": SEND_BACK}
        return answer | ({"sent": sent, "tracking": f"1Z-{number[-4:]}-02"} if sent else {"refunded": amount})

    def _move(self, db: sqlite3.Connection, number: str, sku: str, exchange_for: str) -> None:
        sell = "UPDATE articles SET stock = stock - 1 WHERE sku = ? AND stock > 0"
        if exchange_for and not db.execute(sell, (exchange_for,)).rowcount:
            others = ", ".join(self.alternatives(exchange_for)) or "nothing like it"
            raise LookupError(f"{exchange_for} is not in stock; there is {others}")
        db.execute("UPDATE articles SET stock = stock + 1 WHERE sku = ?", (sku,))
        status, tracking = ("exchanged", f"1Z-{number[-4:]}-02") if exchange_for else ("returned", "")
        db.execute("UPDATE orders SET status = ?, sku = ?, tracking = ? WHERE number = ?",
                   (status, exchange_for or sku, tracking, number))  # fmt: skip

    def refunds(self) -> list[tuple[str, float]]:
        """Money given back: order and amount."""
        return self._all("SELECT number, amount FROM returns WHERE amount > 0 ORDER BY id")

    def stock(self, sku: str) -> int:
        """How many are left."""
        return self._all("SELECT stock FROM articles WHERE sku = ?", sku)[0][0]

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30)

    def _all(self, sql: str, *values: Any) -> list[Any]:
        with closing(self._open()) as db:
            return db.execute(sql, values).fetchall()
