"""Changes to the Redis store: each is one script, all or nothing, and the same when it is sent twice."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.errors import InvalidInput, OutcomeUnknown, PerdureError
from perdure.links.redis import Lost
from perdure.model import PACK, Landed, Lease, Status
from perdure.stores import rules
from perdure.stores.redis import scripts
from perdure.stores.redis.format import (
    SHOWN,
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
from perdure.stores.redis.scripts import dead_holder, refusal, utf8
from perdure.stores.rules import restored_row
from perdure.system import faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from perdure.links.redis import Command
    from perdure.model import Append, Dump, InboxEntry, Rewrite, Row
    from perdure.stores.redis.scripts import ScriptRunner

BATCH = 512
"""Commits in one round trip at most."""
LONGEST = 1 << 42
"""Seconds of the longest TTL: in ms, and added to the time of day, it is still a whole number inside a script."""
TRIES = 5
"""How often a holder may turn out to be dead, each time another one, before the session counts as busy."""


class Writer:
    """The changes."""

    def __init__(self, runner: ScriptRunner, wait_replicas: int, patience: float) -> None:
        self._runner = runner
        self._wait_for = wait_replicas
        # A write of its own comes first: the server waits for the replicas to have the last write of this connection,
        # and a commit that had landed already writes nothing.
        self._wait = (
            (b"HINCRBY", b"%b:meta" % runner.prefix, b"waits", b"1"),
            (b"WAIT", b"%d" % wait_replicas, b"%d" % (patience * 500)),
        )

    # -- commits -----------------------------------------------------------------------------------

    def append(self, items: Sequence[Append]) -> list[Landed | PerdureError]:
        """Send commits in one round trip; answer each on its own."""
        answers: list[Landed | PerdureError | None] = [None] * len(items)
        waiting = list(range(len(items)))
        freed: dict[str, bytes] = {}
        for attempt in range(TRIES):
            commands, places = self._packed(items, waiting, answers, freed)
            replies = self._send(commands, places, items, answers)
            again = -1
            for place, reply in zip(places, replies, strict=False):
                dead = dead_holder(reply)
                if dead is not None and attempt < TRIES - 1:
                    # Those behind it may build on it: all are sent again.
                    freed[items[place].session] = dead
                    again = place
                    break
                answers[place] = self._answer(items[place], reply)
            if again < 0:
                break
            waiting = [place for place in places if place >= again]
        return [answer for answer in answers if answer is not None]

    def _packed(
        self,
        items: Sequence[Append],
        waiting: Sequence[int],
        answers: list[Landed | PerdureError | None],
        freed: dict[str, bytes],
    ) -> tuple[list[Command], list[int]]:
        now = self._runner.now()
        commands: list[Command] = []
        places: list[int] = []
        for place in waiting:
            try:
                commands.append(self._commit(items[place], now, freed.get(items[place].session, b"")))
                places.append(place)
            except InvalidInput as error:
                answers[place] = error
            except (OverflowError, UnicodeEncodeError, msgspec.MsgspecError, TypeError) as error:
                what = f"session {items[place].session!a}: a field of the commit cannot be stored"
                answers[place] = InvalidInput(f"{what} ({type(error).__name__})")
        return commands, places

    def _send(
        self,
        commands: list[Command],
        places: list[int],
        items: Sequence[Append],
        answers: list[Landed | PerdureError | None],
    ) -> list[Any]:
        if not commands:
            return []
        faults.point("redis.append.before_send")
        try:
            replies = self._runner.link.many([*commands, *self._wait] if self._wait_for else commands)
        except Lost as lost:
            replies = lost.answers
            for n, place in enumerate(places):
                if n >= len(replies):
                    answers[place] = _unknown(items[place], str(lost)) if lost.may_be_done(n) else lost.problem
            return replies[: len(commands)]
        faults.point("redis.append.after_send")
        if self._wait_for and not self._confirmed(replies[-1]):
            said = f"{self._runner.url}: fewer than {self._wait_for} replicas have it: a promotion could lose it"
            for n, place in enumerate(places):
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

    # -- inbox -------------------------------------------------------------------------------------

    def post(self, entries: Sequence[InboxEntry]) -> list[bool | PerdureError]:
        """Send inbox entries in one round trip."""
        answers: list[bool | PerdureError] = []
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
                        scripts.POST, entry.session, now, utf8(entry.key), digest_mark(entry.digest), tail
                    )
                )
                places.append(len(answers) - 1)
            except InvalidInput as error:
                answers[-1] = error
            except (OverflowError, msgspec.MsgspecError, TypeError) as error:
                answers[-1] = InvalidInput(f"an inbox entry cannot be stored ({type(error).__name__})")
        try:
            replies = self._runner.link.many(commands) if commands else []
        except Lost as lost:
            missing = range(len(lost.answers), len(commands))
            replies = lost.answers + [lost if lost.may_be_done(n) else lost.problem for n in missing]
        for place, reply in zip(places, replies, strict=True):
            entry = entries[place]
            if isinstance(reply, PerdureError):
                answers[place] = reply
            elif type(reply) is int:
                answers[place] = reply == 1
            elif reply[0] == b"used":
                answers[place] = rules.other_post(entry.session, entry.key)
            else:
                answers[place] = self._runner.refused(reply, entry.session)
        return answers

    # -- leases ------------------------------------------------------------------------------------

    def acquire(self, session: str, holder: str, ttl: int) -> Lease:
        """Take the lease, or raise ``Busy``."""
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
            answer = self._runner.link.one(call(op, freed), writes=True)
            dead = dead_holder(answer)
            if dead is None:
                break
            freed = dead
        return answer

    def renew(self, leases: Sequence[Lease], ttl: int) -> list[bool]:
        """Extend the leases that are still current."""
        if not leases:
            self._runner.link.check()
            return []
        span, now = number(ttl, "the time of a lease in ms"), self._runner.now()
        commands = [self._runner.call(scripts.RENEW, lease.session, now, b"%d" % lease.token, span) for lease in leases]
        replies = self._runner.link.many(commands)
        for reply in replies:
            if isinstance(reply, PerdureError):
                raise reply
            if refused := refusal(reply):
                raise self._runner.refused(refused, "")
        return [reply == 1 for reply in replies]

    def release(self, lease: Lease) -> None:
        """Give the lease back if it is still current."""
        self._runner.ask(scripts.RELEASE, lease.session, b"%d" % lease.token)

    # -- maintenance -------------------------------------------------------------------------------

    def rewrite(self, change: Rewrite) -> bool:
        """Store a session otherwise; False (and nothing is done) when it no longer applies."""
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

    def drop(self, session: str, token: int | None, reason: str) -> None:
        """Delete a session, leaving its tombstone."""
        status = (Status.EXPIRED if reason == Status.EXPIRED else Status.CLOSED).value.encode()
        fence, why = b"" if token is None else b"%d" % token, utf8(reason or "deleted")

        def call(op: bytes, freed: bytes) -> Command:
            faults.point("redis.drop.before_send")
            return self._runner.call(scripts.DROP, session, self._runner.now(), fence, freed, op, why, status)

        if refused := refusal(self._past_the_dead(call)):
            raise self._runner.refused(refused, session)

    def renew_epoch(self, epoch: str) -> None:
        """Set another epoch."""
        self._runner.ask(scripts.EPOCH, None, epoch.encode())


def _unknown(item: Append, why: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"session {item.session!r}, commit {item.id.hex()}: {why}", item.id)


LEFTOVER = 24 * 3600
"""Seconds after which something laid ready is taken for what a killed process left behind."""
PIECE = 1 << 20
"""Bytes laid ready in one round trip, more or less."""


def restore(runner: ScriptRunner, dump: Dump) -> None:
    """Write a dumped session; ``Conflict`` when one with checkpoints is there."""
    row = dump.row
    runner.link.check()
    stage = b"%b:stage:%b:" % (runner.prefix, os.urandom(8).hex().encode())
    totals = {"bytes": 0}
    commands, size = [_begin(runner, stage)], 0
    try:
        for command in _ready(dump, stage, totals):
            commands.append(command)
            size += sum(map(len, command))
            if size > PIECE:
                _send(runner, commands)
                commands, size = [], 0
        _send(runner, commands)
        answer = runner.ask(
            scripts.RESTORE,
            row.id,
            runner.now(),
            stage,
            os.urandom(8).hex().encode(),
            _about(dump, totals),
            runner.kept,
            *_fields(dump),
        )
    except BaseException:
        _clear(runner, stage)
        raise
    if there := refusal(answer):
        _clear(runner, stage)
        name, value = there[1:]
        raise rules.has_checkpoints(row.id, None if name is None else runner.form.head(name.decode(), value))


def _begin(runner: ScriptRunner, stage: bytes) -> Command:
    """Note what is being laid ready, after taking away what killed processes left behind long ago."""
    stages, now = b"%b:stages" % runner.prefix, int(runner.link.one((b"TIME",))[0])
    for left in runner.link.one((b"ZRANGEBYSCORE", stages, b"-inf", b"%d" % (now - LEFTOVER))):
        _clear(runner, left)
    return (b"ZADD", stages, b"%d" % now, stage)


def _about(dump: Dump, totals: dict[str, int]) -> bytes:
    row = restored_row(dump)
    return packed(
        {
            "owner": row.owner,
            "status": row.status,
            "created": str(row.created),
            "updated": str(row.updated),
            "expires": "" if row.expires is None else str(row.expires),
            "reason": row.reason,
            "lines": str(row.lines),
            "agent": row.agent,
            "error": row.error,
            "token": str(row.lease.token),
            "long": str(max((a.hi - a.lo + 1 for a in dump.artifacts if a.kind == PACK), default=0)),
            "bytes": totals["bytes"],
        }
    )


def _fields(dump: Dump) -> Iterator[bytes]:
    """Heads of branches and ends of lines, name and value by turns."""
    last: dict[int, int] = {}
    for stored, _ in dump.rows:
        last[stored.line] = max(last.get(stored.line, 0), stored.step)
    for head in dump.row.heads:
        yield b"h:" + utf8(head.branch)
        yield b"%d:%d:%b" % (head.line, head.step, head.id)
    for line, step in last.items():
        yield b"t:%d" % line
        yield b"%d" % step


def _ready(dump: Dump, stage: bytes, totals: dict[str, int]) -> Iterator[Command]:
    """The commands that lay everything ready."""
    for place, (stored, projections) in enumerate(dump.rows):
        field = b"%d:%d" % (stored.line, stored.step)
        shown = _projected(stored, projections)
        value = b"+%d:" % place + row_tail(mark(stored.id, stored.digest), shown, stored.envelope, stored.payload)
        totals["bytes"] += len(value)
        yield (b"HSET", stage + b"r", field, value)
        branch, kind, status, at = shown[:4]
        change = ("branch", branch, "line", str(stored.line), "step", str(stored.step), "id", stored.id.hex())
        yield (b"ZADD", stage + b"o", b"%d" % place, packed((*change, "kind", kind, "status", status, "at", str(at))))
        if shown[8]:
            yield (b"HSET", stage + b"l", b"%d" % stored.line, b"%d:%b" % (stored.step, utf8(branch)))
        if shown[7]:
            yield (b"HSET", stage + b"b", b"r:" + field, names_value(shown[7]))
    for artifact in dump.artifacts:
        key = f"{artifact.kind}:{artifact.line:010}:{artifact.lo:016}".encode()
        value = artifact_value(artifact)
        totals["bytes"] += len(value)
        yield (b"HSET", stage + b"a", key, value)
        yield (b"ZADD", stage + b"x", b"0", b"%b:%016d" % (key, artifact.hi))
        if artifact.blobs:
            yield (b"HSET", stage + b"b", b"a:" + key, names_value(artifact.blobs))
    for place, entry in enumerate(dump.inbox):
        yield (b"ZADD", stage + b"k", b"%d" % place, (b"t" if entry.taken else b"w") + utf8(entry.key))
        yield (b"HSET", stage + b"i", utf8(entry.key), entry_tail(entry))


def _projected(stored: Row, projections: dict[str, Any]) -> tuple[Any, ...]:
    missing = [name for name in SHOWN if name not in projections]
    if missing:
        raise InvalidInput(f"the dump is incomplete: a row has no {missing[0]!r}")
    values = {**projections, "takes": tuple(projections["takes"]), "blobs": tuple(projections["blobs"])}
    return tuple(values[name] for name in SHOWN)


def _send(runner: ScriptRunner, commands: list[Command]) -> None:
    for answer in runner.link.many(commands):
        if isinstance(answer, PerdureError):
            raise answer


def _clear(runner: ScriptRunner, stage: bytes) -> None:
    """Take away what was laid ready; when that fails too, a later restore does it."""
    with suppress(PerdureError):
        runner.link.many(
            [
                (b"UNLINK", *[stage + part for part in (b"r", b"l", b"a", b"x", b"b", b"k", b"i", b"o")]),
                (b"ZREM", b"%b:stages" % runner.prefix, stage),
            ]
        )
