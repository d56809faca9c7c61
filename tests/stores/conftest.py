"""One suite, every store: ``make_store`` opens the same store again and again, ``store`` is one handle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from perdure.stores import open_store
from tests.clock import FakeClock
from tests.store_urls import STORES, url_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from perdure.protocols import Clock, Store


class MakeStore:
    """Opens handles of one and the same store; a second place is another store of the same kind."""

    def __init__(self, kind: str, folder: Path, clock: FakeClock) -> None:
        self.kind = kind
        self.clock = clock
        self._folder = folder
        self._opened: list[Store] = []

    def __call__(self, place: str = "one", clock: Clock | None = None) -> Store:
        """Another handle, with the suite's fake clock unless told otherwise."""
        store = open_store(self.url(place), clock=clock or self.clock)
        self._opened.append(store)
        return store

    def url(self, place: str) -> str:
        """Where the store of that place lies."""
        return url_of(self.kind, self._folder, place)

    def close(self) -> None:
        """Close all handles."""
        for store in self._opened:
            store.close()


@pytest.fixture
def clock() -> FakeClock:
    """Time, which passes only when a test says so."""
    return FakeClock()


@pytest.fixture(params=STORES)
def make_store(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[MakeStore]:
    """The way to open a store, for each kind there is."""
    make = MakeStore(request.param, tmp_path, clock)
    yield make
    make.close()


@pytest.fixture
def store(make_store: MakeStore) -> Store:
    """A handle of a new, empty store."""
    return make_store()
