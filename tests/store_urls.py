"""Where tests put stores: the URL of a store of each kind, in a folder or on one of the run's servers."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tests.servers import postgres, valkey
from tests.servers.postgres import postgres_url
from tests.servers.valkey import redis_url

if TYPE_CHECKING:
    from pathlib import Path

EMBEDDED = ("memory", "sqlite", "file")
SERVERS: tuple[str, ...] = ("postgres", "redis", "tiered")
STORES = (*EMBEDDED, *SERVERS)


def url_of(kind: str, folder: Path, name: str = "agents") -> str:
    """The URL of a store; the same folder and name always give the same one."""
    # Names on a server are shared by all tests of the run, and limited in length.
    unique = "t" + hashlib.sha256(f"{folder}/{name}".encode()).hexdigest()[:20]
    match kind:
        case "memory":
            return f"memory://{unique}"
        case "sqlite":
            return f"sqlite:///{folder}/{name}.db"
        case "file":
            return f"file://{folder}/{name}"
        case "postgres":
            return f"{postgres_url(postgres())}?schema={unique}"
        case "redis":
            return f"{redis_url(valkey())}?prefix={unique}"
        case "tiered":
            return f"tiered:{url_of('redis', folder, name)},{url_of('postgres', folder, name)}"
        case _:
            raise ValueError(kind)
