"""Hot tiers for tests: one of the run's server, or one with a server of its own that may be harmed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.servers import valkey
from tests.servers.process import stop
from tests.servers.valkey import start_valkey
from tests.stores.tiered.tiers import Tiers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers.process import Running


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    """Both tiers, the hot one on the run's server."""
    with Tiers(valkey().port, tmp_path) as found:
        yield found


@pytest.fixture
def server() -> Iterator[Running]:
    """A server of the test's own that persists nothing, as a cache does."""
    running = start_valkey(settings={"appendonly": "no"})
    yield running
    stop(running)


@pytest.fixture
def own(tmp_path: Path, server: Running) -> Iterator[Tiers]:
    """Both tiers, the hot one on a server of their own."""
    with Tiers(server.port, tmp_path) as found:
        yield found
