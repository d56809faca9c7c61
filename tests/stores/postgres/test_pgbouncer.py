"""The contract through PgBouncer in transaction mode: no two statements need meet the same server connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.stores import open_store
from perdure.testing.store_contract import (
    BOARD,
    LIVE,
    AppendContract,
    ChangesContract,
    DumpContract,
    InboxContract,
    LeasesContract,
    RewriteContract,
)
from tests.servers import postgres
from tests.servers.pgbouncer import pgbouncer
from tests.store_urls import url_of

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.protocols import Clock, Store


class TestThroughPgBouncer(
    AppendContract, ChangesContract, DumpContract, InboxContract, LeasesContract, RewriteContract
):  # fmt: skip
    """Handles that connect to PgBouncer and are not told so."""

    offers = frozenset({BOARD, LIVE})

    def open_store(self, folder: Path, name: str, clock: Clock) -> Store:
        url = url_of("postgres", folder, name).replace(f":{postgres().port}/", f":{pgbouncer().port}/")
        return open_store(url, clock=clock)

    def test_a_pooler_is_noticed_and_prepared_statements_are_left_out(self, store: Store, tmp_path: Path):
        assert store._link.pooled is True  # type: ignore[attr-defined]
        direct = open_store(url_of("postgres", tmp_path, "one"))
        assert direct._link.pooled is False  # type: ignore[attr-defined]
        direct.close()


def test_it_can_be_told_so(tmp_path: Path):
    store = open_store(url_of("postgres", tmp_path, "one") + "&pgbouncer=true")
    assert store._link.pooled is True  # type: ignore[attr-defined]
    store.close()
