"""A small airline and a hotel in an SQLite file: fares that change, bookings that are known by their reference."""

import sqlite3
from contextlib import closing
from typing import Any

FLIGHTS = [("TP-449", "Paris", "Lisbon", 1200), ("AF-1024", "Paris", "Lisbon", 1450)]


class Airline:
    """The outside world. It knows nothing of agents."""

    def __init__(self, path: str) -> None:
        self._path = path
        with closing(self._open()) as db, db:
            db.execute(
                "CREATE TABLE IF NOT EXISTS flights (number TEXT PRIMARY KEY, origin, destination, price INTEGER)"
            )
            db.execute("CREATE TABLE IF NOT EXISTS bookings (reference TEXT PRIMARY KEY, flight TEXT, price INTEGER)")
            db.execute("CREATE TABLE IF NOT EXISTS rooms (city TEXT, nights INTEGER, guest TEXT)")
            db.executemany("INSERT OR IGNORE INTO flights VALUES (?, ?, ?, ?)", FLIGHTS)

    def flights(self, origin: str, destination: str) -> list[dict[str, Any]]:
        """What flies from here to there, cheapest first."""
        found = self._all("SELECT number, price FROM flights WHERE origin = ? AND destination = ? ORDER BY price",
                          origin, destination)  # fmt: skip
        return [{"flight": number, "price": price} for number, price in found]

    def fare(self, flight: str) -> int:
        """What a flight costs now."""
        found = self._all("SELECT price FROM flights WHERE number = ?", flight)
        if not found:
            raise LookupError(f"there is no flight {flight}")
        return found[0][0]

    def set_fare(self, flight: str, price: int) -> None:
        """Fares change."""
        self._do("UPDATE flights SET price = ? WHERE number = ?", price, flight)

    def book(self, flight: str, reference: str) -> dict[str, Any]:
        """Book a flight; the same reference is the same booking, however often it is sent."""
        self._do("INSERT OR IGNORE INTO bookings VALUES (?, ?, ?)", reference, flight, self.fare(flight))
        ((price,),) = self._all("SELECT price FROM bookings WHERE reference = ?", reference)
        return {"flight": flight, "price": price, "reference": reference[-6:]}

    def bookings(self) -> list[tuple[str, int]]:
        """All bookings: flight and price."""
        return self._all("SELECT flight, price FROM bookings ORDER BY rowid")

    def reserve(self, city: str, nights: int, guest: str) -> None:
        """Reserve a room; the hotel knows no references, so twice is twice."""
        self._do("INSERT INTO rooms VALUES (?, ?, ?)", city, nights, guest)

    def rooms(self, guest: str) -> list[tuple[str, int]]:
        """The rooms of a guest: city and nights."""
        return self._all("SELECT city, nights FROM rooms WHERE guest = ?", guest)

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30)

    def _all(self, sql: str, *values: Any) -> list[Any]:
        with closing(self._open()) as db:
            return db.execute(sql, values).fetchall()

    def _do(self, sql: str, *values: Any) -> None:
        with closing(self._open()) as db, db:
            db.execute(sql, values)
