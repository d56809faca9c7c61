"""Mutations of rows, for the SQLite store: what somebody does with a shell and write permission."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw

from perdure.record.codec import ZERO
from tests.campaigns.tamper.sealed_level import altered, forge_commit, forge_payload, forge_tail

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.campaigns.tamper.bytes_level import Mutation, Target

TABLES = ("meta", "sessions", "branches", "commits", "artifacts", "inbox")
KEYS = {
    "meta": ("key",), "sessions": ("no",), "branches": ("no", "name"), "commits": ("seq",),
    "artifacts": ("no", "kind", "line", "lo"), "inbox": ("no", "seq"),
}  # fmt: skip
SWAPS = {
    "commits": [
        ("payload",), ("envelope",), ("digest",), ("id",), ("envelope", "payload"), ("branch",), ("starts",),
        ("id", "digest", "envelope", "payload"), ("no", "line", "step"), ("line", "step"), ("takes",), ("blobs",),
    ],
    "sessions": [("id",), ("line", "step", "head"), ("head",), ("lines",), ("owner", "status"), ("expires",)],
    "branches": [("line", "step", "head"), ("head",), ("name",), ("step",)],
    "artifacts": [("body",), ("lo",), ("hi",), ("line",), ("no",), ("refs",), ("kind",), ("blobs",)],
    "inbox": [("body",), ("digest", "body"), ("key",), ("no",), ("taken",), ("kind",), ("key", "digest", "body")],
}  # fmt: skip


class Sql:
    """A connection to the copy, outside of Perdure."""

    def __init__(self, path: str) -> None:
        self._connection = apsw.Connection(path)
        self._cursor = self._connection.cursor()

    def rows(self, table: str, where: str = "true", *values: Any) -> list[dict[str, Any]]:
        """Rows by column."""
        cursor = self._cursor.execute(f"select * from {table} where {where}", values)
        found = cursor.fetchall()
        if not found:
            return []
        names = [column[1] for column in self._cursor.execute(f"pragma table_info({table})")]
        return [dict(zip(names, row, strict=True)) for row in found]

    def put(self, table: str, row: dict[str, Any]) -> None:
        """Write a row, in the place of any that has its key."""
        marks = ", ".join("?" * len(row))
        self._cursor.execute(f"insert or replace into {table} ({', '.join(row)}) values ({marks})", tuple(row.values()))

    def delete(self, table: str, row: dict[str, Any]) -> None:
        """Delete a row."""
        where = " and ".join(f"{key} = ?" for key in KEYS[table])
        self._cursor.execute(f"delete from {table} where {where}", tuple(row[key] for key in KEYS[table]))

    def execute(self, statement: str) -> None:
        """Anything else."""
        self._cursor.execute(statement)

    def close(self) -> None:
        """Write everything into the main file."""
        self._connection.close()


def _sql(change: Callable[[Target, Sql], str]) -> Mutation:
    def mutation(t: Target) -> str:
        sql = Sql(str(t.folder / "agents.db"))
        try:
            return change(t, sql)
        except apsw.ConstraintError:
            return ""
        finally:
            sql.close()

    mutation.__doc__ = change.__doc__
    return mutation


def _swap(t: Target, sql: Sql) -> str:
    """Columns of two rows trade places."""
    table = t.rng.choice(list(SWAPS))
    columns = t.rng.choice(SWAPS[table])
    rows = sql.rows(table)
    if len(rows) < 2:
        return ""
    a, b = t.rng.sample(rows, 2)
    if all(a[c] == b[c] for c in columns):
        return ""
    for row in (a, b):
        sql.delete(table, row)
    sql.put(table, {**a, **{c: b[c] for c in columns}})
    sql.put(table, {**b, **{c: a[c] for c in columns}})
    return f"{columns} of {table}"


def _copy(t: Target, sql: Sql) -> str:
    """A column of a row is written over that of another."""
    table = t.rng.choice(list(SWAPS))
    columns = t.rng.choice(SWAPS[table])
    rows = sql.rows(table)
    if len(rows) < 2:
        return ""
    a, b = t.rng.sample(rows, 2)
    if all(a[c] == b[c] for c in columns):
        return ""
    sql.delete(table, a)
    sql.put(table, {**a, **{c: b[c] for c in columns}})
    return f"{columns} of {table}"


def _delete(t: Target, sql: Sql) -> str:
    """A row is gone."""
    table = t.rng.choice(TABLES)
    rows = sql.rows(table)
    if not rows:
        return ""
    sql.delete(table, t.rng.choice(rows))
    return table


def _alter(t: Target, sql: Sql) -> str:
    """A value is another one."""
    table = t.rng.choice(TABLES)
    rows = sql.rows(table)
    if not rows:
        return ""
    row = t.rng.choice(rows)
    column = t.rng.choice(list(row))
    new = altered(t.rng, row[column], [other[column] for other in rows])
    if new == row[column]:
        return ""
    sql.delete(table, row)
    sql.put(table, {**row, column: new})
    return f"{column} of {table}"


def _old_row(t: Target, sql: Sql) -> str:
    """A row as it was at an earlier moment."""
    old = t.old(t.folder / "agents.db")
    if old is None:
        return ""
    before = Sql(str(_scratch(t, old)))
    try:
        table = t.rng.choice(["sessions", "branches", "commits", "artifacts", "inbox", "inbox"])
        now = {tuple(row[key] for key in KEYS[table]): row for row in sql.rows(table)}
        rows = [row for row in before.rows(table) if now.get(tuple(row[key] for key in KEYS[table])) != row]
    finally:
        before.close()
    if not rows:
        return ""
    sql.put(table, t.rng.choice(rows))
    return f"{table} of {old.parent.name}"


def _scratch(t: Target, old: Any) -> Any:
    """A copy of an old image that SQLite may open: it would recover its log in place."""
    scratch = t.folder / "scratch"
    scratch.mkdir(exist_ok=True)
    for path in old.parent.glob("agents.db*"):
        if path.is_file() and not path.name.endswith("-shm"):
            (scratch / path.name).write_bytes(path.read_bytes())
    return scratch / "agents.db"


def _roll_back(t: Target, sql: Sql) -> str:
    """The newest rows of a line are gone and the pointer agrees: no trace is left inside."""
    session = t.rng.choice(sql.rows("sessions"))
    line = t.rng.randrange(session["lines"]) if session["lines"] else 0
    rows = sorted(sql.rows("commits", "no = ? and line = ?", session["no"], line), key=lambda row: row["step"])
    if len(rows) < 2:
        return ""
    cut = t.rng.randrange(1, len(rows))
    for row in rows[cut:]:
        sql.delete("commits", row)
    last = {"line": line, "step": rows[cut - 1]["step"], "head": rows[cut - 1]["id"]}
    branch = rows[cut - 1]["branch"]
    if branch == "main" and session["line"] == line:
        sql.put("sessions", {**session, **last})
    elif branch != "main":
        sql.put("branches", {"no": session["no"], "name": branch, **last})
    for artifact in sql.rows("artifacts", "no = ? and line = ? and hi > ?", session["no"], line, last["step"]):
        sql.delete("artifacts", artifact)
    return f"line {line} cut at step {last['step']}"


def _move_head(t: Target, sql: Sql) -> str:
    """A pointer says an earlier checkpoint, or one of another line."""
    session = t.rng.choice(sql.rows("sessions"))
    target = t.rng.choice(sql.rows("commits", "no = ?", session["no"]) or [None])
    if target is None:
        return ""
    place = {"line": target["line"], "step": target["step"], "head": target["id"]}
    branches = sql.rows("branches", "no = ?", session["no"])
    if branches and t.rng.random() < 0.5:
        sql.put("branches", {**t.rng.choice(branches), **place})
    elif (session["line"], session["step"]) == (place["line"], place["step"]):
        return ""
    else:
        sql.put("sessions", {**session, **place})
    return f"to step {target['step']} of line {target['line']}"


def _untake(t: Target, sql: Sql) -> str:
    """An input that was taken waits again, with the body it had; or one that waits counts as taken."""
    taken = sql.rows("inbox", "taken is not null")
    old = t.old(t.folder / "agents.db")
    if not taken or old is None or t.rng.random() < 0.4:
        row = t.rng.choice(sql.rows("inbox", "taken is null"))
        sql.put("inbox", {**row, "taken": t.rng.choice(sql.rows("commits"))["id"]})
        return "counts as taken"
    row = t.rng.choice(taken)
    before = Sql(str(_scratch(t, old)))
    same = before.rows("inbox", "no = ? and seq = ?", row["no"], row["seq"])
    before.close()
    if not same or not same[0]["body"]:
        return ""
    sql.put("inbox", {**row, "taken": None, "body": same[0]["body"]})
    return "waits again"


OF_SESSION = ("branches", "commits", "artifacts", "inbox")


def _replace_session(sql: Sql, session: dict[str, Any], other: Sql, theirs: dict[str, Any]) -> None:
    """A session becomes what it is in another file."""
    last = max(row["seq"] for row in sql.rows("commits"))
    for table in OF_SESSION:
        for row in sql.rows(table, "no = ?", session["no"]):
            sql.delete(table, row)
        for number, row in enumerate(other.rows(table, "no = ?", theirs["no"]), start=1):
            again = {"seq": last + number} if table == "commits" else {}
            sql.put(table, {**row, "no": session["no"], **again})
    sql.put("sessions", {**theirs, "no": session["no"]})


def _transplant_session(t: Target, sql: Sql) -> str:
    """A session of another store under the same key, as a whole."""
    other = Sql(str(_scratch(t, t.foreign(t.folder / "agents.db"))))
    session = t.rng.choice(sql.rows("sessions"))
    for theirs in other.rows("sessions", "id = ?", session["id"]):
        _replace_session(sql, session, other, theirs)
    other.close()
    return session["id"]


def _transplant_row(t: Target, sql: Sql) -> str:
    """A row of another store under the same key, in the same place of the same session."""
    other = Sql(str(_scratch(t, t.foreign(t.folder / "agents.db"))))
    session = t.rng.choice(sql.rows("sessions"))
    table = t.rng.choice(["commits", "artifacts", "inbox"])
    place = {"commits": ("line", "step"), "artifacts": ("kind", "line", "lo"), "inbox": ("key",)}[table]
    (theirs,) = other.rows("sessions", "id = ?", session["id"])
    ours = {tuple(row[key] for key in place): row for row in sql.rows(table, "no = ?", session["no"])}
    rows = [row for row in other.rows(table, "no = ?", theirs["no"]) if tuple(row[key] for key in place) in ours]
    other.close()
    if not rows:
        return ""
    row = t.rng.choice(rows)
    there = ours[tuple(row[key] for key in place)]
    sql.delete(table, there)
    sql.put(table, {**row, "no": there["no"], **({"seq": there["seq"]} if "seq" in there else {})})
    return table


def _session_back(t: Target, sql: Sql) -> str:
    """A whole session as it was at an earlier moment."""
    old = t.old(t.folder / "agents.db")
    if old is None:
        return ""
    before = Sql(str(_scratch(t, old)))
    session = t.rng.choice(sql.rows("sessions"))
    found = before.rows("sessions", "id = ?", session["id"])
    for then in found:
        _replace_session(sql, session, before, then)
    before.close()
    return session["id"] if found and found[0] != session else ""


def _forge_deletion(t: Target, sql: Sql) -> str:
    """A session has ended by the word of a tombstone that nobody wrote, or without a word; or an input is gone."""
    session = t.rng.choice(sql.rows("sessions"))
    what = t.rng.choice(["tombstone", "no trace", "input", "newest input"])
    if "input" in what:
        rows = sorted(sql.rows("inbox", "no = ? and taken is null", session["no"]), key=lambda row: row["seq"])
        if not rows:
            return ""
        sql.delete("inbox", rows[-1] if what == "newest input" else t.rng.choice(rows))
        if what == "newest input":
            sql.put("sessions", {**session, "posts": rows[-1]["seq"] - 1})
        return what
    for table in OF_SESSION:
        for row in sql.rows(table, "no = ?", session["no"]):
            sql.delete(table, row)
    if what == "no trace":
        sql.delete("sessions", session)
    else:
        gone = {"reason": "expired", "status": "expired", "updated": t.original.now + 1, "lines": 0}
        sql.put("sessions", {**session, **gone, "line": None, "step": None, "head": None})
    return what


def _forge_seal(t: Target, sql: Sql) -> str:
    """Another header or content for sealed bytes: versions, flags, sizes, bombs, no key."""
    table = t.rng.choice(["commits", "commits", "artifacts", "inbox"])
    column = "payload" if table == "commits" else "body"
    rows = sql.rows(table, f"length({column}) > 8")
    if not rows:
        return ""
    row = t.rng.choice(rows)
    forge = forge_payload if table == "commits" else forge_tail
    what, forged = forge(t.rng, row[column])
    if forged == row[column]:
        return ""
    sql.put(table, {**row, column: forged})
    return f"{what} of {table}"


def _forge_commit(t: Target, sql: Sql) -> str:
    """A checkpoint that says something else, sealed without the key."""
    rows = sql.rows("commits", "length(envelope) > 0")
    row = t.rng.choice(rows)
    before = sql.rows("commits", "no = ? and line = ? and step = ?", row["no"], row["line"], row["step"] - 1)
    parent = before[0]["digest"] if before else ZERO
    (store,) = sql.rows("meta", "key = 'id'")
    what, envelope, digest, payload = forge_commit(t.rng, store["value"], row["envelope"], parent, row["digest"])
    sql.put("commits", {**row, "envelope": envelope, "digest": digest, "payload": payload})
    return what


def _drop_index(t: Target, sql: Sql) -> str:
    """Tables and indexes are not those that were made."""
    what = t.rng.choice([
        "drop index commits_by_step", "drop index commits_starting", "drop index inbox_waiting",
        "alter table commits add column extra text", "alter table inbox rename to box", "drop table artifacts",
        "drop table branches", "create trigger t after insert on commits begin delete from commits; end",
        "pragma user_version = 9", "pragma application_id = 0",
    ])  # fmt: skip
    sql.execute(what)
    return what


ROWS: dict[str, Mutation] = {
    "rows swapped": _sql(_swap),
    "row over row": _sql(_copy),
    "row deleted": _sql(_delete),
    "value altered": _sql(_alter),
    "old row": _sql(_old_row),
    "tail cut": _sql(_roll_back),
    "pointer moved": _sql(_move_head),
    "input replayed": _sql(_untake),
    "session transplanted": _sql(_transplant_session),
    "row transplanted": _sql(_transplant_row),
    "session rolled back": _sql(_session_back),
    "deletion forged": _sql(_forge_deletion),
    "seal forged": _sql(_forge_seal),
    "commit forged": _sql(_forge_commit),
    "schema changed": _sql(_drop_index),
}
