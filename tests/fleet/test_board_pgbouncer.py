"""The board through PgBouncer in transaction mode: no two statements need meet the same server connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fleet.conftest import Boards
from tests.fleet.test_board import *  # noqa: F403
from tests.servers import postgres
from tests.servers.pgbouncer import pgbouncer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from perdure.protocols import Store


class ThroughPgBouncer(Boards):
    """Opens handles that connect to PgBouncer and are not told so."""

    def open(self) -> Store:
        """Another handle of the store."""
        self.url = self.url.replace(f":{postgres().port}/", f":{pgbouncer().port}/")
        return super().open()


@pytest.fixture
def boards(tmp_path: Path) -> Iterator[Boards]:
    made = ThroughPgBouncer("postgres", tmp_path)
    yield made
    made.close()
