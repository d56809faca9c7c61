"""URLs of servers: shown without their secrets, with our own parameters taken out of the query."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from perdure.errors import InvalidInput

_SECRET = re.compile(r"pass|secret|token|key|sig|credential", re.IGNORECASE)
TIERED = "tiered:"


def shown(url: str) -> str:
    """The URL as logs, errors and ``store.url`` may show it: no password, nothing secret in the query.

    >>> shown("postgresql://ana:s3cr3t@db.example/agents?sslpassword=x&sslmode=require")
    'postgresql://ana@db.example/agents?sslmode=require'
    >>> shown("tiered:redis://:pw@a,postgresql://u:pw@b/c")
    'tiered:redis://a,postgresql://u@b/c'
    """
    if url.startswith(TIERED):
        hot, cold = tiers(url)
        return f"{TIERED}{shown(hot)},{shown(cold)}"
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        user = unquote(parts.username or "")
    except ValueError:
        return url.partition("://")[0] + "://…"
    netloc = f"{quote(user, safe='')}@{host}" if user else host
    kept = [(name, value) for name, value in parse_qsl(parts.query) if not _SECRET.search(name)]
    if not netloc and parts.path.startswith("/"):
        return f"{parts.scheme}://{parts.path}" + (f"?{urlencode(kept)}" if kept else "")
    return urlunsplit((parts.scheme, netloc, parts.path, urlencode(kept), ""))


def tiers(url: str) -> tuple[str, str]:
    """The hot and the cold part of ``tiered:HOT,COLD``.

    >>> tiers("tiered:redis://a:1,postgresql://b/c")
    ('redis://a:1', 'postgresql://b/c')
    """
    found = re.fullmatch(r"tiered:(rediss?://.+?),([a-z0-9+]+://.+)", url)
    if not found:
        raise InvalidInput("a tiered store is written tiered:redis://host,postgresql://host/database (hot, then cold)")
    return found[1], found[2]


def take(url: str, *names: str) -> tuple[str, dict[str, str]]:
    """Take our own parameters out of a URL's query; the rest of it is the driver's.

    >>> take("redis://h:1/0?prefix=shop&socket_timeout=3", "prefix")
    ('redis://h:1/0?socket_timeout=3', {'prefix': 'shop'})
    """
    parts = urlsplit(url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    ours = {name: value for name, value in pairs if name in names}
    if not ours:
        return url, {}
    rest = urlencode([(name, value) for name, value in pairs if name not in names])
    return urlunsplit(parts._replace(query=rest)), ours


def path_of(url: str) -> str:
    """Where an embedded store lies; "" for one that has no path.

    >>> path_of("sqlite:////srv/agents.db"), path_of("agents.db"), path_of("redis://host")
    ('/srv/agents.db', 'agents.db', '')
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    if scheme == "sqlite":
        # Without the slash it is no proper URL: opening it says what a proper one looks like.
        return rest[1:] if rest.startswith("/") else ""
    return rest if scheme == "file" else ""


def is_one_place(url: str, other: str) -> bool:
    """Whether two URLs name the same store, also where an embedded one is called by two paths."""
    if url == other:
        return True
    paths = [path_of(one) for one in (url, other)]
    return all(map(os.path.exists, paths)) and os.path.samefile(*paths)


def only_existing(url: str) -> dict[str, Any]:
    """Options with which a store is opened but never made: on a server only the store can tell whether it is there."""
    return {"create": False} if "postgresql://" in url or "postgres://" in url else {}
