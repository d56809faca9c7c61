"""Questions to the Redis store, each answered at one instant by one script. Every value read is checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.model import Bundle, Change, ChangePage, Dump, SessionRow, Usage
from perdure.redislink import pack
from perdure.stores import _redis_scripts as scripts
from perdure.stores import _verdicts as verdicts
from perdure.stores._cursor import resume
from perdure.stores._redis_desk import utf8
from perdure.stores._redis_form import WHOLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perdure.model import Artifact, InboxEntry, Row
    from perdure.stores._redis_desk import Desk

PAGE = 500
"""Sessions asked about in one go at most."""


class Reader:
    """The questions."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    # -- sessions ----------------------------------------------------------------------------------

    def look(self, session: str) -> SessionRow | None:
        """What is known of one session."""
        found = self._looked([utf8(session)])
        return found[0] if found else None

    def _looked(self, ids: Sequence[bytes]) -> list[SessionRow]:
        about, *found = self._desk.ask(scripts.LOOK, None, self._desk.now(), *ids)
        return [self._session(about, values) for values in found]

    def _session(self, about: Sequence[Any], values: Sequence[Any]) -> SessionRow:
        session = self._desk.form.session(*values)
        return session.shown(self._desk.lease(about, session))

    def sessions(
        self, *, owner: str | None, status: str | None, expired_at: int | None, after: str | None, limit: int
    ) -> list[SessionRow]:
        """Sessions in order of id, tombstones left out."""
        ids: list[bytes] = []
        if expired_at is not None:
            ids = self._expired(owner, status, expired_at, after, limit)
        else:
            where = b"-" if after is None else b"(" + utf8(after)
            index = b"%b:ids" % self._desk.prefix
            if owner is not None:
                index = b"%b:owner:%b" % (self._desk.prefix, utf8(owner))
            elif status is not None:
                index = b"%b:status:%b" % (self._desk.prefix, utf8(status))
            while where and len(ids) < limit:
                where, found = self._desk.ask(
                    scripts.LIST, None, index, where, b"%d" % (limit - len(ids)), _wanted(owner), _wanted(status), b""
                )
                ids += found
        if not ids:
            self._desk.link.check()
        rows: list[SessionRow] = []
        for start in range(0, len(ids), PAGE):
            rows += self._looked(ids[start : start + PAGE])
        return rows

    def _expired(
        self, owner: str | None, status: str | None, expired_at: int, after: str | None, limit: int
    ) -> list[bytes]:
        """Ids of sessions that had expired by then; the index holds times that are never too late."""
        index, first = b"%b:expiry" % self._desk.prefix, b"" if after is None else utf8(after)
        due = self._desk.link.one(pack(b"ZRANGEBYSCORE", index, b"-inf", b"%d" % min(expired_at, WHOLE)))
        ids: list[bytes] = []
        candidates = sorted(id for id in due if id > first)
        for start in range(0, len(candidates), PAGE):
            for row in self._looked(candidates[start : start + PAGE]):
                if (
                    row.expires is not None and row.expires <= expired_at
                    and owner in (None, row.owner) and status in (None, row.status)
                ):  # fmt: skip
                    ids.append(row.id.encode())
            if len(ids) >= limit:
                break
        return ids[:limit]

    # -- rows --------------------------------------------------------------------------------------

    def starts(self, session: str, branch: str | None) -> list[Row]:
        """The first rows of a branch's lines, or of all lines."""
        found = self._desk.ask(scripts.STARTS, session, _wanted(branch))
        return [self._desk.form.row(place, value).row for place, value in found]

    def load(self, session: str, line: int, step: int | None, *, refs: bool) -> Bundle:
        """What rebuilds a line at a step."""
        hi = b"" if step is None else _bounded(step)
        return self._read(session, line, (b"load", b"", hi, b"1" if refs else b"0"))

    def slice(self, session: str, line: int, lo: int, hi: int) -> Bundle:
        """Some rows of a line."""
        return self._read(session, line, (b"slice", _bounded(lo), _bounded(hi), b"0"))

    def _read(self, session: str, line: int, how: tuple[bytes, ...]) -> Bundle:
        answer = self._desk.ask(scripts.READ, session, _bounded(line), *how)
        match answer[0]:
            case b"rows":
                _, base, steps, values, packs, last = answer
                form = self._desk.form
                return Bundle(
                    None if base is None else form.artifact(base),
                    tuple(
                        form.row(b"%d:%d" % (line, step), value).row for step, value in zip(steps, values, strict=True)
                    ),
                    tuple(form.artifact(value) for value in packs),
                    last,
                )
            case b"noline":
                raise verdicts.no_line(session, line)
            case b"retained":
                raise verdicts.retained(session, line, *answer[1:])
            case b"nostep":
                raise verdicts.no_step(session, line, *answer[1:])
            case _:
                raise self._desk.refused(answer, session)

    def artifacts(self, session: str) -> list[Artifact]:
        """All artifacts of a session."""
        key = b"%b:a:%b" % (self._desk.prefix, utf8(session))
        found = self._desk.link.one(pack(b"HVALS", key))
        return sorted((self._desk.form.artifact(value) for value in found), key=lambda a: a[:3])

    # -- inbox, changes, blobs ---------------------------------------------------------------------

    def inbox(self, session: str, limit: int, key: str | None) -> list[InboxEntry]:
        """Waiting entries, or the one of a key if it waits."""
        found = self._desk.ask(scripts.INBOX, session, b"%d" % min(limit, WHOLE), _wanted(key))
        return [self._desk.form.entry(session, name, value, waiting=True) for name, value in found]

    def changes(self, after: str | None, limit: int) -> ChangePage:
        """Commits after a cursor, as far as the stream still knows them."""
        place = None if after is None else resume(after, epoch=after.partition(".")[0], newest=WHOLE, trimmed=0)
        seq = 0 if place is None else place.seq
        while True:
            epoch, newest, trimmed, reached, all, found = self._desk.ask(
                scripts.CHANGES, None, b"%d" % seq, b"%d" % min(limit, 10_000)
            )
            cursor = resume(after, epoch=epoch.decode(), newest=newest, trimmed=trimmed)
            seq = int(reached)
            if found or all:
                return ChangePage(tuple(self._change(flat) for flat in found), str(cursor.after(max(seq, cursor.seq))))

    def _change(self, flat: Sequence[bytes]) -> Change:
        about = dict(zip(flat[::2], flat[1::2], strict=True))
        try:
            return Change(
                about[b"session"].decode(), about[b"branch"].decode(), int(about[b"line"]), int(about[b"step"]),
                bytes.fromhex(about[b"id"].decode()), about[b"kind"].decode(), about[b"status"].decode(),
                int(about[b"at"]),
            )  # fmt: skip
        except (KeyError, ValueError):
            raise self._desk.form.damaged("an entry of the stream of changes") from None

    def blob_refs(self) -> Iterator[str]:
        """Refs of all rows and artifacts, some sessions at a time; those of one session are read at one instant."""
        where = b"-"
        while where:
            where, found = self._desk.ask(scripts.REFS, None, where)
            for value in found:
                yield from self._desk.form.names(value)

    # -- the whole ---------------------------------------------------------------------------------

    def dump(self, session: str) -> Dump:
        """A whole session."""
        desk, form, id = self._desk, self._desk.form, utf8(session)
        keys = {part: b"%b:%b:%b" % (desk.prefix, part, id) for part in (b"s", b"r", b"a", b"i", b"w")}
        # A transaction, not a script: a large session goes straight to the wire, without a copy inside a script.
        commands = (
            pack(b"MULTI"),
            desk.call(scripts.LOOK, None, desk.now(), id),
            pack(b"HGETALL", keys[b"r"]),
            pack(b"HVALS", keys[b"a"]),
            pack(b"HGETALL", keys[b"i"]),
            pack(b"ZRANGE", keys[b"w"], b"0", b"-1"),
            pack(b"EXEC"),
        )
        looked, flat, artifacts, inbox, waiting = desk.link.unit(commands)
        if looked[0] == b"other":
            raise desk.replaced()
        if len(looked) == 1:
            raise verdicts.no_session(session)
        row = self._session(*looked)
        if row.reason:
            raise verdicts.gone(session, row.reason)
        waits = set(waiting)
        rows = sorted(
            (form.row(place, value) for place, value in zip(flat[::2], flat[1::2], strict=True)),
            key=lambda stored: (not stored.relative, stored.seq),
        )
        entries = [
            form.entry(session, key, value, waiting=key in waits)
            for key, value in zip(inbox[::2], inbox[1::2], strict=True)
        ]
        return Dump(
            row,
            tuple((stored.row, form.projections(stored)) for stored in rows),
            tuple(sorted((form.artifact(value) for value in artifacts), key=lambda a: a[:3])),
            tuple(sorted(entries, key=lambda entry: entry.seq)),
        )

    def usage(self) -> Usage:
        """How many sessions and checkpoints there are, and the bytes of what is stored for them."""
        totals = [0, 0, 0]
        where = b"-"
        while where:
            *counted, where = self._desk.ask(scripts.SIZES, None, where)
            totals = [sum(pair) for pair in zip(totals, counted, strict=True)]
        return Usage(*totals)


def _wanted(value: str | None) -> bytes:
    """A filter for a script: "-" for none."""
    return b"-" if value is None else b"+" + utf8(value)


def _bounded(value: int) -> bytes:
    """A step as scripts count; larger ones are past every line's end."""
    return b"%d" % max(-1, min(value, WHOLE))
