"""Questions to the Redis store, each answered at one instant by one script. Every value read is checked."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.model import Bundle, Change, ChangePage, Dump, SessionRow, Usage
from perdure.stores import rules
from perdure.stores.cursors import resume
from perdure.stores.listing import Asked
from perdure.stores.redis import scripts
from perdure.stores.redis.format import WHOLE
from perdure.stores.redis.scripts import utf8

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perdure.model import Artifact, InboxEntry, Row
    from perdure.stores.listing import Count
    from perdure.stores.redis.scripts import ScriptRunner

PAGE = 500
"""Sessions asked about in one go at most."""
LISTED = 1000
"""Sessions of which one script says a few words."""
EVERY = Asked(limit=LISTED)


class Glance(NamedTuple):
    """What listings choose by, apart from when a session expires."""

    id: str
    owner: str
    status: str
    agent: str
    error: str
    updated: int
    expires: None = None
    reason: str = ""


class Reader:
    """The questions."""

    def __init__(self, runner: ScriptRunner) -> None:
        self._runner = runner

    # -- sessions ----------------------------------------------------------------------------------

    def look(self, session: str) -> SessionRow | None:
        """What is known of one session."""
        found = self._looked([utf8(session)])
        return found[0] if found else None

    def _looked(self, ids: Sequence[bytes]) -> list[SessionRow]:
        about, *found = self._runner.ask(scripts.LOOK, None, self._runner.now(), *ids)
        return [self._session(about, values) for values in found]

    def _session(self, about: Sequence[Any], values: Sequence[Any]) -> SessionRow:
        session = self._runner.form.session(*values)
        return session.shown(self._runner.lease(about, session))

    def sessions(self, asked: Asked) -> list[SessionRow]:
        """Sessions in the order that is asked for, tombstones left out; each is looked at anew before it is shown."""
        rows: list[SessionRow] = []
        chosen = self._expired(asked) if asked.expired_at is not None else self._chosen(asked)
        while len(rows) < asked.limit and (ids := list(islice(chosen, min(PAGE, asked.limit - len(rows))))):
            rows += [row for row in self._looked(ids) if asked.keeps(row.id, row)]
        if not rows:
            self._runner.link.check()
        return sorted(rows, key=lambda row: asked.key(row.id, row.updated))

    def _chosen(self, asked: Asked) -> Iterator[bytes]:
        """Ids of sessions that were as asked for when they were listed, in order."""
        first = b"-" if asked.after is None or asked.newest else b"(" + utf8(asked.after)
        found = (one for one in self._listed(first, asked) if asked.keeps(one.id, one))
        if asked.newest:
            found = iter(sorted(found, key=lambda one: asked.key(one.id, one.updated)))
        return (utf8(one.id) for one in found)

    def _listed(self, first: bytes, asked: Asked) -> Iterator[Glance]:
        """What listings choose by, of the sessions of the index that has the fewest of them."""
        index = b"%b:ids" % self._runner.prefix
        if asked.owner is not None:
            index = b"%b:owner:%b" % (self._runner.prefix, utf8(asked.owner))
        elif asked.status is not None:
            index = b"%b:status:%b" % (self._runner.prefix, utf8(asked.status))
        count = LISTED if asked.newest else max(1, min(asked.limit, LISTED))
        while first:
            first, *found = self._runner.ask(scripts.LIST, None, index, first, b"%d" % count)
            count = LISTED
            for values in found:
                yield self._glance(*values)

    def _glance(self, id: bytes, *values: bytes | None) -> Glance:
        try:
            owner, status, agent, error = ((value or b"").decode() for value in values[:4])
            return Glance(id.decode(), owner, status, agent, error, int(values[4] or b"0"))
        except ValueError:
            raise self._runner.form.damaged(f"session {id!r:.80}") from None

    def _expired(self, asked: Asked) -> Iterator[bytes]:
        """Ids of sessions that may have expired by then; the index holds times that are never too late."""
        assert asked.expired_at is not None
        index, first = b"%b:expiry" % self._runner.prefix, utf8(asked.after or "") if not asked.newest else b""
        due = self._runner.link.one((b"ZRANGEBYSCORE", index, b"-inf", b"%d" % min(asked.expired_at, WHOLE)))
        ids = sorted(id for id in due if id > first)
        if not asked.newest:
            return iter(ids)
        rows = [row for start in range(0, len(ids), PAGE) for row in self._looked(ids[start : start + PAGE])]
        return (utf8(row.id) for row in sorted(rows, key=lambda row: asked.key(row.id, row.updated)))

    def counts(self) -> list[Count]:
        """How many sessions there are by status, agent and error."""
        living = Counter((one.status, one.agent, one.error) for one in self._listed(b"-", EVERY))
        return [(*what, number) for what, number in sorted(living.items())]

    # -- rows --------------------------------------------------------------------------------------

    def starts(self, session: str, branch: str | None) -> list[Row]:
        """The first rows of a branch's lines, or of all lines."""
        found = self._runner.ask(scripts.STARTS, session, _wanted(branch))
        return [self._runner.form.row(place, value).row for place, value in found]

    def load(self, session: str, line: int, step: int | None, *, refs: bool) -> Bundle:
        """What rebuilds a line at a step."""
        hi = b"" if step is None else _bounded(step)
        return self._read(session, line, (b"load", b"", hi, b"1" if refs else b"0"))

    def slice(self, session: str, line: int, lo: int, hi: int) -> Bundle:
        """Some rows of a line."""
        return self._read(session, line, (b"slice", _bounded(lo), _bounded(hi), b"0"))

    def _read(self, session: str, line: int, how: tuple[bytes, ...]) -> Bundle:
        answer = self._runner.ask(scripts.READ, session, _bounded(line), *how)
        match answer[0]:
            case b"rows":
                _, base, steps, values, packs, last = answer
                form = self._runner.form
                return Bundle(
                    None if base is None else form.artifact(base),
                    tuple(
                        form.row(b"%d:%d" % (line, step), value).row for step, value in zip(steps, values, strict=True)
                    ),
                    tuple(form.artifact(value) for value in packs),
                    last,
                )
            case b"noline":
                raise rules.no_line(session, line)
            case b"retained":
                raise rules.retained(session, line, *answer[1:])
            case b"nostep":
                raise rules.no_step(session, line, *answer[1:])
            case _:
                raise self._runner.refused(answer, session)

    def artifacts(self, session: str) -> list[Artifact]:
        """All artifacts of a session."""
        key = b"%b:a:%b" % (self._runner.prefix, utf8(session))
        found = self._runner.link.one((b"HVALS", key))
        return sorted((self._runner.form.artifact(value) for value in found), key=lambda a: a[:3])

    # -- inbox, changes, blobs ---------------------------------------------------------------------

    def inbox(self, session: str, limit: int, key: str | None) -> list[InboxEntry]:
        """Waiting entries, or the one of a key if it waits."""
        found = self._runner.ask(scripts.INBOX, session, b"%d" % min(limit, WHOLE), _wanted(key))
        return [self._runner.form.entry(session, name, value, waiting=True) for name, value in found]

    def changes(self, after: str | None, limit: int) -> ChangePage:
        """Commits after a cursor, as far as the stream still knows them."""
        place = None if after is None else resume(after, epoch=after.partition(".")[0], newest=WHOLE, trimmed=0)
        seq = 0 if place is None else place.seq
        while True:
            epoch, newest, trimmed, reached, all, found = self._runner.ask(
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
            raise self._runner.form.damaged("an entry of the stream of changes") from None

    def blob_refs(self) -> Iterator[str]:
        """Refs of all rows and artifacts, some sessions at a time; those of one session are read at one instant."""
        where = b"-"
        while where:
            where, found = self._runner.ask(scripts.REFS, None, where)
            for value in found:
                yield from self._runner.form.names(value)

    # -- the whole ---------------------------------------------------------------------------------

    def dump(self, session: str) -> Dump:
        """A whole session."""
        runner, form, id = self._runner, self._runner.form, utf8(session)
        keys = {part: b"%b:%b:%b" % (runner.prefix, part, id) for part in (b"s", b"r", b"a", b"i", b"w")}
        # A transaction, not a script: a large session goes straight to the wire, without a copy inside a script.
        commands = (
            runner.call(scripts.LOOK, None, runner.now(), id),
            (b"HGETALL", keys[b"r"]),
            (b"HVALS", keys[b"a"]),
            (b"HGETALL", keys[b"i"]),
            (b"ZRANGE", keys[b"w"], b"0", b"-1"),
        )
        looked, flat, artifacts, inbox, waiting = runner.link.transaction(commands)
        if looked[0] == b"other":
            raise runner.replaced()
        if len(looked) == 1:
            raise rules.no_session(session)
        row = self._session(*looked)
        if row.reason:
            raise rules.gone(session, row.reason)
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
            *counted, where = self._runner.ask(scripts.SIZES, None, where)
            totals = [sum(pair) for pair in zip(totals, counted, strict=True)]
        return Usage(*totals)


def _wanted(value: str | None) -> bytes:
    """A filter for a script: "-" for none."""
    return b"-" if value is None else b"+" + utf8(value)


def _bounded(value: int) -> bytes:
    """A step as scripts count; larger ones are past every line's end."""
    return b"%d" % max(-1, min(value, WHOLE))
