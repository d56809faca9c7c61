"""Starting the shop, and talking to it: one connection per request, as tools do."""

from __future__ import annotations

import http.client
import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.servers.process import answers, free_port, scratch, start, stop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 60


@contextmanager
def open_shop() -> Iterator[Shop]:
    """A shop in a process of its own."""
    port = free_port()
    command = [sys.executable, "-m", "tests.shop.server", str(port)]
    server = start("shop", command, port, scratch("shop"), lambda: answers(port))
    try:
        yield Shop(port)
    finally:
        stop(server)


class Shop:
    """The shop as its customers see it."""

    def __init__(self, port: int) -> None:
        self.port = port

    def charge(self, order: str, key: str | None = None, *, sent: Callable[[], None] | None = None) -> dict[str, Any]:
        """Charge an order; ``sent`` is called when the request is on its way."""
        return self._ask("POST", "/charge", {"order": order, "key": key}, sent)

    def stock(self, order: str) -> dict[str, Any]:
        """Look an article up: no effect."""
        return self._ask("GET", f"/stock/{order}")

    def order(self, order: str) -> dict[str, Any]:
        """How often an order was charged, and how often the shop was asked to."""
        return self._ask("GET", f"/order/{order}")

    def books(self, prefix: str = "") -> dict[str, dict[str, int]]:
        """The ledger: charges, requests seen and reads, by order."""
        return self._ask("GET", f"/books/{prefix}")

    def drop(self, *orders: str) -> None:
        """Have the next charge of these orders made and its connection dropped."""
        self._ask("POST", "/drop", {"orders": orders})

    def price(self, **prices: int) -> None:
        """Set prices."""
        self._ask("POST", "/price", {"prices": prices})

    def _ask(self, method: str, path: str, body: Any = None, sent: Callable[[], None] | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            if sent is not None:
                sent()
            answer = connection.getresponse()
            return json.loads(answer.read())
        finally:
            connection.close()
