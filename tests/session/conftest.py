"""A database on each store, openable several times over, with a clock that moves only when told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from tests.clock import FakeClock
from tests.places import STORES, url_of


@pytest.fixture
def clock() -> FakeClock:
    """The time of the test."""
    return FakeClock()


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    return url_of(request.param, tmp_path)


@pytest.fixture
def open_db(url: str, clock: FakeClock) -> Iterator[Callable[..., perdure.Database]]:
    """Opens the store again and again; what a test leaves open is closed after it."""
    opened: list[perdure.Database] = []

    def again(**options: Any) -> perdure.Database:
        db = perdure.open(url, clock=clock, **options)
        opened.append(db)
        return db

    yield again
    for db in opened:
        db.close()


@pytest.fixture
def db(open_db: Callable[..., perdure.Database]) -> perdure.Database:
    """An empty database."""
    return open_db()
