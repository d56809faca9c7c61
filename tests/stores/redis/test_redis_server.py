"""The contract once more on Debian's Redis, wherever it is installed: Redis itself, and an older one than Valkey."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from perdure.stores import open_store
from perdure.testing.store_contract import (
    LIVE,
    AppendContract,
    ChangesContract,
    DumpContract,
    InboxContract,
    RetentionContract,
    RewriteContract,
)
from tests.servers import redis
from tests.servers.valkey import redis_binary, redis_url

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.protocols import Clock, Store


class TestPlainRedis(
    AppendContract, ChangesContract, DumpContract, InboxContract, RetentionContract, RewriteContract
):  # fmt: skip
    __test__ = bool(redis_binary())
    offers = frozenset({LIVE})

    def open_store(self, folder: Path, name: str, clock: Clock) -> Store:
        server = redis()
        assert server is not None
        unique = hashlib.sha256(f"{folder}/{name}".encode()).hexdigest()[:20]
        return open_store(f"{redis_url(server)}?prefix={unique}", clock=clock)
