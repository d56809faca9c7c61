"""The Redis store: one Redis or Valkey server, any number of machines.

Long because it is one object, and because a server's answer has no types: each method checks and unpacks its own. Each
question is answered at one instant by one script, and every value read is checked; each change is one script,
all or nothing, and the same when it is sent twice. Putting a dump back, which takes several, is in ``restore``.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from perdure.errors import InvalidInput, OutcomeUnknown, PerdureError, UnsupportedFormat
from perdure.links.redis import Link, Lost, check_server, prefix_of, server_info
from perdure.model import Bundle, Change, ChangePage, Dump, Landed, Lease, LeaseInfo, Outrun, Promise, SessionRow, Usage
from perdure.stores import rules
from perdure.stores.cursors import resume
from perdure.stores.listing import Asked
from perdure.stores.redis import scripts
from perdure.stores.redis.format import (
    WHOLE,
    artifact_value,
    digest_mark,
    entry_tail,
    mark,
    names_value,
    number,
    packed,
    row_tail,
    shown_of,
)
from perdure.stores.redis.live import RedisLive
from perdure.stores.redis.restore import restore
from perdure.stores.redis.scripts import ScriptRunner, dead_holder, refusal, utf8
from perdure.system import faults
from perdure.system.clock import SystemClock
from perdure.system.lease_holders import is_dead
from perdure.system.options import is_amount, is_number
from perdure.system.urls import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Unpack

    from perdure.links.redis import Ask, Command, Server
    from perdure.model import Append, Artifact, InboxEntry, Rewrite, Row
    from perdure.protocols import Clock, Wanted
    from perdure.stores.listing import Count

FORMAT = b"1"
OPENING = 2.0
"""Seconds for which a server that cannot be reached is tried again when a store is opened."""
BATCH = 512
"""Commits in one round trip at most."""
LONGEST = 1 << 42
"""Seconds of the longest TTL: in ms, and added to the time of day, it is still a whole number inside a script."""
TRIES = 5
"""How often a holder may turn out to be dead, each time another one, before the session counts as busy."""
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
    label: str
    updated: int
    expires: None = None
    reason: str = ""


class RedisStore:
    """Implements :class:`perdure.protocols.Store` on a Redis or Valkey server.

    The URL's own parameter ``prefix`` begins every key: one server may hold many stores. ``changes_kept`` is about
    how many commits the list of changes goes back. ``wait_replicas`` makes each commit wait for so many replicas.
    ``retry_for`` is for how many seconds a lost connection is tried again, ``socket_timeout`` for how many the
    server may stay silent.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        changes_kept: int = 100_000,
        wait_replicas: int = 0,
        retry_for: float = 10.0,
        socket_timeout: float = 5.0,
    ) -> None:
        self.url = shown(url)
        plain, prefix = prefix_of(url)
        numbers = all(map(is_number, (changes_kept, wait_replicas))) and all(
            map(is_amount, (retry_for, socket_timeout))
        )
        if not numbers or changes_kept < 1 or wait_replicas < 0 or retry_for < 0 or not socket_timeout > 0:
            raise InvalidInput("changes_kept is at least 1, wait_replicas and retry_for 0, socket_timeout more than 0")
        self._link = Link(
            plain,
            name=self.url,
            scripts=scripts.ALL,
            retry_for=retry_for,
            socket_timeout=socket_timeout,
            on_connect=self._on_connect,
        )
        self._runner = ScriptRunner(self._link, prefix, clock or SystemClock(), changes_kept)
        self._wait_for = wait_replicas
        # A write of its own comes first: the server waits for the replicas to have the last write of this connection,
        # and a commit that had landed already writes nothing.
        self._wait = (
            (b"HINCRBY", b"%b:meta" % self._runner.prefix, b"waits", b"1"),
            (b"WAIT", b"%d" % wait_replicas, b"%d" % (socket_timeout * 500)),
        )
        self._server: Server | None = None
        self.id = self.epoch = ""
        try:
            self._link.one((b"PING",), patience=min(retry_for, OPENING))
        except BaseException:
            self._link.close()
            raise
        assert self._server is not None
        self.promise = promise_of(self._server, wait_replicas)
        warn_if_nothing_is_kept(self._server, self.url)

    def _on_connect(self, ask: Ask) -> None:
        """On each new connection: is this a server to rely on, and still the store that was opened?"""
        server = server_info(ask)
        check_server(server, self.url)
        prefix = self._runner.prefix
        if not self.id:
            id, epoch = os.urandom(16).hex().encode(), os.urandom(8).hex().encode()
            format, self._runner.id = ask(scripts.OPEN.call(None, prefix, id, epoch))
            if format != FORMAT:
                raise UnsupportedFormat(f"{self.url}: this store was written by a newer Perdure: upgrade this process")
        epoch = ask(
            scripts.LINEAGE.call(
                None,
                prefix,
                self._runner.id,
                server.life.encode(),
                server.process.encode(),
                b"1" if kept_by(server) == "always" else b"0",
                b"1" if server.promoted else b"0",
                b"%d" % server.replicas,
                os.urandom(8).hex().encode(),
            )
        )
        if type(epoch) is list:
            raise self._runner.replaced()
        self.id, self.epoch, self._server = self._runner.id.decode(), epoch.decode(), server

    def live(self) -> RedisLive:
        """Carries pieces of answers on their way, in streams of their own."""
        return RedisLive(self._runner)

    # -- commits and inbox --------------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> list[Landed | PerdureError]:
        """Make a batch durable in one round trip; see the protocol for the rules."""
        if len(batch) <= BATCH and batch:
            return self._append(batch)
        self._link.check()
        answers: list[Landed | PerdureError] = []
        for start in range(0, len(batch), BATCH):
            answers += self._append(batch[start : start + BATCH])
        return answers

    def _append(self, items: Sequence[Append]) -> list[Landed | PerdureError]:
        answers: dict[int, Landed | PerdureError] = {}
        waiting: Sequence[int] = range(len(items))
        freed: dict[str, bytes] = {}
        for attempt in range(TRIES):
            now = self._runner.now()
            commands: dict[int, Command] = {}
            for place in waiting:
                item = items[place]
                try:
                    commands[place] = self._commit(item, now, freed.get(item.session, b""))
                except InvalidInput as error:
                    answers[place] = error
                except (OverflowError, UnicodeEncodeError, msgspec.MsgspecError, TypeError) as error:
                    what = f"session {item.session!a}: a field of the commit cannot be stored"
                    answers[place] = InvalidInput(f"{what} ({type(error).__name__})")
            for place, reply in zip(commands, self._send(commands, items), strict=True):
                dead = dead_holder(reply)
                if dead is not None and attempt < TRIES - 1:
                    # Those behind it may build on it: all are sent again.
                    freed[items[place].session] = dead
                    waiting = [other for other in commands if other >= place]
                    break
                answers[place] = self._answer(items[place], reply)
            else:
                break
        return [answers[place] for place in range(len(items))]

    def _send(self, commands: dict[int, Command], items: Sequence[Append]) -> list[Any]:
        """The reply to each command; what has none has an error."""
        if not commands:
            return []
        faults.point("redis.append.before_send")
        try:
            replies = self._link.deliver([*commands.values(), *(self._wait if self._wait_for else ())])
        except Lost as lost:
            replies = lost.answers[: len(commands)]
            for n, place in islice(enumerate(commands), len(replies), None):
                problem = lost.error(n)
                replies.append(_unknown(items[place], str(problem)) if lost.may_be_done(n) else problem)
            return replies
        faults.point("redis.append.after_send")
        if self._wait_for and not self._confirmed(replies[-1]):
            said = f"{self._runner.url}: fewer than {self._wait_for} replicas have it: a promotion could lose it"
            for n, place in enumerate(commands):
                if replies[n] in (0, 1):
                    replies[n] = _unknown(items[place], said)
        return replies[: len(commands)]

    def _confirmed(self, reply: Any) -> bool:
        return type(reply) is int and reply >= self._wait_for

    def _commit(self, item: Append, now: bytes, freed: bytes) -> Command:
        # Written out in one piece: this is what every commit pays on top of the round trip.
        id, branch, line, step, ttl, runner = item.id, item.branch, item.line, item.step, item.ttl, self._runner
        if not (0 <= line <= WHOLE and 0 <= step <= WHOLE and (ttl is None or 0 <= ttl <= LONGEST)):
            raise InvalidInput(f"a line or step is a number from 0 to 2**53, a TTL one up to {LONGEST} seconds")
        marked = mark(id, item.digest)
        return scripts.APPEND.call(
            b"%b:s:%b" % (runner.prefix, item.session.encode()),
            runner.prefix,
            runner.id,
            now,
            branch.encode(),
            b"%d" % line,
            b"%d" % step,
            marked,
            b"-" if item.expect is None else b"+" + item.expect,
            b"" if item.token is None else b"%d" % item.token,
            b"1" if item.starts else b"0",
            item.owner.encode(),
            item.status.encode(),
            item.kind.encode(),
            b"%d" % item.at,
            b"" if ttl is None else b"%d" % ttl,
            id.hex().encode(),
            row_tail(marked, shown_of(item), item.envelope, item.payload),
            names_value(item.blobs) if item.blobs else b"",
            runner.kept,
            freed,
            item.agent.encode(),
            item.error.encode(),
            item.label.encode(),
            *[key.encode() for key in item.takes],
        )

    def _answer(self, item: Append, reply: Any) -> Landed | PerdureError:
        if reply == 0:
            return Landed(item.id)
        if reply == 1:
            return Landed(item.id, again=True)
        if isinstance(reply, PerdureError):
            return reply
        match reply[0]:
            case b"moved":
                return rules.moved(item, self._runner.form.head(item.branch, reply[1]))
            case b"taken":
                return rules.taken_place(
                    item, self._runner.form.head(item.branch, reply[1] if len(reply) > 1 else None)
                )
            case b"waiting":
                head = self._runner.form.head(item.branch, reply[2] if len(reply) > 2 else None)
                return rules.not_waiting(item, reply[1].decode(), head)
            case b"digest":
                return rules.other_digest(item)
            case _:
                return self._runner.refused(reply, item.session)

    def post(self, entries: Sequence[InboxEntry]) -> list[bool | Outrun | PerdureError]:
        """Put entries into inboxes in one round trip."""
        self._link.check()
        answers: list[bool | Outrun | PerdureError] = []
        commands: list[Command] = []
        places: list[int] = []
        now = self._runner.now()
        for entry in entries:
            answers.append(False)
            try:
                if len(entry.digest) > 255:
                    raise InvalidInput("a digest has up to 255 bytes")
                tail = entry_tail(entry._replace(taken=b""))
                commands.append(
                    self._runner.call(
                        scripts.POST,
                        entry.session,
                        now,
                        utf8(entry.key),
                        digest_mark(entry.digest),
                        tail,
                        b"%d" % entry.seq,
                    )
                )
                places.append(len(answers) - 1)
            except InvalidInput as error:
                answers[-1] = error
            except (OverflowError, msgspec.MsgspecError, TypeError) as error:
                answers[-1] = InvalidInput(f"an inbox entry cannot be stored ({type(error).__name__})")
        try:
            replies = self._link.deliver(commands) if commands else []
        except Lost as lost:
            replies = lost.answers + [lost.error(n) for n in range(len(lost.answers), len(commands))]
        for place, reply in zip(places, replies, strict=True):
            entry = entries[place]
            if isinstance(reply, PerdureError):
                answers[place] = reply
            elif type(reply) is int:
                answers[place] = reply == 1
            elif reply[0] == b"outrun":
                answers[place] = Outrun(int(reply[1]))
            elif reply[0] == b"used":
                answers[place] = rules.other_post(entry.session, entry.key)
            else:
                answers[place] = self._runner.refused(reply, entry.session)
        return answers

    def inbox(self, session: str, limit: int = 100, key: str | None = None) -> list[InboxEntry]:
        """Waiting entries in order of arrival; with ``key`` only the one of that key."""
        found = self._runner.ask(scripts.INBOX, session, b"%d" % min(limit, WHOLE), _wanted(key))
        return [self._runner.form.entry(session, name, value, waiting=True) for name, value in found]

    # -- looking ------------------------------------------------------------------------------------

    def look(self, session: str) -> SessionRow | None:
        """What is known of a session, a tombstone included."""
        found = self._looked([utf8(session)])
        return found[0] if found else None

    def _looked(self, ids: Sequence[bytes]) -> list[SessionRow]:
        about, *found = self._runner.ask(scripts.LOOK, None, self._runner.now(), *ids)
        return [self._session(about, values) for values in found]

    def _session(self, about: Sequence[Any], values: Sequence[Any]) -> SessionRow:
        """A session by its hash; its lease is judged by the store's own time, and a dead holder holds nothing."""
        (wall, now, fence), (id, flat, pending), form = about, values, self._runner.form
        fields: dict[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))

        def text(name: bytes) -> str:
            return fields.get(name, b"").decode()

        def whole(name: bytes) -> int:
            return int(fields.get(name) or b"0")

        try:
            holder, token, left = text(b"holder"), whole(b"token"), whole(b"until") - now
            held = holder and token > int(fence) and left > 0 and not is_dead(holder)
            heads = [form.head(name[2:].decode(), fields[name]) for name in sorted(fields) if name.startswith(b"h:")]
            return SessionRow(
                id.decode(),
                text(b"owner"),
                text(b"status"),
                whole(b"created"),
                whole(b"updated"),
                whole(b"expires") if fields.get(b"expires") else None,
                LeaseInfo(holder, token, wall + left) if held else LeaseInfo("", token, 0),
                tuple(head for head in heads if head is not None),
                text(b"reason"),
                pending,
                whole(b"lines"),
                text(b"agent"),
                text(b"error"),
                text(b"label"),
                whole(b"posts"),
                wall,
            )
        except ValueError:
            raise form.damaged(f"session {id.decode(errors='replace')!r}") from None

    def sessions(self, **wanted: Unpack[Wanted]) -> list[SessionRow]:
        """Sessions in order of id, or the newest first, without tombstones; each is looked at anew."""
        asked = Asked(**wanted)
        rows: list[SessionRow] = []
        chosen = self._expired(asked) if asked.expired else self._chosen(asked)
        while len(rows) < asked.limit and (ids := list(islice(chosen, min(PAGE, asked.limit - len(rows))))):
            looked = self._looked(ids)
            if not asked.ended and (over := [utf8(row.id) for row in looked if row.reason]):
                # Ended since it was listed, or said to have by somebody who did not know of the index: whoever looks
                # through what has ended, such as verify, must come across it.
                self._link.one((b"ZADD", b"%b:ended" % self._runner.prefix, *chain(*((b"0", id) for id in over))))
            rows += [row for row in looked if asked.keeps(row.id, row, row.now)]
        if not rows:
            self._link.check()
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
        if asked.ended:
            index = b"%b:ended" % self._runner.prefix
        elif asked.owner is not None:
            index = b"%b:owner:%b" % (self._runner.prefix, utf8(asked.owner))
        elif asked.status is not None:
            index = b"%b:status:%b" % (self._runner.prefix, utf8(asked.status))
        count = LISTED if asked.newest else max(1, min(asked.limit, LISTED))
        while first:
            first, *found = self._runner.ask(scripts.LIST, None, index, first, b"%d" % count)
            count = LISTED
            if gone := [values[0] for values in found if values[2] is None]:
                # Redis has deleted them: their time had run out long ago.
                of = (index, b"%b:ids" % self._runner.prefix, b"%b:expiry" % self._runner.prefix)
                self._link.many([(b"ZREM", name, *gone) for name in of])
            for values in found:
                if values[2] is not None:
                    yield self._glance(*values)._replace(reason="it has ended" if asked.ended else "")

    def _glance(self, id: bytes, *values: bytes | None) -> Glance:
        try:
            owner, status, agent, error, label = ((value or b"").decode() for value in values[:5])
            return Glance(id.decode(), owner, status, agent, error, label, int(values[5] or b"0"))
        except ValueError:
            raise self._runner.form.damaged(f"session {id!r:.80}") from None

    def _expired(self, asked: Asked) -> Iterator[bytes]:
        """Ids of sessions that may have expired by then; the index holds times that are never too late."""
        ((wall, *_),) = self._runner.ask(scripts.LOOK, None, self._runner.now())
        index = b"%b:expiry" % self._runner.prefix
        due = self._link.one((b"ZRANGEBYSCORE", index, b"-inf", b"%d" % wall))
        return self._in_order(due, asked)

    def _in_order(self, found: Iterable[bytes], asked: Asked) -> Iterator[bytes]:
        """Ids in the order that is asked for, from its place on."""
        first = utf8(asked.after or "") if not asked.newest else b""
        ids = sorted(id for id in found if id > first)
        if not asked.newest:
            return iter(ids)
        rows = [row for start in range(0, len(ids), PAGE) for row in self._looked(ids[start : start + PAGE])]
        return (utf8(row.id) for row in sorted(rows, key=lambda row: asked.key(row.id, row.updated)))

    def counts(self) -> list[Count]:
        """How many sessions there are by status, agent and error."""
        living = Counter(
            (one.status, one.agent, one.error) for one in self._listed(b"-", EVERY) if EVERY.keeps(one.id, one)
        )
        return [(*what, number) for what, number in sorted(living.items())]

    def starts(self, session: str, branch: str | None) -> list[Row]:
        """The first rows of all lines of a branch (None: of all branches)."""
        found = self._runner.ask(scripts.STARTS, session, _wanted(branch))
        return [self._runner.form.row(place, value).row for place, value in found]

    def load(self, session: str, line: int, step: int | None = None, *, refs: bool = True) -> Bundle:
        """What is needed to rebuild a line at a step (None: its last)."""
        hi = b"" if step is None else _bounded(step)
        return self._read(session, line, (b"load", b"", hi, b"1" if refs else b"0"))

    def slice(self, session: str, line: int, lo: int, hi: int) -> Bundle:
        """Rows lo..hi of a line, with the packs that hold the thin ones."""
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
        found = self._link.one((b"HVALS", key))
        return sorted((self._runner.form.artifact(value) for value in found), key=lambda a: a[:3])

    def changes(self, after: str | None = None, limit: int = 1000) -> ChangePage:
        """Commits after a cursor, as far back as the stream goes."""
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
        """Every blob that any row or artifact refers to; those of one session are read at one instant."""
        where = b"-"
        while where:
            where, found = self._runner.ask(scripts.REFS, None, where)
            for value in found:
                yield from self._runner.form.names(value)

    # -- leases -------------------------------------------------------------------------------------

    def acquire(self, session: str, holder: str, ttl: int) -> Lease:
        """Take the lease for ``ttl`` ms of the server's time, or raise ``Busy``."""
        span, name = number(ttl, "the time of a lease in ms"), utf8(holder)

        def call(op: bytes, freed: bytes) -> Command:
            faults.point("redis.acquire.before_send")
            return self._runner.call(scripts.ACQUIRE, session, self._runner.now(), name, span, freed, op)

        answer = self._past_the_dead(call)
        if answer[0] != b"held":
            raise self._runner.refused(answer, session)
        return Lease(session, holder, int(answer[1]), answer[2] + ttl)

    def _past_the_dead(self, call: Callable[[bytes, bytes], Command]) -> Any:
        """Send a call that a lease may stand against; once more when its holder turns out to be dead."""
        op, freed = os.urandom(8).hex().encode(), b""
        answer: Any = None
        for _ in range(TRIES):
            answer = self._link.one(call(op, freed), writes=True)
            dead = dead_holder(answer)
            if dead is None:
                break
            freed = dead
        return answer

    def renew(self, leases: Sequence[Lease], ttl: int) -> list[bool]:
        """Extend leases; False where the token is no longer the current one."""
        if not leases:
            self._link.check()
            return []
        span, now = number(ttl, "the time of a lease in ms"), self._runner.now()
        commands = [self._runner.call(scripts.RENEW, lease.session, now, b"%d" % lease.token, span) for lease in leases]
        replies = self._link.many(commands)
        for reply in replies:
            if isinstance(reply, PerdureError):
                raise reply
            if refused := refusal(reply):
                raise self._runner.refused(refused, "")
        return [reply == 1 for reply in replies]

    def release(self, lease: Lease) -> None:
        """Give a lease back."""
        self._runner.ask(scripts.RELEASE, lease.session, b"%d" % lease.token)

    # -- maintenance --------------------------------------------------------------------------------

    def rewrite(self, change: Rewrite) -> bool:
        """Do maintenance in one script; False when it no longer applies."""
        for span in (*change.thin, *change.drop, *change.needs):
            for value in span:
                number(value, "a line or step")
        put = [(a.kind, a.line, a.lo, a.hi) for a in change.put]
        about = packed((change.discard, put, change.thin, change.drop, change.needs))
        faults.point("redis.rewrite.before_send")
        answer = self._runner.ask(
            scripts.REWRITE,
            change.session,
            b"",
            b"" if change.token is None else b"%d" % change.token,
            os.urandom(8).hex().encode(),
            about,
            *[part for artifact in change.put for part in (artifact_value(artifact), names_value(artifact.blobs))],
        )
        return answer == 1

    def drop(self, session: str, token: int | None, reason: str, *, keep_waiting: bool = False) -> None:
        """Delete a session and leave a tombstone."""
        status = rules.status_of_gone(reason).encode()
        fence, why = b"" if token is None else b"%d" % token, utf8(reason or "deleted")
        kept = b"1" if keep_waiting else b""

        def call(op: bytes, freed: bytes) -> Command:
            faults.point("redis.drop.before_send")
            return self._runner.call(scripts.DROP, session, self._runner.now(), fence, freed, op, why, status, kept)

        if refused := refusal(self._past_the_dead(call)):
            raise self._runner.refused(refused, session)

    def dump(self, session: str) -> Dump:
        """A whole session as stored, at one instant."""
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
            row._replace(now=0),
            tuple((stored.row, form.projections(stored)) for stored in rows),
            tuple(sorted((form.artifact(value) for value in artifacts), key=lambda a: a[:3])),
            tuple(sorted(entries, key=lambda entry: entry.seq)),
        )

    def restore(self, dump: Dump) -> None:
        """Put a dumped session into this store."""
        self._link.check()
        restore(self._runner, dump)

    def renew_epoch(self) -> None:
        """Give the store a new epoch: cursors expire and every lease ends."""
        epoch = os.urandom(8).hex()
        self._runner.ask(scripts.EPOCH, None, epoch.encode())
        self.epoch = epoch

    def usage(self) -> Usage:
        """Sizes; bytes are those of rows, artifacts and inbox entries, without what Redis adds."""
        totals = [0, 0, 0]
        where = b"-"
        while where:
            *counted, where = self._runner.ask(scripts.SIZES, None, where)
            totals = [sum(pair) for pair in zip(totals, counted, strict=True)]
        return Usage(*totals)

    def close(self) -> None:
        """Close all connections."""
        self._link.close()


def _wanted(value: str | None) -> bytes:
    """A filter for a script: "-" for none."""
    return b"-" if value is None else b"+" + utf8(value)


def _bounded(value: int) -> bytes:
    """A step as scripts count; larger ones are past every line's end."""
    return b"%d" % max(-1, min(value, WHOLE))


def _unknown(item: Append, why: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"session {item.session!r}, commit {item.id.hex()}: {why}", item.id)


_RETURNED = "When a commit has returned the server has it, so it survives the end of this process. "
_KEPT = {
    "always": (
        "The server wrote it to its append-only file and synced that first (appendfsync always): it survives the end "
        "of the server and a loss of power, as far as the disk keeps what it says it has synced."
    ),
    "everysec": (
        "The server syncs its append-only file once a second (appendfsync everysec): when the server crashes or loses "
        "power, the commits of the last two seconds or so may be gone, and nobody is told."
    ),
    "no": (
        "The server leaves it to its operating system when the append-only file is synced (appendfsync no): a loss of "
        "power may take back the commits of half a minute or more."
    ),
    "snapshots": (
        "The server keeps no append-only file and only takes snapshots of its memory now and then: when it crashes, "
        "all commits since the last snapshot are gone. Use CONFIG SET appendonly yes and appendfsync always."
    ),
    "nothing": (
        "The server persists nothing: when it ends, everything is gone. Use CONFIG SET appendonly yes and "
        "appendfsync always."
    ),
    "unknown": (
        "The server does not say whether and when it writes to a disk (CONFIG GET is not allowed): ask whoever runs "
        "it, and count on nothing when the server crashes."
    ),
}
_FAILOVER = (
    " Replication is asynchronous: a replica that is promoted may lack commits that had returned. A promotion is "
    "noticed when we connect again: leases and cursors from before it are refused."
)
_WAITED = (
    " Each commit waits until {n} replica(s) have it in memory, which makes it unlikely, not impossible, that a "
    "promotion loses it."
)


def kept_by(server: Server) -> str:
    """Which of the promises holds on this server."""
    if server.appendonly:
        return server.appendfsync if server.appendfsync in _KEPT else "unknown"
    if server.appendonly is None or server.save is None:
        return "unknown"
    return "snapshots" if server.save.strip() else "nothing"


def promise_of(server: Server, wait_replicas: int) -> Promise:
    """The promise in code and in words."""
    kept = kept_by(server)
    waited = _WAITED.format(n=wait_replicas) if wait_replicas else ""
    return Promise(
        process_crash=kept in ("always", "everysec", "no"),
        power_loss=kept == "always",
        words=_RETURNED + _KEPT[kept] + _FAILOVER + waited,
    )


def warn_if_nothing_is_kept(server: Server, where: str) -> None:
    """Warn (once per place, as warnings do) when everything is gone with the server's process."""
    if kept_by(server) == "nothing":
        warnings.warn(
            f"{where} persists nothing: when the server ends, all checkpoints are gone. "
            "CONFIG SET appendonly yes and CONFIG SET appendfsync always make it keep them.",
            stacklevel=4,
        )
