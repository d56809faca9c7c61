"""What is sent to the PostgreSQL store and what it says to that: values of a commit, its answer, a dump put back."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from perdure.errors import Busy, InvalidInput, PerdureError
from perdure.links.postgres import packed, unpacked
from perdure.model import MAIN, Append, Head, Landed
from perdure.stores import rules
from perdure.stores.postgres.read import EXTRA
from perdure.stores.rules import restored_row
from perdure.system.lease_holders import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.links.postgres import Connection
    from perdure.model import Dump, Row, Span

INLINE = 5_000
"""Rows that are deleted in the transaction that says so; more than that follow bit by bit."""

_ROWS = (
    "pos, no, at, line, step, starts, id, digest, kind, branch, status, envelope, payload, tool, error, takes, blobs, "
    + ", ".join(EXTRA)
)


_BYTES = {"id", "expect", "digest", "envelope", "payload"}
FORMATS = [0, 0, 0, 0, *(int(name in _BYTES) for name in Append._fields)]
"""Of the values of one commit: bytes go as they are, all others as text."""


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
    row = restored_row(dump)
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
        connection.each(
            f"insert into {schema}.perdure_inbox (no, key, kind, at, digest, body, taken)"
            " values (%s, %s, %s, %s, %s, %s, %s) on conflict (no, key) do update"
            " set taken = excluded.taken, body = '' where excluded.taken is not null",
            [(no, packed(e.key), packed(e.kind), e.at, e.digest, e.body, e.taken or None) for e in dump.inbox],
        )
        main = next((head for head in row.heads if head.branch == MAIN), None)
        connection.ask(
            f"update {schema}.perdure_session set owner = %s, status = %s, created = %s, updated = %s,"
            " expires = %s, reason = %s, lines = %s, line = %s, step = %s, head = %s, rows = %s, bytes = %s,"
            " agent = %s, error = %s, pos = pg_current_xact_id(), claim = %s,"
            " token = case when holder = '' then greatest(token, %s) else token end where no = %s",
            (
                packed(row.owner), packed(row.status), row.created, row.updated, row.expires,
                packed(row.reason), row.lines, *(main[1:] if main else (None, None, None)),
                len(dump.rows), size, packed(row.agent), packed(row.error), claim, row.lease.token, no,
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
        packed(item.agent) or None,
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
    raise InvalidInput(f"a field of the commit is a {type(value).__name__}, which cannot be stored")


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
            return Busy(item.session, describe(unpacked(detail)), until)
        case "t":
            return rules.taken_place(item, head)
        case "w":
            return rules.not_waiting(item, unpacked(detail), head)
        case _:
            return rules.moved(item, head)


def columns_of(rows: Sequence[tuple[Any, ...]], count: int) -> list[list[Any]]:
    return list(map(list, zip(*rows, strict=True))) if rows else [[] for _ in range(count)]


def flat(spans: Sequence[Span]) -> list[int]:
    return [number for span in spans for number in span]


def json_of(values: Sequence[Any]) -> str | None:
    return json.dumps(values) if values else None
