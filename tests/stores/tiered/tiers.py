"""A hot tier and a cold store for a test, and the waiting for what the hot tier is told in the background."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import redis

import perdure
from perdure.stores import open_store
from perdure.stores.tiered.store import TieredStore
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from perdure.testing.clock import FakeClock

WITHIN = 60.0
"""Seconds after which waiting counts as failure; what is waited for takes a fraction of one."""


def eventually(true: Callable[[], Any], what: str = "") -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + WITHIN
    while not true():
        assert time.monotonic() < deadline, f"it never came true: {what}"
        time.sleep(0.005)


class Tiers:
    """One cold store with one hot tier before it, opened as often as a test likes; closed with the test."""

    def __init__(self, port: int, folder: Path, cold: str = "sqlite", **options: Any) -> None:
        self.cold = url_of(cold, folder, "cold")
        self.prefix = url_of("memory", folder, "hot").removeprefix("memory://")
        self.hot = f"redis://127.0.0.1:{port}/0?prefix={self.prefix}"
        self.url = f"tiered:{self.hot},{self.cold}"
        # Busy machines are slow; tests about that say so.
        self._options = {"hot_timeout": 1.0, **options}
        self._opened = ExitStack()
        self._client: Any = redis.Redis(port=port, protocol=2)
        self._opened.callback(self._client.close)

    def db(self, clock: FakeClock | None = None, **options: Any) -> perdure.Database:
        """A database of both tiers."""
        return self._opened.enter_context(perdure.open(self.url, clock=clock, **{**self._options, **options}))

    def truth(self, clock: FakeClock | None = None, **options: Any) -> perdure.Database:
        """A database of the cold store alone: the hot tier is not told what it does."""
        return self._opened.enter_context(perdure.open(self.cold, clock=clock, **options))

    def store(self, **options: Any) -> TieredStore:
        """A bare store of both tiers."""
        store = open_store(self.url, **{**self._options, **options})
        assert isinstance(store, TieredStore)
        self._opened.callback(store.close)
        return store

    def held(self, part: str = "") -> list[bytes]:
        """What the hot tier holds."""
        # Many at a time: the run's server has the keys of all tests.
        found = self._client.scan_iter(match=f"{self.prefix}:*", count=10_000)
        return sorted(key for key in found if part.encode() in key)

    @property
    def client(self) -> Any:
        """A connection to the hot tier's server, for whoever wants to do it harm."""
        return self._client

    def close(self) -> None:
        """Close everything that was opened."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def tiered(db: perdure.Database) -> TieredStore:
    """The store of a database."""
    store = db.kernel.store
    assert isinstance(store, TieredStore)
    return store


def is_hot(db: perdure.Database, session: str = "s", line: int = 0) -> bool:
    """Whether the hot tier helps with a line."""
    return tiered(db).load(session, line).hot


def say(db: perdure.Database, text: str, session: str = "s", **options: Any) -> None:
    """One more message."""
    with db.session(session, **options) as s:
        s.messages.append({"role": "user", "content": text})
        s.commit()


def said(db: perdure.Database, session: str = "s", **options: Any) -> list[str]:
    """All messages, as a reader without a lease sees them."""
    return [message["content"] for message in db.read(session, **options).messages]
