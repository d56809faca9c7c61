"""Opening a database by URL: which store, which blobs, which keys. The only place where the parts meet."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from perdure import telemetry
from perdure.blobs import open_blobs
from perdure.database import Database, DatabaseHandle
from perdure.errors import InvalidInput, Misuse
from perdure.kernel import Kernel
from perdure.record.codec import JSON, MSGPACK
from perdure.record.keys import Keys, find_keys
from perdure.session.tools.declaration import seconds
from perdure.state.declared_types import validator
from perdure.state.migrations import Migrations, registry
from perdure.stores import DEFAULT_PATH, open_store
from perdure.system import commands
from perdure.system.clock import SystemClock
from perdure.system.names import check_lease, check_name
from perdure.system.options import is_number
from perdure.system.urls import TIERED, tiers

if TYPE_CHECKING:
    from perdure.aio import AsyncDatabase
    from perdure.protocols import Blobs, Clock, Store

FORMS = {"msgpack": MSGPACK, "json": JSON}
KEEP_EXPIRED = 7 * 86_400
"""Seconds for which an expired session can be brought back."""
LEASE_TTL = 10.0
"""Seconds a lease lives without being renewed."""


def open(
    url: str | os.PathLike[str] | Store | None = None,
    *,
    keys: Keys | bytes | str | None = None,
    codec: str = "msgpack",
    schema: str = "1.0.0",
    migrations: Migrations | None = None,
    state: Any = None,
    lease_ttl: float = LEASE_TTL,
    maintain: bool = True,
    blobs: Blobs | str | None = None,
    clock: Clock | None = None,
    witness: str | os.PathLike[str] | None = None,
    keep_expired: str | float = KEEP_EXPIRED,
    **options: Any,
) -> Database:
    """Open a database: ``sqlite:///agents.db``, ``postgresql://host/db``, ``redis://host``; None: ``./.perdure/``.
    A path to a file is an SQLite database, too. A folder that is missing is an error, not made.

    A :class:`perdure.protocols.Store` of your own is passed as it is, with ``blobs``; closing the database closes it.

    ``keys`` (or the variable ``PERDURE_KEY``) keys the digest chain; ``codec`` is how new checkpoints are written,
    "msgpack" or "json"; ``schema`` is the version of the state your program writes; ``state`` a type it must fit.
    ``blobs`` is where bytes and values over 32 KiB go, such as ``s3://bucket/prefix``; None: beside or in the store.
    ``witness`` is a file outside the store that is told of every commit; ``verify`` compares with it, and a store that
    lacks what it saw is read, and not written (``BehindWitness``).
    ``keep_expired`` is for how long (seconds, or such as "7d") a session can be brought back after it has expired.
    Other options go to the store, such as ``synchronous="normal"`` for SQLite.
    """
    _check_kinds(lease_ttl=lease_ttl, maintain=maintain, witness=witness, state=state)
    kernel = build_kernel(url, keys, codec, schema, migrations, blobs, clock, options, keep_expired)
    return Database(kernel, lease_ttl=lease_ttl, state=state, maintain=maintain, witness=witness)


def open_async(
    url: str | os.PathLike[str] | Store | None = None,
    *,
    keys: Keys | bytes | str | None = None,
    codec: str = "msgpack",
    schema: str = "1.0.0",
    migrations: Migrations | None = None,
    state: Any = None,
    lease_ttl: float = LEASE_TTL,
    maintain: bool = True,
    blobs: Blobs | str | None = None,
    clock: Clock | None = None,
    witness: str | os.PathLike[str] | None = None,
    keep_expired: str | float = KEEP_EXPIRED,
    max_batch: int = 256,
    **options: Any,
) -> AsyncDatabase:
    """The same as :func:`open`, awaited: ``async with perdure.open_async(...) as db``.

    All commits that wait at one moment, up to ``max_batch``, become durable together.
    """
    from perdure.aio import AsyncDatabase

    _check_kinds(lease_ttl=lease_ttl, maintain=maintain, witness=witness, state=state)
    if not (is_number(max_batch) and max_batch >= 1):
        raise InvalidInput(f"max_batch is a number of commits, at least 1, not {max_batch!r:.40}")
    kernel = build_kernel(url, keys, codec, schema, migrations, blobs, clock, options, keep_expired)
    return AsyncDatabase(
        kernel, lease_ttl=lease_ttl, state=state, maintain=maintain, witness=witness, max_batch=max_batch
    )


def _check_kinds(*, lease_ttl: Any, maintain: Any, witness: Any, state: Any) -> None:
    """Refuse options of another kind than they are, before anything is opened."""
    check_lease(lease_ttl)
    if not isinstance(maintain, bool):
        raise InvalidInput(f"maintain is True or False, not {maintain!r:.40}")
    if not isinstance(witness, str | os.PathLike | None):
        raise InvalidInput(f"witness is the path of a file outside the store, not {witness!r:.40}")
    if state is not None:
        _ = validator(state)


def build_kernel(
    url: str | os.PathLike[str] | Store | None,
    keys: Keys | bytes | str | None,
    codec: str,
    schema: str,
    migrations: Migrations | None,
    blobs: Blobs | str | None,
    clock: Clock | None,
    options: dict[str, Any],
    keep_expired: str | float = KEEP_EXPIRED,
) -> Kernel:
    given: Any = codec
    if not isinstance(given, str) or codec not in FORMS:
        raise InvalidInput(f"codec is one of {', '.join(FORMS)}, not {codec!r:.40}")
    check_name(schema, "schema version")
    kept_for = int(seconds(keep_expired) * 1000) if keep_expired else 0
    if kept_for < 0:
        raise InvalidInput(f"keep_expired is a duration, or 0 for none, not {keep_expired!r:.40}")
    for option, part, has, wanted in (
        ("migrations", migrations, "upgrade", "a perdure.Migrations()"),
        ("clock", clock, "monotonic", "a perdure.protocols.Clock"),
        ("blobs", None if isinstance(blobs, str) else blobs, "put", "a URL, such as s3://bucket/prefix"),
    ):
        if part is not None and not hasattr(part, has):
            raise InvalidInput(f"{option} is {wanted}, not {part!r:.40}")
    telemetry.enable_from_environment()
    ring = find_keys(keys)
    time = clock or SystemClock()
    if isinstance(url, os.PathLike):
        # The name of a file, as open() takes it.
        url = os.fspath(url)
    if url is not None and not isinstance(url, str):
        _check_own(url, blobs, options)
        store = url
    else:
        # What is wrong with it already is told by an error that names it.
        commands.opened(ring, url or DEFAULT_PATH)
        try:
            store = open_store(url, clock=time, **options)
        finally:
            commands.closed(ring)
    try:
        kept = _blobs(url, store, blobs, time)
    except BaseException:
        store.close()
        raise
    return Kernel(store, kept, ring, time, FORMS[codec], schema, migrations or registry, kept_for)


def _check_own(store: Store, blobs: Blobs | str | None, options: dict[str, Any]) -> None:
    """A store that the caller has opened: it has its options, and nobody knows where its blobs would go."""
    if isinstance(store, DatabaseHandle):
        raise Misuse(f"{store.url} is open already: use this database, or pass its URL to open it once more")
    if not all(hasattr(store, name) for name in ("append", "look", "promise")):
        raise InvalidInput(
            f"a database is opened by its URL or path, such as sqlite:///agents.db, not by {type(store).__name__}"
        )
    if options:
        raise InvalidInput(f"a store that is open already takes no options: pass {min(options)!r} where you open it")
    if blobs is None:
        raise InvalidInput('say where blobs of your own store go, such as blobs="file:///absolute/folder"')


def _blobs(url: str | Store | None, store: Store, blobs: Blobs | str | None, clock: Clock) -> Blobs:
    """The blobs asked for; else those of the store: an embedded one's lie beside it, a server's inside it."""
    if blobs is not None:
        return open_blobs(blobs, store.id, clock=clock) if isinstance(blobs, str) else blobs
    where = store.url
    assert url is None or isinstance(url, str)
    if url is not None and url.startswith(TIERED):
        # Only what the caller passed still has the password in it.
        url = tiers(url)[1]
        where = url
    scheme, _, rest = where.partition("://")
    match scheme:
        case "memory":
            from perdure.blobs.memory import MemoryBlobs

            return MemoryBlobs.named(rest, clock)
        case "sqlite":
            # Beside the database itself: whoever opens it without the link looks for them there.
            from perdure.stores.sqlite.set_aside import database_of

            path = database_of(os.path.realpath(rest.removeprefix("/")))
            return open_blobs(f"file://{path}-blobs", store.id, clock=clock)
        case "file":
            return open_blobs(f"file://{rest}/blobs", store.id, clock=clock)
        case _:
            assert url is not None
            return open_blobs(url, store.id, clock=clock)
