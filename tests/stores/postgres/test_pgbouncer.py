"""The contract through PgBouncer in transaction mode: no two statements need meet the same server connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from perdure.stores import open_store
from tests.servers import postgres
from tests.servers.pgbouncer import pgbouncer
from tests.store_urls import url_of
from tests.stores.conftest import MakeStore
from tests.stores.contract.test_append import *  # noqa: F403
from tests.stores.contract.test_changes import *  # noqa: F403
from tests.stores.contract.test_dump import *  # noqa: F403
from tests.stores.contract.test_inbox import *  # noqa: F403
from tests.stores.contract.test_leases import *  # noqa: F403
from tests.stores.contract.test_rewrite import *  # noqa: F403

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from perdure.protocols import Clock, Store
    from tests.clock import FakeClock

del TestALeaseFromAnotherBoot  # noqa: F821 - of stores without a server


class ThroughPgBouncer(MakeStore):
    """Opens handles that connect to PgBouncer and are not told so."""

    def __call__(self, place: str = "one", clock: Clock | None = None) -> Store:
        url = url_of("postgres", self._folder, place).replace(f":{postgres().port}/", f":{pgbouncer().port}/")
        store = open_store(url, clock=clock or self.clock)
        self._opened.append(store)
        return store


@pytest.fixture
def make_store(tmp_path: Path, clock: FakeClock) -> Iterator[MakeStore]:
    make = ThroughPgBouncer("postgres", tmp_path, clock)
    yield make
    make.close()


def test_a_pooler_is_noticed_and_prepared_statements_are_left_out(store: Store, tmp_path: Path):
    assert store._link.pooled is True  # type: ignore[attr-defined]
    direct = open_store(url_of("postgres", tmp_path, "one"))
    assert direct._link.pooled is False  # type: ignore[attr-defined]
    direct.close()


def test_it_can_be_told_so(tmp_path: Path):
    store = open_store(url_of("postgres", tmp_path, "one") + "&pgbouncer=true")
    assert store._link.pooled is True  # type: ignore[attr-defined]
    store.close()
