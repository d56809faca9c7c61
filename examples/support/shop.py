"""A small web shop in an SQLite file: articles in stock, orders on their way, money given back once."""

import sqlite3
from contextlib import closing
from typing import Any

ARTICLES = [("SHOE-42", "Trail shoe, size 42", 89.0, 3), ("SHOE-43", "Trail shoe, size 43", 89.0, 1),
            ("COAT-M", "Winter coat, size M", 240.0, 0), ("COAT-L", "Winter coat, size L", 240.0, 5)]  # fmt: skip
ORDERS = [("ORD-2024-8847", "user-12345", "SHOE-42", "in transit, arrives on Friday"),
          ("ORD-2024-8901", "user-12345", "COAT-L", "delivered"),
          ("ORD-2024-9000", "user-777", "SHOE-43", "delivered")]  # fmt: skip


class Shop:
    """The outside world. It knows nothing of agents."""

    def __init__(self, path: str) -> None:
        self._path = path
        with closing(self._open()) as db, db:
            db.execute(
                "CREATE TABLE IF NOT EXISTS articles (sku TEXT PRIMARY KEY, name TEXT, price REAL, stock INTEGER)"
            )
            db.execute("CREATE TABLE IF NOT EXISTS orders (number TEXT PRIMARY KEY, customer, sku TEXT, status TEXT)")
            db.execute("CREATE TABLE IF NOT EXISTS refunds (reference TEXT PRIMARY KEY, number TEXT, amount REAL)")
            db.executemany("INSERT OR IGNORE INTO articles VALUES (?, ?, ?, ?)", ARTICLES)
            db.executemany("INSERT OR IGNORE INTO orders VALUES (?, ?, ?, ?)", ORDERS)

    def order(self, number: str) -> dict[str, Any] | None:
        """An order, or None."""
        found = self._all(
            "SELECT o.number, o.customer, o.sku, a.name, a.price, o.status FROM orders o JOIN articles a USING (sku) "
            "WHERE o.number = ?", number)  # fmt: skip
        keys = ("number", "customer", "sku", "name", "price", "status")
        return dict(zip(keys, found[0], strict=True)) if found else None

    def articles(self, words: str) -> list[dict[str, Any]]:
        """Articles whose number or name has these words."""
        found = self._all("SELECT sku, name, price, stock FROM articles WHERE sku LIKE ? OR name LIKE ? ORDER BY sku",
                          f"%{words}%", f"%{words}%")  # fmt: skip
        return [dict(zip(("sku", "name", "price", "stock"), row, strict=True)) for row in found]

    def take_back(self, number: str, reference: str) -> dict[str, Any]:
        """Take an order back: the article is in stock again, the money is given back. Once per reference."""
        with closing(self._open()) as db, db:
            (sku, price), = db.execute("SELECT sku, price FROM orders JOIN articles USING (sku) WHERE number = ?",
                                       (number,))  # fmt: skip
            new = db.execute("INSERT OR IGNORE INTO refunds VALUES (?, ?, ?)", (reference, number, price)).rowcount
            if new:
                db.execute("UPDATE orders SET status = 'returned' WHERE number = ?", (number,))
                db.execute("UPDATE articles SET stock = stock + 1 WHERE sku = ?", (sku,))
        return {"order": number, "refunded": price}

    def exchange(self, number: str, sku: str, reference: str) -> dict[str, Any]:
        """Send another article instead. Once per reference; nothing happens when there is none in stock."""
        with closing(self._open()) as db, db:
            done = db.execute("SELECT 1 FROM refunds WHERE reference = ?", (reference,)).fetchone()
            if not done:
                if not db.execute("UPDATE articles SET stock = stock - 1 WHERE sku = ? AND stock > 0", (sku,)).rowcount:
                    raise LookupError(f"{sku} is not in stock")
                back = "SELECT sku FROM orders WHERE number = ?"
                db.execute(f"UPDATE articles SET stock = stock + 1 WHERE sku = ({back})", (number,))
                db.execute("INSERT INTO refunds VALUES (?, ?, 0)", (reference, number))
                db.execute("UPDATE orders SET sku = ?, status = 'exchanged' WHERE number = ?", (sku, number))
        return {"order": number, "sent": sku}

    def refunds(self) -> list[tuple[str, float]]:
        """Money given back: order and amount."""
        return self._all("SELECT number, amount FROM refunds WHERE amount > 0 ORDER BY rowid")

    def stock(self, sku: str) -> int:
        """How many are left."""
        return self._all("SELECT stock FROM articles WHERE sku = ?", sku)[0][0]

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30)

    def _all(self, sql: str, *values: Any) -> list[Any]:
        with closing(self._open()) as db:
            return db.execute(sql, values).fetchall()
