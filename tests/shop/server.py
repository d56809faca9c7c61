"""The shop's server: ``python -m tests.shop.server PORT``. Charges orders, remembers everything it was ever asked.

It trusts nobody: a request with a key it knows is answered from its books, a request without a key is always a new
charge. A look into the books is answered only once everything that arrived before it is done, as a queue would have it.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Books:
    """What the shop knows."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.charges: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        """Requests to charge, by order, whether they led to a charge or not."""
        self.reads: Counter[str] = Counter()
        self.by_key: dict[str, str] = {}
        self.drops: set[str] = set()
        """Orders whose next charge is made and whose connection is then dropped without a word."""
        self.prices: dict[str, int] = {}
        self.open: set[int] = set()
        self.tickets = 0

    def arrive(self) -> int:
        """Number a request in the order of arrival."""
        with self.lock:
            self.tickets += 1
            self.open.add(self.tickets)
            return self.tickets

    def leave(self, ticket: int) -> None:
        """A request is done with, answered or not."""
        with self.lock:
            self.open.discard(ticket)
            self.lock.notify_all()

    def after_all_before(self, ticket: int) -> None:
        """Wait until everything that arrived earlier is done."""
        with self.lock:
            self.lock.wait_for(lambda: min(self.open) == ticket)

    def charge(self, order: str, key: str | None) -> bool:
        """Charge an order; whether the connection is to be dropped then."""
        with self.lock:
            self.seen[order] += 1
            if key is None or key not in self.by_key:
                self.charges[order] += 1
                if key is not None:
                    self.by_key[key] = order
            dropped = order in self.drops
            self.drops.discard(order)
            return dropped

    def of(self, prefix: str) -> dict[str, Any]:
        """All entries of orders that begin so."""

        def some(counts: Any) -> dict[str, int]:
            return {order: n for order, n in counts.items() if order.startswith(prefix)}

        return {"charges": some(self.charges), "seen": some(self.seen), "reads": some(self.reads)}


class Server(ThreadingHTTPServer):
    """Numbers requests before any thread runs, so that their order is that of their arrival."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int) -> None:
        self.books = Books()
        self.tickets: dict[Any, int] = {}
        super().__init__(("127.0.0.1", port), Desk)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give it a number, then a thread."""
        self.tickets[client_address] = self.books.arrive()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve it."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.books.leave(self.tickets.pop(client_address))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients are killed all the time; anything else is told."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Desk(BaseHTTPRequestHandler):
    """Answers one request."""

    @property
    def shop(self) -> Server:
        """The server this is a desk of."""
        assert isinstance(self.server, Server)
        return self.server

    def do_GET(self) -> None:
        """Look something up."""
        books = self.shop.books
        what, _, name = self.path.lstrip("/").partition("/")
        if what == "stock":
            with books.lock:
                books.reads[name] += 1
            return self._say({"order": name, "in_stock": True, "price": books.prices.get(name, 0)})
        books.after_all_before(self.shop.tickets[self.client_address])
        with books.lock:
            if what == "order":
                return self._say({"order": name, "charges": books.charges[name], "seen": books.seen[name]})
            return self._say(books.of(name))

    def do_POST(self) -> None:
        """Charge an order, or be told how to behave."""
        books = self.shop.books
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if len(body) < int(self.headers["Content-Length"]):
            return None
        asked = json.loads(body)
        if self.path == "/drop":
            with books.lock:
                books.drops |= set(asked["orders"])
            return self._say({})
        if self.path == "/price":
            with books.lock:
                books.prices |= asked["prices"]
            return self._say({})
        if books.charge(asked["order"], asked.get("key")):
            # Nobody will ever be told.
            self.connection.shutdown(2)
            return None
        return self._say(receipt(asked["order"]))

    def _say(self, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""


def receipt(order: str) -> dict[str, Any]:
    """What is given for a charge; the same whenever it is asked for."""
    return {"order": order, "receipt": f"R-{order}"}


if __name__ == "__main__":
    Server(int(sys.argv[1])).serve_forever()
