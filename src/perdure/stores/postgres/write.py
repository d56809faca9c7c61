"""Changes to the PostgreSQL store, each one statement unless it says otherwise, and what the answers mean."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from perdure.errors import Busy, InvalidInput, PerdureError
from perdure.links.postgres import packed, unpacked
from perdure.model import MAIN, Append, Head, Landed, Lease, Status
from perdure.stores import rules
from perdure.stores.postgres.read import EXTRA
from perdure.stores.rules import restored_row
from perdure.system.lease_holders import describe, is_dead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.links.postgres import Connection, Time
    from perdure.model import Dump, InboxEntry, Rewrite, Row, Span

INLINE = 5_000
"""Rows that are deleted in the transaction that says so; more than that follow bit by bit."""

_ROWS = (
    "pos, no, at, line, step, starts, id, digest, kind, branch, status, envelope, payload, tool, error, takes, blobs, "
    + ", ".join(EXTRA)
)


_BYTES = {"id", "expect", "digest", "envelope", "payload"}
_FORMATS = [0, 0, 0, 0, *(int(name in _BYTES) for name in Append._fields)]
"""Of the values of one commit: bytes go as they are, all others as text."""


class Promoted(Exception):
    """The server is on another timeline than the one our epoch belongs to: nothing was done."""


class Writer:
    """The changes. ``timeline`` is the one that the handle's epoch belongs to."""

    def __init__(self, schema: str, time: Time, timeline: int) -> None:
        self._schema = schema
        self._time = time
        self.timeline = timeline
        numbers = ", ".join(f"${n}" for n in range(1, 29))
        self._one = f"select * from {schema}.perdure_append_one({numbers})"
        self._many = f"select * from {schema}.perdure_append(%s{', %s' * 27})"

    # -- commits -----------------------------------------------------------------------------------

    def append(self, connection: Connection, items: Sequence[Append]) -> list[Landed | PerdureError]:
        """Insert commits, each on its own terms, in one statement."""
        dead: list[int] = []
        while True:
            if len(items) == 1:
                found = [self._append_one(connection, items[0], dead)]
            else:
                found = self._append_many(connection, items, dead)
            if found[0][0] == "p":
                raise Promoted
            # A lease whose holder is certainly dead counts as free: said to the server, and asked once more. What
            # landed meanwhile is known by its id.
            gone = {row[5] for row in found if row[0] == "b" and is_dead(unpacked(row[4]))}
            if gone <= set(dead):
                return [_answer(item, row) for item, row in zip(items, found, strict=True)]
            dead += sorted(gone)

    def _append_one(self, connection: Connection, item: Append, dead: list[int]) -> tuple[Any, ...]:
        """One commit the short way: what every agent waits for after every step."""
        wall, mono = self._time.now()
        holders = "{" + ",".join(map(str, dead)) + "}"
        values = (self.timeline, wall, mono, holders, *_values(item))
        result = connection.ask_raw(self._one, list(map(_encoded, values)), _FORMATS)
        code, line, step, id, detail, number, until = (result.get_value(0, column) for column in range(7))
        return (
            (code or b"").decode(), line and int(line), step and int(step), id and bytes.fromhex(id[2:].decode()),
            (detail or b"").decode(), number and int(number), until and int(until),
        )  # fmt: skip

    def _append_many(self, connection: Connection, items: Sequence[Append], dead: list[int]) -> list[tuple[Any, ...]]:
        columns = map(list, zip(*map(_values, items), strict=True))
        return connection.ask(self._many, (self.timeline, *self._time.now(), dead, *columns))

    # -- inbox -------------------------------------------------------------------------------------

    def post(self, connection: Connection, entries: Sequence[InboxEntry]) -> list[bool | PerdureError]:
        """Insert inbox entries, each once."""
        if not entries:
            return []
        # In the order of sessions: two that post to several must not wait for each other.
        placed = sorted(enumerate(entries), key=lambda pair: pair[1].session)
        rows = [(packed(e.session), packed(e.key), packed(e.kind), e.at, e.digest, e.body) for _, e in placed]
        columns = list(map(list, zip(*rows, strict=True)))
        sql = f"select code from {self._schema}.perdure_post(%s{', %s' * 7})"
        found = connection.ask(sql, (self.timeline, self._time.now()[0], *columns))
        if found[0][0] == "p":
            raise Promoted
        codes = {place: code for (place, _), (code,) in zip(placed, found, strict=True)}
        return [
            rules.other_post(entry.session, entry.key) if codes[place] == "other" else codes[place] == "new"
            for place, entry in enumerate(entries)
        ]

    # -- leases ------------------------------------------------------------------------------------

    def acquire(self, connection: Connection, session: str, holder: str, span: int, claim: int) -> Lease:
        """Take the lease, or raise ``Busy``."""
        sql = f"select * from {self._schema}.perdure_acquire(%s{', %s' * 7})"
        values = (claim, packed(session), packed(holder), span)
        _, number, until = self._fenced(connection, sql, values, session)
        return Lease(session, holder, number, until)

    def _fenced(self, connection: Connection, sql: str, values: tuple[Any, ...], session: str) -> tuple[Any, ...]:
        """Ask for something that a living lease forbids; a dead holder's does not."""
        dead: list[int] = []
        while True:
            ((code, *rest),) = connection.ask(sql, (self.timeline, *self._time.now(), dead, *values))
            match code:
                case "p":
                    raise Promoted
                case "n":
                    raise rules.no_session(session)
                case "f":
                    raise rules.lease_lost(session)
                case "b":
                    detail, number, until = rest
                    if number in dead or not is_dead(unpacked(detail)):
                        raise Busy(session, describe(unpacked(detail)), until)
                    dead.append(number)
                case _:
                    return tuple(rest)

    def renew(self, connection: Connection, leases: Sequence[Lease], span: int) -> list[bool]:
        """Extend the leases that are still current."""
        if not leases:
            return []
        sessions, tokens = [packed(lease.session) for lease in leases], [lease.token for lease in leases]
        sql = f"select session, token from {self._schema}.perdure_renew(%s, %s, %s, %s, %s)"
        found = connection.ask(sql, (self.timeline, self._time.now()[1], span, sessions, tokens))
        if found and found[0][0] is None:
            raise Promoted
        return [pair in found for pair in zip(sessions, tokens, strict=True)]

    def release(self, connection: Connection, lease: Lease) -> None:
        """Give the lease back if it is still current."""
        connection.ask(f"select {self._schema}.perdure_release(%s, %s)", (packed(lease.session), lease.token))

    # -- maintenance -------------------------------------------------------------------------------

    def rewrite(self, connection: Connection, change: Rewrite, claim: int) -> tuple[bool, bool]:
        """Store a session otherwise. Whether it was done, and whether rows are left to be swept."""
        put = [
            (packed(a.kind), a.line, a.lo, a.hi, a.body, _json(a.refs), _json(tuple(map(packed, a.blobs))))
            for a in change.put
        ]
        discard = [(packed(kind), line, lo) for kind, line, lo in change.discard]
        sql = f"select code from {self._schema}.perdure_rewrite(%s{', %s' * 18})"
        ((code,),) = connection.ask(
            sql,
            (
                self.timeline, self._time.now()[1], claim, packed(change.session), change.token,
                *_columns(put, 7), _flat(change.thin), _flat(change.drop), _flat(change.needs),
                *_columns(discard, 3), INLINE,
            ),
        )  # fmt: skip
        match code:
            case "p":
                raise Promoted
            case "f":
                raise rules.lease_lost(change.session)
            case _:
                return code != "x", code == "l"

    def drop(self, connection: Connection, session: str, token: int | None, reason: str, claim: int) -> None:
        """Make a session a tombstone; what it had is out of sight and swept later."""
        status = (Status.EXPIRED if reason == Status.EXPIRED else Status.CLOSED).value
        sql = f"select * from {self._schema}.perdure_drop(%s{', %s' * 8})"
        values = (claim, packed(session), token, status, packed(reason or "deleted"))
        self._fenced(connection, sql, values, session)

    def sweep(self, connection: Connection, limit: int = INLINE) -> int:
        """Delete some rows that nobody needs, and say how many; -1 when there are none."""
        ((done,),) = connection.ask(f"select {self._schema}.perdure_sweep(%s)", (limit,))
        return done

    def restore(self, connection: Connection, dump: Dump, rows: list[tuple[Any, ...]], claim: int) -> None:
        """Insert a dumped session, in one transaction of several statements."""
        row, schema = restored_row(dump), self._schema
        wall = self._time.now()[0]
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
                    (no, packed(a.kind), *a[1:5], _json(a.refs), _json(tuple(map(packed, a.blobs))))
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

    def renew_epoch(self, connection: Connection, epoch: str, cluster: str, jump: int) -> None:
        """Set another epoch; every lease ends, and tokens go on behind any that was ever given."""
        connection.ask(
            f"select {self._schema}.perdure_renew_epoch(%s, %s, %s, %s)", (epoch, cluster, self.timeline, jump)
        )


def new_claim() -> int:
    """A name for one call, by which it is known when it must be sent again."""
    return random.getrandbits(62) + 1


def restored_rows(dump: Dump) -> list[tuple[Any, ...]]:
    """The rows of a dump as they are inserted; an incomplete one is refused before anything is written."""
    return [_restored(row, shown) for row, shown in dump.rows]


def _restored(row: Row, shown: dict[str, Any]) -> tuple[Any, ...]:
    try:
        return (
            shown["at"], row.line, row.step, bool(shown["starts"]), row.id, row.digest, packed(str(shown["kind"])),
            packed(shown["branch"]), packed(str(shown["status"])), row.envelope, row.payload,
            packed(shown["tool"]) or None, packed(shown["error"]) or None,
            _json(tuple(map(packed, shown["takes"]))), _json(tuple(map(packed, shown["blobs"]))),
            *(packed(shown.get(name, "")) or None for name in EXTRA),
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"the dump is incomplete: a row has no proper {error}") from error


def _values(item: Append) -> list[Any]:
    return [
        packed(item.session), packed(item.branch), item.line, item.step, item.id, item.expect, item.digest,
        item.envelope, item.payload, item.token, item.starts, packed(item.owner), packed(str(item.status)),
        packed(str(item.kind)), item.at, item.ttl,
        _json(tuple(map(packed, item.takes))) if item.takes else None,
        _json(tuple(map(packed, item.blobs))) if item.blobs else None,
        packed(item.tool) or None, packed(item.error) or None,
        packed(item.run) or None, packed(item.effect) or None, packed(item.approval) or None,
        packed(item.agent) or None,
    ]  # fmt: skip


def _encoded(value: Any) -> bytes | None:
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


def _answer(item: Append, row: tuple[Any, ...]) -> Landed | PerdureError:
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


def _columns(rows: Sequence[tuple[Any, ...]], count: int) -> list[list[Any]]:
    return list(map(list, zip(*rows, strict=True))) if rows else [[] for _ in range(count)]


def _flat(spans: Sequence[Span]) -> list[int]:
    return [number for span in spans for number in span]


def _json(values: Sequence[Any]) -> str | None:
    return json.dumps(values) if values else None
