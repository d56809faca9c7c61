"""Rows of the PostgreSQL store: the values that are sent, what answers mean, cursors of changes, questions in SQL."""

from __future__ import annotations

import json
import random
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from perdure import model
from perdure.errors import InvalidInput, PerdureError, an
from perdure.links.postgres import packed, unpacked
from perdure.model import MAIN, Append, Head, Landed
from perdure.stores import rules
from perdure.system.lease_holders import busy, is_dead

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.links.postgres import Connection
    from perdure.model import Dump, Row, Span

ROW = "line, step, id, digest, envelope, payload"
EXTRA = ("run", "effect", "approval")
"""Projections that only some rows have."""
SHOWN = ", ".join((*rules.SHOWN, *EXTRA))
_ROWS = (
    "pos, no, at, line, step, starts, id, digest, kind, branch, status, envelope, payload, tool, error, takes, blobs, "
    + ", ".join(EXTRA)
)


_BYTES = {"id", "expect", "digest", "envelope", "payload"}
FORMATS = [0, 0, 0, 0, *(int(name in _BYTES) for name in Append._fields)]
"""Of the values of one commit: bytes go as they are, all others as text."""


# -- what is sent -----------------------------------------------------------------------------------------------------


class Promoted(Exception):
    """The server is on another timeline than the one our epoch belongs to: nothing was done."""


def new_claim() -> int:
    """A name for one call, by which it is known when it must be sent again."""
    return random.getrandbits(62) + 1


def restored_rows(dump: Dump) -> list[tuple[Any, ...]]:
    """The rows of a dump as they are inserted; an incomplete one is refused before anything is written."""
    return [_restored(row, shown) for row, shown in dump.rows]


def insert_dump(
    connection: Connection, schema: str, dump: Dump, rows: list[tuple[Any, ...]], claim: int, wall: int | None
) -> None:
    """Insert a dumped session, in one transaction of several statements."""
    row = rules.restored_row(dump)
    with connection.transaction():
        ((no, lines, head, claimed),) = connection.ask(
            f"select no, lines, head, claim from {schema}.perdure_lock(%s, coalesce(%s, {schema}.perdure_now()))",
            (packed(row.id), wall),
        )
        if lines:
            if claimed == claim:  # it was done, and only the answer was lost
                return
            raise rules.has_checkpoints(row.id, Head(MAIN, 0, 0, head) if head else None)
        size = sum(len(r.envelope) + len(r.payload) + 160 for r, _ in dump.rows)
        size += sum(len(artifact.body) for artifact in dump.artifacts)
        connection.each(
            f"insert into {schema}.perdure_row ({_ROWS}) values (pg_current_xact_id(), %s{', %s' * 18})",
            [(no, *values) for values in rows],
        )
        connection.each(
            f"insert into {schema}.perdure_branch (no, name, line, step, head) values (%s, %s, %s, %s, %s)",
            [(no, packed(h.branch), *h[1:]) for h in row.heads if h.branch != MAIN],
        )
        connection.each(
            f"insert into {schema}.perdure_artifact (no, kind, line, lo, hi, body, refs, blobs)"
            " values (%s, %s, %s, %s, %s, %s, %s, %s)",
            [
                (no, packed(a.kind), *a[1:5], json_of(a.refs), json_of(tuple(map(packed, a.blobs))))
                for a in dump.artifacts
            ],
        )
        # What was posted here meanwhile stays; what the dump has taken counts as taken.
        # Locked against posts, too, which give numbers.
        ((newest,),) = connection.ask(f"select posts from {schema}.perdure_session where no = %s for update", (no,))
        posted = connection.ask(f"select key, seq, digest from {schema}.perdure_inbox where no = %s", (no,))
        entries = rules.restored_inbox(
            dump, {unpacked(key): (seq, bytes(digest)) for key, seq, digest in posted}, newest
        )
        connection.each(
            f"insert into {schema}.perdure_inbox (no, seq, key, kind, at, digest, body, taken)"
            " values (%s, %s, %s, %s, %s, %s, %s, %s) on conflict (no, key) do update"
            " set taken = excluded.taken, body = '' where excluded.taken is not null",
            [(no, e.seq, packed(e.key), packed(e.kind), e.at, e.digest, e.body, e.taken or None) for e in entries],
        )
        main = next((head for head in row.heads if head.branch == MAIN), None)
        connection.ask(
            f"update {schema}.perdure_session set owner = %s, status = %s, created = %s, updated = %s,"
            " expires = %s, reason = %s, lines = %s, line = %s, step = %s, head = %s, rows = %s, bytes = %s,"
            " agent = %s, error = %s, label = %s, pos = pg_current_xact_id(), claim = %s,"
            " token = case when holder = '' then greatest(token, %s) else token end where no = %s",
            (
                packed(row.owner), packed(row.status), row.created, row.updated, row.expires,
                packed(row.reason), row.lines, *(main[1:] if main else (None, None, None)),
                len(dump.rows), size, packed(row.agent), packed(row.error), packed(row.label), claim,
                row.lease.token, no,
            ),
        )  # fmt: skip
        # Tokens of the other store may still be about: ours go on behind them.
        connection.ask(f"select {schema}.perdure_pass_token(%s)", (row.lease.token,))


def _restored(row: Row, shown: dict[str, Any]) -> tuple[Any, ...]:
    try:
        return (
            shown["at"], row.line, row.step, bool(shown["starts"]), row.id, row.digest, packed(str(shown["kind"])),
            packed(shown["branch"]), packed(str(shown["status"])), row.envelope, row.payload,
            packed(shown["tool"]) or None, packed(shown["error"]) or None,
            json_of(tuple(map(packed, shown["takes"]))), json_of(tuple(map(packed, shown["blobs"]))),
            *(packed(shown.get(name, "")) or None for name in EXTRA),
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"the dump is incomplete: a row has no proper {error}") from error


def values_of(item: Append) -> list[Any]:
    return [
        packed(item.session), packed(item.branch), item.line, item.step, item.id, item.expect, item.digest,
        item.envelope, item.payload, item.token, item.starts, packed(item.owner), packed(str(item.status)),
        packed(str(item.kind)), item.at, item.ttl,
        json_of(tuple(map(packed, item.takes))) if item.takes else None,
        json_of(tuple(map(packed, item.blobs))) if item.blobs else None,
        packed(item.tool) or None, packed(item.error) or None,
        packed(item.run) or None, packed(item.effect) or None, packed(item.approval) or None,
        packed(item.agent) or None, packed(item.label) or None,
    ]  # fmt: skip


def encoded(value: Any) -> bytes | None:
    """A value as the server reads it."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, int):
        return b"%d" % value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)  # type: ignore[reportUnknownArgumentType]
    raise InvalidInput(f"a field of the commit is {an(type(value).__name__)}, which cannot be stored")


def answer_of(item: Append, row: tuple[Any, ...]) -> Landed | PerdureError:
    code, line, step, id, detail, _, until = row
    head = None if id is None else Head(item.branch, line, step, id)
    match code:
        case "l":
            return Landed(item.id)
        case "a":
            return Landed(item.id, again=True)
        case "d":
            return rules.other_digest(item)
        case "f":
            return rules.lease_lost(item.session)
        case "b":
            return busy(item.session, unpacked(detail), until)
        case "t":
            return rules.taken_place(item, head)
        case "w":
            return rules.not_waiting(item, unpacked(detail), head)
        case _:
            return rules.moved(item, head)


def columns_of(rows: Sequence[tuple[Any, ...]], count: int = 0) -> list[list[Any]]:
    """Rows turned into columns; ``count`` says how many there are where no row does."""
    return list(map(list, zip(*rows, strict=True))) if rows else [[] for _ in range(count)]


def flat(spans: Sequence[Span]) -> list[int]:
    return [number for span in spans for number in span]


def json_of(values: Sequence[Any]) -> str | None:
    return json.dumps(values) if values else None


# -- what is answered -------------------------------------------------------------------------------------------------


def lease_info(holder: str, token: int, left: int, wall: int) -> model.LeaseInfo:
    """A lease as shown to callers. A holder whose process is certainly dead holds nothing."""
    name = unpacked(holder)
    if not name or left <= 0 or is_dead(name):
        return model.LeaseInfo("", token, 0)
    return model.LeaseInfo(name, token, wall + left)


def session_row(values: tuple[Any, ...]) -> model.SessionRow:
    id, owner, status, created, updated, expires, reason, lines, holder, token, left, wall, *more = values
    line, step, head, agent, error, label, pending, posts, branches = more
    heads = [model.Head(unpacked(name), at, n, bytes.fromhex(tip)) for name, at, n, tip in branches or ()]
    if head is not None:
        heads.append(model.Head(model.MAIN, line, step, head))
    return model.SessionRow(
        unpacked(id), unpacked(owner), unpacked(status), created, updated, expires,
        lease_info(holder, token, left, wall), tuple(sorted(heads)), unpacked(reason), pending, lines,
        unpacked(agent), unpacked(error), unpacked(label), posts, wall,
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
    shown: dict[str, Any] = dict(zip(rules.SHOWN, values, strict=False))
    for name in ("branch", "kind", "status", "tool", "error"):
        shown[name] = unpacked(shown[name] or "")
    for name in ("takes", "blobs"):
        shown[name] = tuple(map(unpacked, shown[name] or ()))
    extra = zip(EXTRA, values[len(rules.SHOWN) :], strict=True)
    return {**shown, **{name: unpacked(value) for name, value in extra if value}}


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
        raise rules.no_cursor()
    return Cursor(match[1], match[2], match[3], match[4], None if match[5] is None else int(match[5]))
