"""The contract once more on Debian's Redis, wherever it is installed: Redis itself, and an older one than Valkey."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from tests.clock import FakeClock
from tests.servers import redis
from tests.servers.valkey import redis_binary, redis_url
from tests.stores.conftest import MakeStore
from tests.stores.contract import test_append, test_changes, test_dump, test_inbox, test_retention, test_rewrite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

if redis_binary():
    for module in (test_append, test_changes, test_dump, test_inbox, test_retention, test_rewrite):
        globals().update({name: test for name, test in vars(module).items() if name.startswith("test_")})


class MakePlainRedis(MakeStore):
    """Opens handles of one store on Debian's Redis."""

    def url(self, place: str) -> str:
        """Where that store lies."""
        server = redis()
        assert server is not None
        unique = hashlib.sha256(f"{self._folder}/{place}".encode()).hexdigest()[:20]
        return f"{redis_url(server)}?prefix={unique}"


@pytest.fixture
def make_store(tmp_path: Path, clock: FakeClock) -> Iterator[MakeStore]:
    """The way to open a store on Debian's Redis."""
    make = MakePlainRedis("redis", tmp_path, clock)
    yield make
    make.close()
