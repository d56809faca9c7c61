"""The few methods of SQLite's cursors that we use, typed; apsw's own types need a newer Python than ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import apsw


class Cursor(Protocol):
    """Runs statements and gives their rows."""

    def execute(self, statements: str, bindings: Sequence[Any] | None = None) -> Cursor:
        """Run one or more statements."""
        ...

    def executemany(self, statements: str, sequenceofbindings: Iterable[Sequence[Any]]) -> Cursor:
        """Run statements once for each of the bindings."""
        ...

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row, if there is one."""
        ...

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows that are left."""
        ...

    def __iter__(self) -> Iterator[tuple[Any, ...]]: ...


def cursor_of(connection: apsw.Connection) -> Cursor:
    """A new cursor."""
    return cast("Cursor", connection.cursor())


def value_of(cursor: Cursor, sql: str, values: Sequence[Any] = ()) -> Any:
    """The first column of the first row; None when there is no row."""
    # Reading to the end ends the statement, which would keep its reading transaction open otherwise.
    rows = cursor.execute(sql, values).fetchall()
    return rows[0][0] if rows else None
