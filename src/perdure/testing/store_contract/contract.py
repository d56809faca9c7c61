"""What every part of the contract shares: how a store is opened, what it declares, and the fixtures of its tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from perdure.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from perdure.model import SessionRow
    from perdure.protocols import Clock, Store

BOARD, LIVE, CACHE = "board", "live", "cache"
"""The store has a board for fleets, carries pieces of answers, has a cache in front: the protocols ``Boarded``,
``Talking`` and ``Cached``."""
MACHINES_CLOCK = "machine's clock"
"""Leases are judged by the clock of the machine that asks, and not by that of a server."""
OFFERS = (BOARD, LIVE, CACHE, MACHINES_CLOCK)


class MakeStore:
    """Opens handles of one and the same store; a second place is another store of the same kind."""

    def __init__(self, open_store: Callable[[Path, str, Clock], Store], folder: Path, clock: FakeClock) -> None:
        self._open = open_store
        self._folder = folder
        self._clock = clock
        self._opened: list[Store] = []

    def __call__(self, place: str = "one", clock: Clock | None = None) -> Store:
        """Another handle, with the suite's fake clock unless told otherwise."""
        store = self._open(self._folder, place, clock or self._clock)
        self._opened.append(store)
        return store

    def close(self) -> None:
        """Close all handles."""
        for store in self._opened:
            store.close()


class Contract:
    """A part of the contract: subclass it, say how your store is opened and what it offers."""

    scheme: ClassVar[str] = ""
    """What its ``url`` begins with."""
    survives_process_crash: ClassVar[bool] = True
    survives_power_loss: ClassVar[bool] = True
    """What its ``promise`` says."""
    offers: ClassVar[frozenset[str]] = frozenset({MACHINES_CLOCK})
    """What it has beside the contract, out of ``OFFERS``: it is compared with what is there, and tests of what is
    not declared are left out."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if unknown := sorted(set(cls.offers) - set(OFFERS)):
            msg = f"{cls.__name__}.offers has {unknown[0]!r}: a store may offer {', '.join(OFFERS)}"
            raise TypeError(msg)
        for name in dir(cls):
            need = getattr(getattr(cls, name), "needs", None)
            if need is not None and need not in cls.offers:
                setattr(cls, name, None)

    def open_store(self, folder: Path, name: str, clock: Clock) -> Store:
        """A handle of a store of that name in an empty folder; the same folder and name always give the same store."""
        raise NotImplementedError("say how your store is opened: def open_store(self, folder, name, clock)")

    def pretend_boot(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        """Make handles that are opened and leases that are granted from now on think that this is another boot."""
        monkeypatch.setattr("perdure.stores.rules.boot_id", lambda: name)

    @pytest.fixture
    def clock(self) -> FakeClock:
        """Time, which passes only when a test says so."""
        return FakeClock()

    @pytest.fixture
    def make_store(self, tmp_path: Path, clock: FakeClock) -> Iterator[MakeStore]:
        """The way to open the store."""
        make = MakeStore(self.open_store, tmp_path, clock)
        yield make
        make.close()

    @pytest.fixture
    def store(self, make_store: MakeStore) -> Store:
        """A handle of a new, empty store."""
        return make_store()


def needs(offer: str) -> Callable[[Any], Any]:
    """A test of something that only some stores offer."""

    def mark(test: Any) -> Any:
        test.needs = offer
        return test

    return mark


def known(store: Store, session: str = "s") -> SessionRow:
    """What a store knows of a session that it must know."""
    row = store.look(session)
    assert row is not None, f"nothing is known of session {session!r}"
    return row
