"""Stores, opened by URL. Each backend is imported only when it is opened."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from perdure.errors import InvalidInput, UnknownStore
from perdure.system.commands import DEFAULT_PATH
from perdure.system.urls import TIERED, shown, tiers

if TYPE_CHECKING:
    from perdure.protocols import Clock, Store

_KNOWN = (
    "memory://, memory://name, sqlite:///relative.db, sqlite:////absolute.db, file:///absolute/folder, "
    "postgresql://host/database, redis://host, tiered:redis://host,postgresql://host/database"
)
_SCHEMES = {
    "memory": "memory://", "sqlite": "sqlite:///relative.db or sqlite:////absolute.db", "file": "file:///absolute/folder",
    "postgresql": "postgresql://host/database", "postgres": "postgresql://host/database", "redis": "redis://host",
    "rediss": "rediss://host", "tiered": "tiered:redis://host,postgresql://host/database",
}  # fmt: skip
_SQLITE_ENDINGS = (".db", ".sqlite", ".sqlite3")


def open_store(url: str | os.PathLike[str] | None = None, *, clock: Clock | None = None, **options: Any) -> Store:
    """Open a store by its URL; it is made when it is not there yet.

    ``memory://`` is private to the handle, ``memory://name`` shared by all handles of this process.
    A bare path that ends in .db or .sqlite is an SQLite file. Without a URL: ``./.perdure/agents.db``.
    ``options`` are the store's own, such as ``synchronous="normal"`` of SQLite.

    >>> store = open_store("memory://")
    >>> store.promise.process_crash
    False
    >>> store.close()
    """
    if url is None:
        return _sqlite(DEFAULT_PATH, clock, options)
    text = os.fspath(url)
    if text.startswith(TIERED):
        return _tiered(text, clock, options)
    scheme, separator, rest = text.partition("://")
    if not separator:
        if named := re.match(r"([a-zA-Z][a-zA-Z0-9+.-]+):", text):
            # A URL with a slash too few is no path: nothing is made under its name.
            raise UnknownStore(f"{shown(text)!r:.200} names no store: {_nearest(named[1])}use one of {_KNOWN}")
        if text.endswith(_SQLITE_ENDINGS):
            return _sqlite(text, clock, options)
        raise UnknownStore(f"{text!r:.200} names no store: use one of {_KNOWN}, or a path that ends in .db")
    match scheme.lower():
        case "memory":
            from perdure.stores.memory.store import MemoryStore

            return _made(MemoryStore, rest, clock, options)
        case "sqlite":
            return _sqlite(_sqlite_path(text, rest), clock, options)
        case "file":
            from perdure.stores.file.store import FileStore

            if not rest.strip("/"):
                raise InvalidInput(f"{text!r} names no folder: write file:///absolute/folder")
            return _made(FileStore, rest, clock, options)
        case "postgresql" | "postgres":
            from perdure.stores.postgres.store import PostgresStore

            return _made(PostgresStore, text, clock, options)
        case "redis" | "rediss":
            from perdure.stores.redis.store import RedisStore

            return _made(RedisStore, text, clock, options)
        case _:
            raise UnknownStore(f"there is no store {scheme[:40]!r}: {_nearest(scheme)}known are {_KNOWN}")


def _nearest(scheme: str) -> str:
    """What was meant, most likely."""
    import difflib

    # Drivers of other libraries are named after a plus.
    name = scheme.lower().partition("+")[0]
    near = difflib.get_close_matches({"pg": "postgresql", "psql": "postgresql"}.get(name, name), _SCHEMES, 1)
    return f"did you mean {_SCHEMES[near[0]]}? Else " if near else ""


def _tiered(url: str, clock: Clock | None, options: dict[str, Any]) -> Store:
    from perdure.stores.tiered.store import TieredStore

    hot, cold = tiers(url)
    own = {name: options.pop(name) for name in TieredStore.OPTIONS if name in options}
    truth = open_store(cold, clock=clock, **options)
    try:
        return TieredStore(hot, truth, clock=clock, **own)
    except BaseException:
        truth.close()
        raise


def _sqlite_path(url: str, rest: str) -> str:
    path = rest.removeprefix("/")
    if rest == path or not path.strip("/"):
        raise InvalidInput(f"{url!r} names no file: three slashes for a relative path, four for an absolute one")
    if path == ":memory:":
        raise InvalidInput("SQLite in memory is not offered: use memory://")
    if "?" in path:
        raise InvalidInput(f"{url!r}: options are passed as keywords, not in the URL")
    folder = os.path.dirname(path)
    if not os.path.isabs(path) and folder and not os.path.isdir(folder) and os.path.isdir(f"/{folder}"):
        raise InvalidInput(
            f"{url!r} names a file in the folder {os.path.abspath(folder)}, which is not there: nothing was made; "
            f"four slashes name one in /{folder}: sqlite:////{path}"
        )
    return path


def _sqlite(path: str, clock: Clock | None, options: dict[str, Any]) -> Store:
    from perdure.stores.sqlite.store import SqliteStore

    return _made(SqliteStore, path, clock, options)


def _made(store: Any, target: str, clock: Clock | None, options: dict[str, Any]) -> Store:
    """Call a store's constructor; an option it does not have is the caller's mistake, and says so."""
    if options:
        import inspect

        known = set(inspect.signature(store).parameters) - {"path", "name", "url", "clock"}
        if wrong := sorted(set(options) - known):
            has = ", ".join(sorted(known)) or "none"
            raise InvalidInput(f"{store.__name__} has no option {wrong[0]!r}: it has {has}")
    return store(target, clock=clock, **options)
