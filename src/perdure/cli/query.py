"""``perdure query``: one question in SQL about all sessions of a store in PostgreSQL."""

from __future__ import annotations

import datetime
import decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.which_database import AsJson, Store, find_url
from perdure.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.stores.postgres.store import PostgresStore


def query(
    sql: Annotated[str, typer.Argument(metavar="SELECT", show_default=False)],
    store: Store = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="How many rows at most.")] = 1000,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.001, help="For how long at most.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Ask a store in PostgreSQL with SQL, read-only.

    There are the views perdure_sessions, perdure_steps, perdure_effects and perdure_approvals.
    """
    from perdure.cli.output import Out, print_json
    from perdure.shapes.store import Table
    from perdure.system.wording import count

    opened = _open(find_url(store))
    try:
        answer = opened.query(sql, limit=limit, seconds=timeout)
    finally:
        opened.close()
    rows = [[_plain(value) for value in row] for row in answer.rows]
    if as_json:
        named = [dict(zip(answer.columns, row, strict=True)) for row in rows]
        print_json(Table(columns=list(answer.columns), rows=named, more=answer.more))
        return
    out = Out()
    out.table(answer.columns, [["-" if value is None else str(value) for value in row] for row in rows])
    out.line(f"{count(len(rows), 'row')}{', and there are more: raise --limit' if answer.more else ''}", "dim")


def _open(url: str) -> PostgresStore:
    """The store that can be asked: of two tiers, the one that is the truth."""
    from perdure.system.urls import TIERED, shown, tiers

    where = tiers(url)[1] if url.startswith(TIERED) else url
    if where.partition("://")[0].lower() not in ("postgresql", "postgres"):
        raise InvalidInput(
            f"{shown(url)} is not in PostgreSQL, and only there can be asked with SQL: use ls, log and show, "
            "or copy the sessions there"
        )
    from perdure.stores.postgres.store import PostgresStore

    return PostgresStore(where, create=False)


def _plain(value: Any) -> Any:
    """A value that JSON has a form for."""
    match value:
        case datetime.datetime() if value.tzinfo is not None:
            from perdure.system.wording import timestamp

            return timestamp(value.timestamp() * 1000)
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case decimal.Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return value.hex()
        case list():
            return [_plain(each) for each in value]  # type: ignore[misc]
        case dict():
            return {str(key): _plain(each) for key, each in value.items()}  # type: ignore[misc]
        case _:
            return str(value)
