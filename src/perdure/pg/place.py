"""Where on a PostgreSQL server things lie: the URL taken apart into what the driver needs and what is ours."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from psycopg import Error
from psycopg.conninfo import conninfo_to_dict

from perdure.errors import InvalidInput
from perdure.urls import shown, take

_DEFAULTS = {
    "application_name": "perdure",
    "connect_timeout": "5",
    # A server that vanished without a word is noticed within a minute, also by a connection that only waits.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
_ODD = re.compile(r"""[\x00-\x1f"'%$\\]""")
_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Place(NamedTuple):
    """A schema of a database. The parameters hold the password: they are never shown."""

    parameters: dict[str, Any]
    schema: str
    """The PostgreSQL schema that holds the tables; "" means the connection's current one."""
    pooled: bool | None
    """Whether a transaction pooler such as PgBouncer is in between; None: find out."""
    url: str
    """As it may be shown."""

    def __repr__(self) -> str:
        return f"Place({self.url!r})"


def place_of(url: str) -> Place:
    """Take a URL apart.

    >>> place = place_of("postgresql://ana:pw@db.example/agents?schema=shop&pgbouncer=true")
    >>> place.schema, place.pooled, place
    ('shop', True, Place('postgresql://ana@db.example/agents?schema=shop&pgbouncer=true'))
    """
    try:
        rest, ours = take(url, "schema", "pgbouncer")
        named = ours.get("schema", "")
        parameters: dict[str, Any] = {**_DEFAULTS, **conninfo_to_dict(rest), "client_encoding": "UTF8"}
    except (Error, ValueError):
        # The driver's words may quote a part of the URL, and with it the password.
        raise InvalidInput(
            f"{shown(url)} is no PostgreSQL URL: write postgresql://user:password@host:port/database, "
            "with every character other than letters and digits of the password as %XX"
        ) from None
    if _ODD.search(named) or len(named.encode("utf-8", "replace")) > 63:
        raise InvalidInput(
            f"{named!r:.80} will not do as the name of a schema: use letters, digits and the like, up to 63 bytes"
        )
    word = ours.get("pgbouncer")
    if word is not None and word.lower() not in _WORDS:
        raise InvalidInput(f"pgbouncer is true or false, not {word!r:.40}")
    return Place(parameters, named, None if word is None else _WORDS[word.lower()], shown(url))


def quoted(name: str) -> str:
    """A name as an identifier in SQL.

    >>> quoted("Order book")
    '"Order book"'
    """
    return '"' + name.replace('"', '""') + '"'
