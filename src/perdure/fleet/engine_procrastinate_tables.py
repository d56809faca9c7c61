"""The tables of the jobs that wake workers: Procrastinate's own, in a schema of their own, and what makes the jobs."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import TYPE_CHECKING

from perdure.errors import InvalidInput, MissingExtra
from perdure.pg.place import quoted
from perdure.pg.text import packed
from perdure.stores._pg_open import LOCK

try:
    from procrastinate.schema import SchemaManager, migrations_path
except ImportError:
    raise MissingExtra("procrastinate", "fleet") from None

if TYPE_CHECKING:
    from perdure.pg.link import Connection

VERSION = 1
"""Of what lies beside Procrastinate's own tables."""
MOST = 200
"""Jobs that one transaction makes of sessions it queues."""
SOON = 600_000
"""Times further off than so many ms have no job yet: with 50,000 of them each look for one took 30 ms."""


def jobs_schema(schema: str) -> str:
    """The name of the schema that holds the jobs of a store.

    >>> jobs_schema("shop")
    'shop_jobs'
    """
    name = f"{schema}_jobs"
    if len(name.encode()) <= 63:
        return name
    return f"{schema.encode()[:40].decode(errors='ignore')}_{hashlib.md5(schema.encode()).hexdigest()[:12]}_jobs"


def queue_of(jobs: str, agent: str) -> str:
    """The queue of an agent's jobs. Its name is part of a channel's, which must not be long.

    >>> queue_of("shop_jobs", "support")
    'perdure:61d221b78dde3f53'
    """
    return "perdure:" + hashlib.md5(f"{jobs}/{packed(agent)}".encode()).hexdigest()[:16]


def _migrations() -> list[str]:
    return sorted(path.stem for path in migrations_path.glob("*.sql"))


def _mark() -> str:
    return f"perdure {VERSION} {_migrations()[-1]}"


def _is_up_to_date(connection: Connection, schema: str, jobs: str) -> bool:
    # From the catalogs themselves, which are never out of date.
    rows = connection.ask(
        "select obj_description(n.oid, 'pg_namespace') from pg_namespace n where n.nspname = %s and exists ("
        "select from pg_trigger t where t.tgrelid = to_regclass(%s) and t.tgname = 'perdure_fleet_hint')",
        (jobs, f"{quoted(schema)}.perdure_fleet_work"),
    )
    # A newer one is left as it is: this process is of the last deploy.
    return bool(rows and rows[0][0]) and rows[0][0] >= _mark()


def make_jobs(connection: Connection, schema: str, jobs: str) -> None:
    """Make the tables, or bring older ones up to date; safe when many processes do so at the same moment."""
    if _is_up_to_date(connection, schema, jobs):
        return
    with connection.transaction():
        connection.ask("select pg_advisory_xact_lock(%s)", (LOCK,))
        if not _is_up_to_date(connection, schema, jobs):
            _make(connection, schema, jobs)


def _make(connection: Connection, schema: str, jobs: str) -> None:
    connection.run(f"create schema if not exists {quoted(jobs)}; set local search_path = {quoted(jobs)}")
    ((there, note),) = connection.ask(
        "select to_regclass(%s) is not null, obj_description(to_regnamespace(%s), 'pg_namespace')",
        (f"{quoted(jobs)}.procrastinate_jobs", quoted(jobs)),
    )
    known = (note or "").split()
    if not there:
        connection.run(SchemaManager.get_schema())
    elif len(known) != 3 or known[0] != "perdure":
        raise InvalidInput(f"schema {jobs} holds another Procrastinate: the jobs of {schema} have no place there")
    else:
        for name in _migrations():
            if name > known[2]:
                connection.run((migrations_path / f"{name}.sql").read_text("utf-8"))
    script = (resources.files("perdure.stores") / "sql" / "postgres_board_hints.sql").read_text("utf-8")
    words = {
        "$schema": quoted(schema),
        "$jobs": quoted(jobs),
        "$name": jobs.replace("'", "''"),
        "$most": str(MOST),
        "$soon": str(SOON),
    }
    for word, value in words.items():
        script = script.replace(word, value)
    connection.run(f"{script}; comment on schema {quoted(jobs)} is '{_mark()}'")
