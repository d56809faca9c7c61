"""The contract suite on every store of ours, through the door that everybody else's stores come in by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.stores import open_store
from perdure.testing.store_contract import BOARD, CACHE, LIVE, MACHINES_CLOCK, StoreContract
from tests.store_urls import url_of

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.protocols import Clock, Store


class OurContract(StoreContract):
    """Our stores are opened by URL, and called by its scheme."""

    kind = ""

    def open_store(self, folder: Path, name: str, clock: Clock) -> Store:
        return open_store(url_of(self.kind, folder, name), clock=clock)


class TestMemory(OurContract):
    kind = scheme = "memory"
    survives_process_crash = survives_power_loss = False
    offers = frozenset({LIVE, MACHINES_CLOCK})


class TestSqlite(OurContract):
    kind = scheme = "sqlite"
    offers = frozenset({BOARD, LIVE, MACHINES_CLOCK})


class TestFile(OurContract):
    kind = scheme = "file"
    offers = frozenset({LIVE, MACHINES_CLOCK})


class TestPostgres(OurContract):
    kind = scheme = "postgres"
    offers = frozenset({BOARD, LIVE})


class TestRedis(OurContract):
    kind = scheme = "redis"
    offers = frozenset({LIVE})


class TestTiered(OurContract):
    kind = scheme = "tiered"
    offers = frozenset({BOARD, CACHE, LIVE})
