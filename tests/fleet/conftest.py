"""Boards of every kind of store that has one: handles of one and the same, with time that passes when told."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from perdure.stores import open_store
from perdure.testing.clock import FakeClock
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from perdure.protocols import Board, Boarded, Store

KINDS = ("sqlite", "postgres")
"""The stores that have a board of their own."""
ALL_KINDS = (*KINDS, "tiered")
"""Those and the one that has its cold store's."""


class Boards:
    """Opens handles of one and the same store, and their boards."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.clock = FakeClock()
        self.url = url_of(kind, folder)
        self._opened: list[Store] = []
        self.store = self.open()
        self.board = self.board_of(self.store)

    def open(self) -> Store:
        """Another handle of the store."""
        self._opened.append(open_store(self.url, clock=self.clock))
        return self._opened[-1]

    def board_of(self, store: Store) -> Board:
        """The board of a handle."""
        return cast("Boarded", store).board()

    def another(self) -> Board:
        """The board of another handle."""
        return self.board_of(self.open())

    def elapse(self, ms: int) -> None:
        """Let time pass by the store's own clock."""
        self.clock.advance(ms)

    def close(self) -> None:
        """Close all handles."""
        for store in self._opened:
            store.close()


@pytest.fixture(params=KINDS)
def boards(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Boards]:
    """A store with a board, for each kind there is."""
    made = Boards(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def board(boards: Boards) -> Board:
    """One handle of the board."""
    return boards.board


@pytest.fixture
def store(boards: Boards) -> Store:
    """The store whose board it is."""
    return boards.store
