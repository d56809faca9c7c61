"""What the answers of the PostgreSQL store mean: sessions, rows, changes and their cursors; and questions in SQL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from perdure import model
from perdure.errors import CursorExpired, InvalidInput
from perdure.links.postgres import unpacked
from perdure.stores import rules
from perdure.system.lease_holders import is_dead

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.links.postgres import Connection

ROW = "line, step, id, digest, envelope, payload"
SHOWN = "branch, kind, status, at, tool, error, takes, blobs, starts, run, effect, approval"
EXTRA = ("run", "effect", "approval")
"""Projections that only some rows have."""


def lease_info(holder: str, token: int, left: int, wall: int) -> model.LeaseInfo:
    """A lease as shown to callers. A holder whose process is certainly dead holds nothing."""
    name = unpacked(holder)
    if not name or left <= 0 or is_dead(name):
        return model.LeaseInfo("", token, 0)
    return model.LeaseInfo(name, token, wall + left)


def session_row(values: tuple[Any, ...]) -> model.SessionRow:
    id, owner, status, created, updated, expires, reason, lines, holder, token, left, wall, *more = values
    line, step, head, agent, error, pending, branches = more
    heads = [model.Head(unpacked(name), at, n, bytes.fromhex(tip)) for name, at, n, tip in branches or ()]
    if head is not None:
        heads.append(model.Head(model.MAIN, line, step, head))
    return model.SessionRow(
        unpacked(id), unpacked(owner), unpacked(status), created, updated, expires,
        lease_info(holder, token, left, wall), tuple(sorted(heads)), unpacked(reason), pending, lines,
        unpacked(agent), unpacked(error),
    )  # fmt: skip


def bundle_of(found: list[tuple[Any, ...]], session: str, line: int, step: int | None) -> model.Bundle:
    (what, at, lo, hi, *_, kind), *rest = found
    match what:
        case "ok":
            pass
        case "gone":
            raise rules.gone(session, unpacked(kind))
        case "no line":
            raise rules.no_line(session, line)
        case "retained":
            raise rules.retained(session, line, at if step is None else step, lo, hi)
        case "no step":
            raise rules.no_step(session, line, at if step is None else step, at)
        case _:
            raise rules.no_session(session)
    base: model.Artifact | None = None
    rows: list[model.Row] = []
    packs: list[model.Artifact] = []
    for what, at, low, high, id, digest, envelope, body, refs, blobs, kind in rest:
        if what == "r":
            rows.append(model.Row(at, low, id, digest, envelope, body))
        elif what == "b":
            base = artifact_of(kind, at, low, high, body, refs, blobs)
        else:
            packs.append(artifact_of(kind, at, low, high, body, refs, blobs))
    return model.Bundle(base, tuple(rows), tuple(packs), hi)


def artifact_of(kind: str, line: int, lo: int, hi: int, body: bytes, refs: Any, blobs: Any) -> model.Artifact:
    spans = tuple(model.Span(*span) for span in refs or ())
    return model.Artifact(unpacked(kind), line, lo, hi, body, spans, tuple(map(unpacked, blobs or ())))


def changes_of(found: Iterable[tuple[Any, ...]]) -> tuple[model.Change, ...]:
    return tuple(
        model.Change(unpacked(session), unpacked(branch), line, step, id, unpacked(kind), unpacked(status), at)
        for session, branch, line, step, id, kind, status, at, *_ in found
    )


def shown_of(values: tuple[Any, ...]) -> dict[str, Any]:
    branch, kind, status, at, tool, error, takes, blobs, starts, *extra = values
    shown: dict[str, Any] = {
        "branch": unpacked(branch),
        "kind": unpacked(kind),
        "status": unpacked(status),
        "at": at,
        "tool": unpacked(tool or ""),
        "error": unpacked(error or ""),
        "takes": tuple(map(unpacked, takes or ())),
        "blobs": tuple(map(unpacked, blobs or ())),
        "starts": starts,
    }
    shown.update({name: unpacked(value) for name, value in zip(EXTRA, extra, strict=True) if value})
    return shown


def of(table: str, columns: str) -> str:
    return ", ".join(f"{table}.{column}" for column in columns.split(", "))


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


_SNAPSHOT = r"[0-9]{1,19}:[0-9]{1,19}:[0-9,]{0,20000}"
_FORM = re.compile(rf"([0-9a-f]{{1,64}})/({_SNAPSHOT})?(?:/({_SNAPSHOT})/([0-9]{{1,19}})/([0-9]{{1,18}}))?", re.ASCII)


class Cursor(NamedTuple):
    """A place in the list of changes. ``old`` None: a scan from the beginning; ``new`` None: up to now."""

    epoch: str
    old: str | None = None
    new: str | None = None
    pos: str | None = None
    seq: int | None = None

    def __str__(self) -> str:
        way = f"/{self.new}/{self.pos}/{self.seq}" if self.new else ""
        return f"{self.epoch}/{self.old or ''}{way}"


def parse(after: str | None) -> Cursor:
    """The cursor that was given out as this text; None is the beginning.

    >>> str(parse("e0/7:9:7")), str(parse("e0//7:9:7/8/1"))
    ('e0/7:9:7', 'e0//7:9:7/8/1')
    """
    if after is None:
        return Cursor("")
    match = _FORM.fullmatch(after)
    if match is None or not (match[2] or match[3]):
        raise InvalidInput("this is not a cursor: pass one that changes() gave, or None for the beginning")
    return Cursor(match[1], match[2], match[3], match[4], None if match[5] is None else int(match[5]))


def other_past() -> CursorExpired:
    """The store's epoch is another one."""
    return CursorExpired("this cursor is from before the store's past changed: scan again from the beginning")


def missed() -> CursorExpired:
    """Rows were deleted that the cursor has not read."""
    return CursorExpired("changes after this cursor were deleted before they were read: scan again from the beginning")
