"""Making and recognising a store's tables in PostgreSQL, safe when many processes open it at the same moment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from psycopg import Error

from perdure.errors import InvalidInput, Unavailable, UnsupportedFormat
from perdure.links.postgres import is_replica, quoted
from perdure.model import Promise

if TYPE_CHECKING:
    from perdure.links.postgres import Connection

VERSION = 1
OLDEST_SERVER = 140000
PARTS = {1: ("", "_append", "_write", "_read", "_views")}
"""The scripts of each version, which lead there from the one before it."""
LOCK = 0x5045524455524500
"""Of the transactions that make or change tables: one at a time in a whole database."""

_HERE = (
    "select (select system_identifier::text from pg_control_system()),"
    " ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer"
)


class Opened(NamedTuple):
    """What a handle knows of its store."""

    schema: str
    """As an identifier in SQL."""
    id: str
    epoch: str
    timeline: int
    """0 when the server does not tell: a promotion is then not noticed."""
    promise: Promise


def open_schema(connection: Connection, wanted: str, url: str, *, create: bool) -> Opened:
    """Make the tables when there are none, refuse what is too new, give a new epoch when the server is another one."""
    ((encoding, version, sync, fsync, current, there),) = connection.ask(
        "select current_setting('server_encoding'), current_setting('server_version_num')::int,"
        " current_setting('synchronous_commit'), current_setting('fsync'), current_schema(),"
        " to_regclass(quote_ident(coalesce(nullif(%s, ''), current_schema())) || '.perdure_meta') is not null",
        (wanted,),
    )
    if version < OLDEST_SERVER:
        raise UnsupportedFormat(
            f"{url}: this is PostgreSQL {version // 10000}, and Perdure needs {OLDEST_SERVER // 10000} or newer"
        )
    if encoding != "UTF8":
        raise InvalidInput(f"{url}: the database keeps texts as {encoding}: create one with encoding UTF8")
    name = wanted or current
    if not name:
        raise InvalidInput(f"{url}: the connection has no current schema: add schema=… to the URL")
    schema = quoted(name)
    if not there and not create:
        raise Unavailable(f"{url}: there is no store in schema {name}: nothing was made")
    if not there:
        _create(connection, schema)
    ((found,),) = connection.ask(f"select version from {schema}.perdure_meta")
    if found > VERSION:
        raise UnsupportedFormat(
            f"{url}: the tables have version {found} and this Perdure knows up to {VERSION}: upgrade this process"
        )
    if found < VERSION:
        _upgrade(connection, schema)
    id, epoch, timeline = settle(connection, schema)
    return Opened(schema, id, epoch, timeline, _promise(sync, fsync))


def settle(connection: Connection, schema: str) -> tuple[str, str, int]:
    """Id, epoch and timeline of the store, after a new epoch was given if the server is not where the last one was."""
    cluster, timeline = _here(connection)
    meta = f"select id, epoch, cluster, timeline from {schema}.perdure_meta"
    ((id, epoch, *known),) = connection.ask(meta)
    if known == [cluster, timeline] or not timeline:
        return id, epoch, timeline
    # Moving all rows of a restored store to another cluster's numbers takes as long as it takes.
    limit, connection.limit = connection.limit, None
    try:
        with connection.transaction():
            ((id, epoch, *known),) = connection.ask(f"{meta} for update")
            if known != [cluster, timeline]:
                epoch = new_epoch()
                connection.ask(f"select {schema}.perdure_renew_epoch(%s, %s, %s, %s)", (epoch, cluster, timeline, JUMP))
    finally:
        connection.limit = limit
    return id, epoch, timeline


JUMP = 1 << 32
"""By how much tokens jump with a new epoch: past every one that a lost past may have given out."""


def new_epoch() -> str:
    """A name for an epoch."""
    return os.urandom(8).hex()


def _here(connection: Connection) -> tuple[str, int]:
    """The server's cluster and timeline; "" and 0 where it does not tell."""
    try:
        ((cluster, timeline),) = connection.ask(_HERE)
    except Error as error:
        if error.sqlstate is None or is_replica(error):
            raise
        return "", 0
    return cluster, timeline


def _create(connection: Connection, schema: str) -> None:
    cluster, timeline = _here(connection)
    with connection.transaction():
        connection.ask("select pg_advisory_xact_lock(%s)", (LOCK,))
        ((there,),) = connection.ask("select to_regclass(%s || '.perdure_meta') is not null", (schema,))
        if there:  # somebody else was first
            return
        ((made,),) = connection.ask("select to_regnamespace(%s) is not null", (schema,))
        if not made:
            connection.ask(f"create schema {schema}")
        connection.run(_script(1, schema))
        connection.ask(
            f"insert into {schema}.perdure_meta (version, id, epoch, cluster, timeline) values (1, %s, %s, %s, %s)",
            (os.urandom(16).hex(), new_epoch(), cluster, timeline),
        )
        _step_up(connection, schema, 1)


def _upgrade(connection: Connection, schema: str) -> None:
    """Bring older tables up to date; processes that have them open go on when it is done."""
    # Going through all sessions, or waiting for another process that does, takes as long as it takes.
    limit, connection.limit = connection.limit, None
    try:
        with connection.transaction():
            connection.ask("select pg_advisory_xact_lock(%s)", (LOCK,))
            ((found,),) = connection.ask(f"select version from {schema}.perdure_meta")
            _step_up(connection, schema, found)
    finally:
        connection.limit = limit


def _step_up(connection: Connection, schema: str, found: int) -> None:
    for version in range(found + 1, VERSION + 1):
        # Many statements in one go: the plain protocol, which takes no values.
        connection.run(_script(version, schema))


def _script(version: int, schema: str) -> str:
    """What makes a version out of the one before it."""
    from importlib import resources

    folder = resources.files("perdure.stores.postgres") / "sql"
    parts = [(folder / f"v{version}{part}.sql").read_text("utf-8") for part in PARTS[version]]
    return "\n".join(parts).replace("$schema", schema)


def _promise(sync: str, fsync: str) -> Promise:
    if fsync == "off":
        words = (
            "When a commit has returned, PostgreSQL has it, and it survives the end of any process. The server "
            "runs with fsync=off: a loss of power may take back commits or damage the whole database."
        )
    elif sync == "off":
        words = (
            "When a commit has returned, PostgreSQL has it. The server runs with synchronous_commit=off: a crash "
            "of the server or a loss of power may take back the commits of the last moments."
        )
    else:
        more = {
            "on": "When synchronous replicas are named, they have it, too.",
            "remote_apply": "When synchronous replicas are named, they have it and show it, too.",
            "remote_write": "When synchronous replicas are named, their systems have it, too.",
            "local": "Replicas may not have it yet.",
        }.get(sync, "")
        words = (
            f"When a commit has returned it is in the server's log and the log was synced (synchronous_commit={sync}): "
            "it survives the end of the client, of the server and a loss of power, as far as the server's disk keeps "
            f"what it says it has synced. {more} An asynchronous replica that is promoted may lack the newest commits."
        )
    return Promise(process_crash=True, power_loss="off" not in (fsync, sync), words=words)


class Table(NamedTuple):
    """One table on disk, as far as the server's statistics know."""

    name: str
    bytes: int
    """Of the rows, values kept outside of them included."""
    indexes: int
    """Bytes of all its indexes."""
    rows: int
    dead: int
    """Rows that were deleted or replaced and still take room: vacuum makes it free for new ones."""
    vacuumed: int | None
    """When it was last vacuumed, by whom ever; None: never."""


ENOUGH = 125
"""Dead rows of our own making before anybody looks at a table."""
SHARE = 0.02
"""Of the rows this part is dead before it is worth cleaning up."""
SMALL = 256 * 1024 * 1024
"""Bytes up to which we clean up ourselves; larger tables are left to autovacuum, which takes its time."""


def clean(connection: Connection, schema: str, dead: int) -> bool:
    """Make the room of dead rows free for new ones, when there are enough of them; False when not (yet).

    Autovacuum does the same within a minute or so; meanwhile a busy table would grow by what that minute left dead.
    """
    rows = f"{schema}.perdure_row"
    ((live, size),) = connection.ask(
        "select greatest(c.reltuples, 0)::bigint, pg_relation_size(c.oid) from pg_class c where c.oid = %s::regclass",
        (rows,),
    )
    if dead < ENOUGH + live * SHARE:
        return False
    if size <= SMALL:
        # Not at all rather than waiting for another one that does it already, or for everyone to let go of its end.
        connection.run(f"vacuum (skip_locked, truncate false) {rows}, {schema}.perdure_artifact")
    return True


def tables(connection: Connection, schema: str) -> list[Table]:
    """All tables of the store."""
    found = connection.ask(
        "select s.relname, pg_table_size(s.relid), pg_indexes_size(s.relid), s.n_live_tup, s.n_dead_tup,"
        " (extract(epoch from greatest(s.last_vacuum, s.last_autovacuum)) * 1000)::bigint"
        " from pg_stat_all_tables s where s.relid in (select c.oid from pg_class c"
        " where c.relnamespace = to_regnamespace(%s) and c.relkind = 'r' and c.relname like 'perdure\\_%%')"
        " order by s.relname",
        (schema,),
    )
    return [Table(*values) for values in found]
