"""How much room the tables of the PostgreSQL store take, how much of it is dead, and giving some of it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from perdure.pg.link import Connection


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
