"""One question in SQL about a store in PostgreSQL, read-only, bounded in time and rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from perdure.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.pg.link import Connection


class Answer(NamedTuple):
    """The rows of an answer, under their names."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    more: bool
    """Whether there were more rows than were asked for."""


def query(connection: Connection, schema: str, sql: str, *, limit: int, seconds: float) -> Answer:
    """Ask; what would write, take too long or be more than one statement is refused by the server."""
    connection.run("begin isolation level repeatable read read only")
    try:
        connection.ask("select set_config('statement_timeout', %s, true)", (str(max(1, round(seconds * 1000))),))
        connection.ask("select set_config('search_path', %s, true)", (schema,))
        # Asked for in binary, which only the protocol for single statements can do: several are a syntax error.
        cursor = connection.cursor(binary=True)
        cursor.execute(sql.encode(), prepare=False)
        if cursor.description is None:
            raise InvalidInput("this statement gives no rows: ask with SELECT")
        rows = cursor.fetchmany(limit + 1)
        columns = tuple(column.name for column in cursor.description)
    except psycopg.Error as error:
        if error.sqlstate is None:
            raise
        raise InvalidInput(_said(error, seconds)) from None
    finally:
        if not connection.closed:
            connection.run("rollback")
    return Answer(columns, rows[:limit], len(rows) > limit)


def _said(error: psycopg.Error, seconds: float) -> str:
    said = (error.diag.message_primary or type(error).__name__).strip()
    match error.sqlstate:
        case "57014":
            return f"the query took over {seconds:g} seconds: ask for less, or raise --timeout"
        case "25006":
            return f"queries only read ({said}): nothing was changed"
        case "42601" if "multiple commands" in said:
            return "one statement at a time, please"
        case _:
            hint = f" ({error.diag.message_hint})" if error.diag.message_hint else ""
            return f"PostgreSQL says: {said}{hint}"
