"""Opening a database by URL: which store, which blobs, which keys. The only place where the parts meet."""

# pyright: reportPrivateUsage=false
# The handle is one thing in several rooms: they share its inner parts.
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.clock import SystemClock
from perdure.errors import InvalidInput
from perdure.keys import Keys, find_keys

if TYPE_CHECKING:
    import os

    from perdure.bridge import AsyncDatabase
    from perdure.database import Database
    from perdure.kernel import Kernel
    from perdure.migrations import Migrations
    from perdure.protocols import Blobs, Clock

LEASE_TTL = 10.0
"""Seconds a lease lives without being renewed."""


def open(
    url: str | None = None,
    *,
    keys: Keys | bytes | str | None = None,
    codec: str = "msgpack",
    schema: str = "1.0.0",
    migrations: Migrations | None = None,
    state: Any = None,
    lease_ttl: float = LEASE_TTL,
    maintain: bool = True,
    blobs: Blobs | None = None,
    clock: Clock | None = None,
    witness: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Database:
    """Open a database: ``sqlite:///agents.db``, ``file:///folder``, ``memory://``; None: ``./.perdure/``.

    ``keys`` (or the variable ``PERDURE_KEY``) keys the digest chain; ``codec`` is how new checkpoints are written,
    "msgpack" or "json"; ``schema`` is the version of the state your program writes; ``state`` a type it must fit.
    ``witness`` is a file outside the store that is told of every commit; ``verify`` compares with it.
    Other options go to the store, such as ``synchronous="normal"`` for SQLite.
    """
    from perdure.database import Database
    from perdure.names import check_lease

    check_lease(lease_ttl)
    kernel = _kernel(url, keys, codec, schema, migrations, blobs, clock, options)
    return Database(kernel, lease_ttl=lease_ttl, state=state, maintain=maintain, witness=witness)


def open_async(
    url: str | None = None,
    *,
    keys: Keys | bytes | str | None = None,
    codec: str = "msgpack",
    schema: str = "1.0.0",
    migrations: Migrations | None = None,
    state: Any = None,
    lease_ttl: float = LEASE_TTL,
    maintain: bool = True,
    blobs: Blobs | None = None,
    clock: Clock | None = None,
    witness: str | os.PathLike[str] | None = None,
    max_batch: int = 256,
    **options: Any,
) -> AsyncDatabase:
    """The same as :func:`open`, awaited: ``async with perdure.open_async(...) as db``.

    All commits that wait at one moment, up to ``max_batch``, become durable together.
    """
    from perdure.bridge import AsyncDatabase
    from perdure.names import check_lease

    check_lease(lease_ttl)
    kernel = _kernel(url, keys, codec, schema, migrations, blobs, clock, options)
    return AsyncDatabase(
        kernel, lease_ttl=lease_ttl, state=state, maintain=maintain, witness=witness, max_batch=max_batch
    )


def _kernel(
    url: str | None,
    keys: Keys | bytes | str | None,
    codec: str,
    schema: str,
    migrations: Migrations | None,
    blobs: Blobs | None,
    clock: Clock | None,
    options: dict[str, Any],
) -> Kernel:
    from perdure.database import FORMS
    from perdure.kernel import Kernel
    from perdure.migrations import registry
    from perdure.names import check_name
    from perdure.stores import open_store

    if codec not in FORMS:
        msg = f"codec is one of {', '.join(FORMS)}, not {codec!r:.40}"
        raise InvalidInput(msg)
    check_name(schema, "schema version")
    ring = find_keys(keys)
    time = clock or SystemClock()
    store = open_store(url, clock=time, **options)
    kept = blobs if blobs is not None else _blobs(store.url, time)
    return Kernel(store, kept, ring, time, FORMS[codec], schema, migrations or registry)


def _blobs(url: str, clock: Clock) -> Blobs:
    """The blobs of an embedded store live beside it."""
    scheme, _, rest = url.partition("://")
    if scheme == "memory":
        from perdure.blobs.memory import MemoryBlobs

        return MemoryBlobs.named(rest, clock)
    from perdure.blobs.local import LocalBlobs

    folder = f"{rest}/blobs" if scheme == "file" else f"{rest.removeprefix('/')}-blobs"
    return LocalBlobs(folder, clock=clock)
