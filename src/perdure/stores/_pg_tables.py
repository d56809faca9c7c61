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
