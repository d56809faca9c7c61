"""Questions to the PostgreSQL store, each one statement and thus one instant, and what the answers mean."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from perdure.errors import CursorExpired, InvalidInput
from perdure.links.postgres import packed, unpacked
from perdure.model import (
    MAIN,
    Artifact,
    Bundle,
    Change,
    ChangePage,
    Dump,
    Head,
    InboxEntry,
    LeaseInfo,
    Row,
    SessionRow,
    Span,
)
from perdure.stores import rules
from perdure.system.lease_holders import is_dead

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.links.postgres import Connection, Time
    from perdure.stores.listing import Asked, Count

_ROW = "line, step, id, digest, envelope, payload"
_SHOWN = "branch, kind, status, at, tool, error, takes, blobs, starts, run, effect, approval"
EXTRA = ("run", "effect", "approval")
"""Projections that only some rows have."""


class Reader:
    """The questions."""

    def __init__(self, schema: str, time: Time) -> None:
        self._schema = schema
        self._time = time
        self._session = (
            "select s.id, s.owner, s.status, s.created, s.updated, s.expires, s.reason, s.lines, s.holder, s.token,"
            " s.until - now.mono, now.wall, s.line, s.step, s.head, s.agent, s.error,"
            f" (select count(*) from {schema}.perdure_inbox i where i.no = s.no and i.taken is null),"
            " (select jsonb_agg(jsonb_build_array(b.name, b.line, b.step, encode(b.head, 'hex')))"
            f"  from {schema}.perdure_branch b where b.no = s.no)"
            f" from {schema}.perdure_session s, (select coalesce(%s, w) as wall, coalesce(%s, w) as mono"
            f" from (select {schema}.perdure_now() as w) as n) as now"
        )

    # -- sessions ----------------------------------------------------------------------------------

    def look(self, connection: Connection, session: str) -> SessionRow | None:
        """What is known of one session."""
        found = connection.ask(f"{self._session} where s.id = %s", (*self._time.now(), packed(session)))
        return _session_row(found[0]) if found else None

    def sessions(self, connection: Connection, asked: Asked) -> list[SessionRow]:
        """Sessions in the order that is asked for, tombstones left out."""
        tests, values, order = asked.sql("s.", "%s", "strpos", packed)
        sql = " and ".join([f"{self._session} where s.reason = ''", *tests])
        found = connection.ask(f"{sql} order by {order} limit %s", (*self._time.now(), *values, asked.limit))
        return [_session_row(values) for values in found]

    def counts(self, connection: Connection) -> list[Count]:
        """How many sessions there are by status, agent and error."""
        found = connection.ask(
            f"select status, agent, error, count(*) from {self._schema}.perdure_session where reason = ''"
            ' group by 1, 2, 3 order by status collate "C", agent collate "C", error collate "C"'
        )
        return [(unpacked(status), unpacked(agent), unpacked(error), number) for status, agent, error, number in found]

    # -- rows --------------------------------------------------------------------------------------

    def starts(self, connection: Connection, session: str, branch: str | None) -> list[Row]:
        """The first rows of a branch's lines, or of all lines."""
        found = connection.ask(
            f"select {_of('r', _ROW)} from {self._schema}.perdure_row r"
            f" join {self._schema}.perdure_session s on s.no = r.no"
            " where s.id = %s and r.starts and (%s::text is null or r.branch = %s) order by r.line",
            (packed(session), *([None if branch is None else packed(branch)] * 2)),
        )
        return [Row(*values) for values in found]

    def load(self, connection: Connection, session: str, line: int, step: int | None, *, refs: bool) -> Bundle:
        """What rebuilds a line at a step."""
        sql = f"select * from {self._schema}.perdure_load(%s, %s, %s, %s)"
        return _bundle(connection.ask(sql, (packed(session), line, step, refs)), session, line, step)

    def slice(self, connection: Connection, session: str, line: int, lo: int, hi: int) -> Bundle:
        """Some rows of a line."""
        sql = f"select * from {self._schema}.perdure_slice(%s, %s, %s, %s)"
        return _bundle(connection.ask(sql, (packed(session), line, lo, hi)), session, line, None)

    def artifacts(self, connection: Connection, session: str) -> list[Artifact]:
        """All artifacts of a session."""
        found = connection.ask(
            f"select a.kind, a.line, a.lo, a.hi, a.body, a.refs, a.blobs from {self._schema}.perdure_artifact a"
            f" join {self._schema}.perdure_session s on s.no = a.no where s.id = %s order by a.kind, a.line, a.lo",
            (packed(session),),
        )
        return [_artifact(*values) for values in found]

    # -- inbox, changes, blobs ---------------------------------------------------------------------

    def inbox(self, connection: Connection, session: str, limit: int, key: str | None) -> list[InboxEntry]:
        """Waiting entries, or the one of a key if it waits."""
        if key is not None:
            return self._entries(connection, session, "i.key = %s and i.taken is null limit %s", (packed(key), limit))
        return self._entries(connection, session, "i.taken is null order by i.seq limit %s", (limit,))

    def _entries(self, connection: Connection, session: str, where: str, values: tuple[Any, ...]) -> list[InboxEntry]:
        found = connection.ask(
            f"select i.key, i.kind, i.at, i.digest, i.body, i.seq, i.taken from {self._schema}.perdure_inbox i"
            f" join {self._schema}.perdure_session s on s.no = i.no where s.id = %s and {where}",
            (packed(session), *values),
        )
        return [
            InboxEntry(session, unpacked(key), unpacked(kind), at, digest, body, seq, taken or b"")
            for key, kind, at, digest, body, seq, taken in found
        ]

    def changes(self, connection: Connection, after: str | None, limit: int) -> ChangePage:
        """Commits after a cursor."""
        cursor = parse(after)
        while True:
            sql = (
                f"select * from {self._schema}.perdure_changes(%s::text::pg_snapshot, %s::text::pg_snapshot,"
                " %s::text::xid8, %s, %s)"
            )
            (first, *found) = connection.ask(sql, (*cursor[1:], limit))
            epoch, snapshot, lost = first[0], first[1], first[9]
            if after is not None and cursor.epoch != epoch:
                raise other_past()
            if lost:
                raise missed()
            if len(found) == limit:
                pos, seq = found[-1][8:]
                return ChangePage(_changes(found), str(Cursor(epoch, cursor.old, snapshot, pos, seq)))
            # That was the way up to this snapshot; when it ended just here, there may be more by now.
            was_last = not found and cursor.new is not None
            cursor = Cursor(epoch, snapshot)
            if not was_last:
                return ChangePage(_changes(found), str(cursor))

    def blob_page(self, connection: Connection, after: int, limit: int) -> tuple[list[str], int | None]:
        """Refs of some rows after a number, and the number to go on from (None: that was all)."""
        found = connection.ask(
            f"select r.seq, r.blobs from {self._schema}.perdure_row r"
            f" join {self._schema}.perdure_session s on s.no = r.no"
            " where r.blobs is not null and r.seq > %s order by r.seq limit %s",
            (after, limit),
        )
        refs = [unpacked(ref) for _, blobs in found for ref in blobs]
        return refs, found[-1][0] if len(found) == limit else None

    def artifact_blobs(self, connection: Connection) -> list[str]:
        """Refs of all artifacts, at one instant: they may move from one artifact to another."""
        found = connection.ask(
            f"select a.blobs from {self._schema}.perdure_artifact a"
            f" join {self._schema}.perdure_session s on s.no = a.no where a.blobs is not null"
        )
        return [unpacked(ref) for (blobs,) in found for ref in blobs]

    # -- the whole ---------------------------------------------------------------------------------

    def dump(self, connection: Connection, session: str) -> Dump:
        """A whole session."""
        connection.run("begin isolation level repeatable read read only")
        try:
            row = self.look(connection, session)
            if row is None:
                raise rules.no_session(session)
            if row.reason:
                raise rules.gone(session, row.reason)
            found = connection.ask(
                f"select {_of('r', _ROW)}, {_of('r', _SHOWN)} from {self._schema}.perdure_row r"
                f" join {self._schema}.perdure_session s on s.no = r.no where s.id = %s order by r.pos, r.seq",
                (packed(session),),
            )
            entries = self._entries(connection, session, "true order by i.seq", ())
            artifacts = self.artifacts(connection, session)
        finally:
            if not connection.closed:
                connection.run("rollback")
        rows = tuple((Row(*values[:6]), _shown(values[6:])) for values in found)
        return Dump(row, rows, tuple(artifacts), tuple(entries))

    def count(self, connection: Connection) -> tuple[int, int, int]:
        """How many sessions and checkpoints there are, and their bytes."""
        ((sessions, rows, size),) = connection.ask(
            "select count(*) filter (where reason = ''), coalesce(sum(rows), 0)::bigint,"
            f" coalesce(sum(bytes), 0)::bigint from {self._schema}.perdure_session"
        )
        return sessions, rows, size


def lease_info(holder: str, token: int, left: int, wall: int) -> LeaseInfo:
    """A lease as shown to callers. A holder whose process is certainly dead holds nothing."""
    name = unpacked(holder)
    if not name or left <= 0 or is_dead(name):
        return LeaseInfo("", token, 0)
    return LeaseInfo(name, token, wall + left)


def _session_row(values: tuple[Any, ...]) -> SessionRow:
    id, owner, status, created, updated, expires, reason, lines, holder, token, left, wall, *more = values
    line, step, head, agent, error, pending, branches = more
    heads = [Head(unpacked(name), at, n, bytes.fromhex(tip)) for name, at, n, tip in branches or ()]
    if head is not None:
        heads.append(Head(MAIN, line, step, head))
    return SessionRow(
        unpacked(id), unpacked(owner), unpacked(status), created, updated, expires,
        lease_info(holder, token, left, wall), tuple(sorted(heads)), unpacked(reason), pending, lines,
        unpacked(agent), unpacked(error),
    )  # fmt: skip


def _bundle(found: list[tuple[Any, ...]], session: str, line: int, step: int | None) -> Bundle:
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
    base: Artifact | None = None
    rows: list[Row] = []
    packs: list[Artifact] = []
    for what, at, low, high, id, digest, envelope, body, refs, blobs, kind in rest:
        if what == "r":
            rows.append(Row(at, low, id, digest, envelope, body))
        elif what == "b":
            base = _artifact(kind, at, low, high, body, refs, blobs)
        else:
            packs.append(_artifact(kind, at, low, high, body, refs, blobs))
    return Bundle(base, tuple(rows), tuple(packs), hi)


def _artifact(kind: str, line: int, lo: int, hi: int, body: bytes, refs: Any, blobs: Any) -> Artifact:
    spans = tuple(Span(*span) for span in refs or ())
    return Artifact(unpacked(kind), line, lo, hi, body, spans, tuple(map(unpacked, blobs or ())))


def _changes(found: Iterable[tuple[Any, ...]]) -> tuple[Change, ...]:
    return tuple(
        Change(unpacked(session), unpacked(branch), line, step, id, unpacked(kind), unpacked(status), at)
        for session, branch, line, step, id, kind, status, at, *_ in found
    )


def _shown(values: tuple[Any, ...]) -> dict[str, Any]:
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


def _of(table: str, columns: str) -> str:
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
