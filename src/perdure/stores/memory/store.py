"""The store in memory: for tests, examples and work that need not outlive the process."""

from __future__ import annotations

import secrets
import threading
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from perdure import model
from perdure.errors import InvalidInput, PerdureError
from perdure.stores import rules
from perdure.stores.cursors import resume
from perdure.stores.listing import EVERY, Asked
from perdure.stores.live import MemoryLive
from perdure.stores.rules import LeaseJudge, StoredLease, overlap, restored_row, sets_session_status
from perdure.system import faults
from perdure.system.clock import SteadyClock, SystemClock
from perdure.system.flow import HandleGuard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Unpack

    from perdure.protocols import Clock, Wanted
    from perdure.stores.listing import Count

_PROMISE = model.Promise(
    process_crash=False,
    power_loss=False,
    words="Nothing outlives the process: a commit that has returned is in its memory and nowhere else.",
)


class MemoryStore:
    """Implements :class:`perdure.protocols.Store` in dictionaries.

    Handles with the same ``name`` share one store, which lives as long as the process; without a name,
    the store is the handle's own.
    """

    def __init__(self, name: str = "", *, clock: Clock | None = None) -> None:
        self.url = f"memory://{name}"
        self.promise = _PROMISE
        self._clock: Clock = clock or SystemClock()
        self._judge = LeaseJudge(self._clock)
        self._guard = HandleGuard(f"{self.url}: this handle", anew="the child has its own memory")
        self._room = room_of(name)
        self.id = self._room.id
        self.epoch = self._room.epoch
        self._steady = SteadyClock(self._clock, self._room.clock)
        self._room.clock = self._steady.known

    def _inside(self) -> threading.Lock:
        """The lock itself, for a ``with`` statement: an interrupt never comes between the two."""
        self._guard.check()
        return self._room.lock

    def _whole(self) -> Room:
        """The room, with a commit finished that an interrupt ended half-way."""
        if self._room.unfinished is not None:
            self._room.unfinished()
            self._room.unfinished = None
        return self._room

    def live(self) -> MemoryLive:
        """Carries pieces of answers on their way."""
        return MemoryLive(self._room.said)

    # -- commits and inbox -------------------------------------------------------------------------

    def append(self, batch: Sequence[model.Append]) -> list[model.Landed | PerdureError]:
        """Append each item; see the protocol for the rules."""
        with self._inside():
            room = self._whole()
            return [self._append(room, item) for item in batch]

    def _append(self, room: Room, item: model.Append) -> model.Landed | PerdureError:
        session = room.sessions.get(item.session) or Session(self._clock.wall(), self._clock.wall())
        head = session.heads.get(item.branch)
        there = session.rows.get(item.line, {}).get(item.step)
        if there is not None and there.row.id == item.id:
            same = there.row.digest == item.digest
            return model.Landed(item.id, again=True) if same else rules.other_digest(item)
        if refused := rules.fenced(item.session, item.token, session.lease, self._judge):
            return refused
        if (head.id if head else None) != item.expect:
            return rules.moved(item, head)
        if there is not None or (item.starts and item.line < session.lines):
            return rules.taken_place(item, head)
        for n, key in enumerate(item.takes):
            entry = session.inbox.get(key)
            if entry is None or entry.taken or key in item.takes[:n]:
                return rules.not_waiting(item, key, head)
        faults.point("memory.append.before_insert")
        shown = {
            "branch": item.branch,
            "kind": item.kind,
            "status": item.status,
            "at": item.at,
            "tool": item.tool,
            "error": item.error,
            "takes": tuple(item.takes),
            "blobs": tuple(item.blobs),
            "starts": item.starts,
        }
        room.unfinished = partial(self._insert, room, item, session, shown, room.newest)
        self._whole()
        return model.Landed(item.id)

    def _insert(self, room: Room, item: model.Append, session: Session, shown: dict[str, Any], newest: int) -> None:
        """Everything that a commit changes; done again, it comes to the same."""
        room.sessions[item.session] = session
        room.newest = newest
        row = model.Row(item.line, item.step, item.id, item.digest, item.envelope, item.payload)
        write_row(room, item.session, session, row, shown)
        session.heads[item.branch] = model.Head(item.branch, item.line, item.step, item.id)
        for key in item.takes:
            session.inbox[key] = session.inbox[key]._replace(taken=item.id, body=b"")
        wall = self._steady.latest()
        if session.reason or not session.lines:
            session.created, session.reason = wall, ""
        session.owner, session.updated = item.owner, wall
        if sets_session_status(item.branch, model.MAIN in session.heads):
            session.status, session.error, session.agent = item.status, item.error, item.agent or session.agent
            session.label = item.label
        session.expires = None if item.ttl is None else wall + item.ttl * 1000
        session.lines = max(session.lines, item.line + 1)
        if item.token is not None:
            session.lease = self._judge.grant(session.lease.holder, item.token, session.lease.span)

    def post(self, entries: Sequence[model.InboxEntry]) -> list[bool | model.Outrun | PerdureError]:
        """Put entries into inboxes."""
        answers: list[bool | model.Outrun | PerdureError] = []
        with self._inside():
            room = self._whole()
            for entry in entries:
                session = self._session(room, entry.session)
                if known := session.inbox.get(entry.key):
                    same = known.digest == entry.digest
                    answers.append(False if same else rules.other_post(entry.session, entry.key))
                    continue
                number = session.posts + 1
                if entry.seq not in (0, number):
                    answers.append(model.Outrun(number))
                    continue
                session.posts = number
                session.inbox[entry.key] = entry._replace(seq=number, taken=b"")
                answers.append(True)
        return answers

    def inbox(self, session: str, limit: int = 100, key: str | None = None) -> list[model.InboxEntry]:
        """Waiting entries in order of arrival; with ``key`` only the one of that key."""
        with self._inside():
            room = self._whole()
            found = room.sessions.get(session)
            waiting = [entry for entry in found.entries() if not entry.taken] if found else []
            return [entry for entry in waiting if key is None or entry.key == key][:limit]

    def _session(self, room: Room, id: str) -> Session:
        return room.sessions.setdefault(id, Session(self._clock.wall(), self._clock.wall()))

    # -- looking -----------------------------------------------------------------------------------

    def look(self, session: str) -> model.SessionRow | None:
        """What is known of a session, a tombstone included."""
        with self._inside():
            room = self._whole()
            found = room.sessions.get(session)
            return self._shown(session, found) if found else None

    def _shown(self, id: str, session: Session) -> model.SessionRow:
        return model.SessionRow(
            id,
            session.owner,
            session.status,
            session.created,
            session.updated,
            session.expires,
            self._judge.info(id, session.lease),
            tuple(session.heads[name] for name in sorted(session.heads)),
            session.reason,
            sum(not entry.taken for entry in session.inbox.values()),
            session.lines,
            session.agent,
            session.error,
            session.label,
            session.posts,
            self._steady.now(),
        )

    def sessions(self, **wanted: Unpack[Wanted]) -> list[model.SessionRow]:
        """Sessions in order of id, or the newest first, without tombstones."""
        asked = Asked(**wanted)
        with self._inside():
            room, now = self._whole(), self._steady.now()
            ids = [id for id, session in room.sessions.items() if asked.keeps(id, session, now)]
            ids.sort(key=lambda id: asked.key(id, room.sessions[id].updated))
            return [self._shown(id, room.sessions[id]) for id in ids[: asked.limit]]

    def counts(self) -> list[Count]:
        """How many sessions there are by status, agent and error."""
        with self._inside():
            room = self._whole()
            living = Counter((s.status, s.agent, s.error) for id, s in room.sessions.items() if EVERY.keeps(id, s))
            return [(*what, number) for what, number in sorted(living.items())]

    def starts(self, session: str, branch: str | None) -> list[model.Row]:
        """The first rows of all lines of a branch (None: of all branches)."""
        with self._inside():
            room = self._whole()
            found = room.sessions.get(session)
            records = found.records() if found else []
            rows = [r.row for r in records if r.shown["starts"] and branch in (None, r.shown["branch"])]
            return sorted(rows, key=lambda row: row.line)

    def load(self, session: str, line: int, step: int | None = None, *, refs: bool = True) -> model.Bundle:
        """What is needed to rebuild a line at a step (None: its last)."""
        with self._inside():
            room = self._whole()
            found, last = find_line(room, session, line)
            at = last if step is None else step
            anchors = [a for a in found.artifacts.values() if a.kind == model.ANCHOR and a.line == line]
            snapshots = [a for a in found.artifacts.values() if a.kind == model.SNAPSHOT and a.line == line]
            bases = [a for a in (*snapshots, *anchors) if a.hi <= at]
            base = max(bases, key=lambda a: (a.hi, a.kind == model.ANCHOR), default=None)
            rows = rows_between(found, line, base.hi + 1 if base else 0, min(at, last))
            reached = rows[-1].step if rows else base.hi if base else -1
            if reached != at:
                for anchor in anchors:
                    if anchor.lo <= at < anchor.hi:
                        raise rules.retained(session, line, at, anchor.lo, anchor.hi)
                raise rules.no_step(session, line, at, last)
            return model.Bundle(base, tuple(rows), packs_for(found, rows, base.refs if base and refs else ()), last)

    def slice(self, session: str, line: int, lo: int, hi: int) -> model.Bundle:
        """Rows lo..hi of a line, with the packs that hold the thin ones."""
        with self._inside():
            room = self._whole()
            found, last = find_line(room, session, line)
            rows = rows_between(found, line, lo, min(hi, last))
            return model.Bundle(None, tuple(rows), packs_for(found, rows, ()), last)

    def artifacts(self, session: str) -> list[model.Artifact]:
        """All artifacts of a session."""
        with self._inside():
            room = self._whole()
            found = room.sessions.get(session)
            return [found.artifacts[key] for key in sorted(found.artifacts)] if found else []

    def changes(self, after: str | None = None, limit: int = 1000) -> model.ChangePage:
        """Commits after a cursor."""
        with self._inside():
            room = self._whole()
            place = resume(after, epoch=room.epoch, newest=room.newest, trimmed=room.trimmed)
            numbers = list(room.log)
            start = bisect_right(numbers, place.seq)
            page = numbers[start : start + limit]
            cursor = place.after(page[-1]) if page else place
            return model.ChangePage(tuple(room.log[number] for number in page), str(cursor))

    def blob_refs(self) -> Iterator[str]:
        """Every blob that any row or artifact refers to."""
        with self._inside():
            room = self._whole()
            refs = [ref for s in room.sessions.values() for r in s.records() for ref in r.shown["blobs"]]
            refs += [ref for s in room.sessions.values() for a in s.artifacts.values() for ref in a.blobs]
        yield from refs

    # -- leases ------------------------------------------------------------------------------------

    def acquire(self, session: str, holder: str, ttl: int) -> model.Lease:
        """Take the lease for ``ttl`` ms, or raise ``Busy``."""
        with self._inside():
            room = self._whole()
            found = self._session(room, session)
            if busy := self._judge.busy(session, found.lease):
                raise busy
            room.token += 1
            found.lease = self._judge.grant(holder, room.token, ttl)
            return model.Lease(session, holder, room.token, self._clock.wall() + ttl)

    def renew(self, leases: Sequence[model.Lease], ttl: int) -> list[bool]:
        """Extend leases; False where the token is no longer the current one."""
        answers: list[bool] = []
        with self._inside():
            room = self._whole()
            for lease in leases:
                found = room.sessions.get(lease.session)
                current = found is not None and found.lease.holder != "" and found.lease.token == lease.token
                if found and current:
                    found.lease = self._judge.grant(found.lease.holder, lease.token, ttl)
                answers.append(current)
        return answers

    def release(self, lease: model.Lease) -> None:
        """Give a lease back."""
        with self._inside():
            room = self._whole()
            found = room.sessions.get(lease.session)
            if found and found.lease.token == lease.token:
                found.lease = StoredLease(token=lease.token)

    # -- maintenance -------------------------------------------------------------------------------

    def rewrite(self, change: model.Rewrite) -> bool:
        """Do maintenance at once; False when it no longer applies."""
        with self._inside():
            room = self._whole()
            found = room.sessions.get(change.session)
            if found is None or (found.reason and change.token is None):
                return False
            token, lease = change.token, found.lease
            if token is not None and (refused := rules.fenced(change.session, token, lease, self._judge)):
                raise refused
            thin = [(found.rows.get(span.line, {}), span) for span in change.thin]
            for rows, span in thin:
                records = [rows.get(step) for step in range(span.lo, span.hi + 1)]
                if any(r is None or not (r.row.envelope or r.row.payload) for r in records):
                    return False
            if any(step not in found.rows.get(n.line, {}) for n in change.needs for step in range(n.lo, n.hi + 1)):
                return False
            for key in change.discard:
                found.artifacts.pop(key, None)
            for artifact in change.put:
                found.artifacts[artifact.kind, artifact.line, artifact.lo] = artifact
            for rows, span in thin:
                for step in range(span.lo, span.hi + 1):
                    rows[step].row = rows[step].row._replace(envelope=b"", payload=b"")
            for span in change.drop:
                rows = found.rows.get(span.line, {})
                delete_rows(room, rows, [step for step in rows if span.lo <= step <= span.hi])
            delete_snapshots(found, change.drop)
            return True

    def drop(self, session: str, token: int | None, reason: str, *, keep_waiting: bool = False) -> None:
        """Delete a session and leave a tombstone."""
        with self._inside():
            room = self._whole()
            found = room.sessions.get(session)
            if found is None:
                raise rules.no_session(session)
            if refused := rules.fenced(session, token, found.lease, self._judge):
                raise refused
            for rows in found.rows.values():
                delete_rows(room, rows, list(rows))
            room.sessions[session] = Session(
                found.created,
                self._clock.wall(),
                status=rules.status_of_gone(reason),
                reason=reason or "deleted",
                lease=StoredLease(token=found.lease.token),
                posts=found.posts,
                inbox={key: e for key, e in found.inbox.items() if keep_waiting and not e.taken},
            )

    def dump(self, session: str) -> model.Dump:
        """A whole session, at one instant."""
        with self._inside():
            room = self._whole()
            found = room.sessions.get(session)
            if found is None:
                raise rules.no_session(session)
            if found.reason:
                raise rules.gone(session, found.reason)
            return model.Dump(
                self._shown(session, found)._replace(now=0),
                tuple((record.row, dict(record.shown)) for record in found.records()),
                tuple(found.artifacts[key] for key in sorted(found.artifacts)),
                tuple(found.entries()),
            )

    def restore(self, dump: model.Dump) -> None:
        """Put a dumped session into this store."""
        row = restored_row(dump)
        for _, shown in dump.rows:
            if missing := set(rules.SHOWN) - set(shown):
                raise InvalidInput(f"the dump is incomplete: a row has no {min(missing)!r}")
        with self._inside():
            room = self._whole()
            found = self._session(room, row.id)
            if found.lines:
                raise rules.has_checkpoints(row.id, next(iter(found.heads.values()), None))
            known = {entry.key: (entry.seq, entry.digest) for entry in found.inbox.values()}
            entries = rules.restored_inbox(dump, known, found.posts)
            for stored, shown in dump.rows:
                said = {**shown, "takes": tuple(shown["takes"]), "blobs": tuple(shown["blobs"])}
                write_row(room, row.id, found, stored, said)
            found.heads.update({head.branch: head for head in row.heads})
            found.artifacts.update({(a.kind, a.line, a.lo): a for a in dump.artifacts})
            for entry in entries:
                # What was posted here meanwhile stays; what the dump has taken counts as taken.
                if entry.key not in found.inbox:
                    found.inbox[entry.key] = entry
                    found.posts = max(found.posts, entry.seq)
                elif entry.taken:
                    found.inbox[entry.key] = found.inbox[entry.key]._replace(taken=entry.taken, body=b"")
            for name in (
                "owner",
                "status",
                "reason",
                "agent",
                "error",
                "label",
                "created",
                "updated",
                "expires",
                "lines",
            ):
                setattr(found, name, getattr(row, name))
            room.token = max(room.token, row.lease.token)
            if not found.lease.holder:
                found.lease = StoredLease(token=max(found.lease.token, row.lease.token))

    def renew_epoch(self) -> None:
        """Give the store a new epoch: cursors expire and every lease ends."""
        with self._inside():
            room = self._whole()
            room.epoch = self.epoch = secrets.token_hex(8)
            room.token += 1 << 32
            for session in room.sessions.values():
                session.lease = StoredLease(token=session.lease.token)

    def usage(self) -> model.Usage:
        """Sizes; bytes are those of envelopes, payloads, artifacts and inbox bodies."""
        with self._inside():
            room = self._whole()
            size = 0
            for session in room.sessions.values():
                size += sum(len(r.row.envelope) + len(r.row.payload) for r in session.records())
                size += sum(len(artifact.body) for artifact in session.artifacts.values())
                size += sum(len(entry.body) for entry in session.inbox.values())
            return model.Usage(sum(not s.reason for s in room.sessions.values()), len(room.log), size)

    def close(self) -> None:
        """Close this handle; a named store stays for the others."""
        self._guard.closed = self._guard.closed or not self._guard.forked


@dataclass
class Record:
    """One checkpoint with its projections."""

    seq: int
    row: model.Row
    shown: dict[str, Any]


@dataclass
class Session:
    """All of one session; also its tombstone."""

    created: int
    updated: int
    owner: str = ""
    status: str = model.Status.IDLE.value
    agent: str = ""
    error: str = ""
    label: str = ""
    expires: int | None = None
    reason: str = ""
    lines: int = 0
    lease: StoredLease = field(default_factory=StoredLease)
    heads: dict[str, model.Head] = field(default_factory=dict[str, model.Head])
    rows: dict[int, dict[int, Record]] = field(default_factory=dict[int, dict[int, Record]])
    artifacts: dict[tuple[str, int, int], model.Artifact] = field(
        default_factory=dict[tuple[str, int, int], model.Artifact]
    )
    inbox: dict[str, model.InboxEntry] = field(default_factory=dict[str, model.InboxEntry])
    posts: int = 0

    def entries(self) -> list[model.InboxEntry]:
        """All that was posted, in order of arrival."""
        return sorted(self.inbox.values(), key=lambda entry: entry.seq)

    def records(self) -> list[Record]:
        """All records in the order in which they were written."""
        return sorted((r for line in self.rows.values() for r in line.values()), key=lambda r: r.seq)


@dataclass
class Room:
    """What the handles of one name share."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    epoch: str = field(default_factory=lambda: secrets.token_hex(8))
    sessions: dict[str, Session] = field(default_factory=dict[str, Session])
    said: dict[str, Any] = field(default_factory=dict[str, Any])
    """Pieces of answers on their way."""
    log: dict[int, model.Change] = field(default_factory=dict[int, model.Change])
    newest: int = 0
    trimmed: int = 0
    token: int = 0
    clock: str = ""
    """What :class:`SteadyClock` has kept."""

    def __post_init__(self) -> None:
        self.unfinished: Callable[[], None] | None = None
        """The commit that is being made."""


_rooms: dict[str, Room] = {}
_rooms_lock = threading.Lock()


def room_of(name: str) -> Room:
    """The room that handles of this name share; without a name, one of its own."""
    with _rooms_lock:
        return _rooms.setdefault(name, Room()) if name else Room()


def write_row(room: Room, id: str, session: Session, row: model.Row, shown: dict[str, Any]) -> None:
    """Add a row, and a change for it."""
    room.newest += 1
    session.rows.setdefault(row.line, {})[row.step] = Record(room.newest, row, shown)
    room.log[room.newest] = model.Change(
        id, shown["branch"], row.line, row.step, row.id, shown["kind"], shown["status"], shown["at"]
    )


def delete_rows(room: Room, rows: dict[int, Record], steps: list[int]) -> None:
    """Remove rows of a line, and their changes."""
    for step in steps:
        number = rows.pop(step).seq
        del room.log[number]
        room.trimmed = max(room.trimmed, number)


def delete_snapshots(session: Session, gone: Iterable[model.Span]) -> None:
    """Remove every snapshot at a row of the spans, or with a ref to one."""
    for key, a in list(session.artifacts.items()):
        about = (model.Span(a.line, a.lo, a.hi), *a.refs)
        if a.kind == model.SNAPSHOT and any(overlap(one, span) for one in about for span in gone):
            del session.artifacts[key]


def find_line(room: Room, id: str, line: int) -> tuple[Session, int]:
    """A session and the last step of one of its lines."""
    session = room.sessions.get(id)
    if session is not None and session.reason:
        raise rules.gone(id, session.reason)
    if session is None or not session.lines:
        raise rules.no_session(id)
    anchors = (a.hi for a in session.artifacts.values() if a.kind == model.ANCHOR and a.line == line)
    last = max(session.rows.get(line) or anchors, default=None)
    if last is None:
        raise rules.no_line(id, line)
    return session, last


def rows_between(session: Session, line: int, lo: int, hi: int) -> list[model.Row]:
    """Rows lo..hi of a line."""
    rows = session.rows.get(line, {})
    return [rows[step].row for step in range(lo, hi + 1) if step in rows]


def packs_for(session: Session, rows: Iterable[model.Row], refs: Iterable[model.Span]) -> tuple[model.Artifact, ...]:
    """Every pack that holds one of the thin rows or overlaps one of the spans, in order; then their anchors."""
    thin = [model.Span(row.line, row.step, row.step) for row in rows if not (row.envelope or row.payload)]
    wanted = [*thin, *refs]
    kept = session.artifacts.values()
    packs = [
        a for a in kept if a.kind == model.PACK and any(overlap(model.Span(a.line, a.lo, a.hi), s) for s in wanted)
    ]
    anchors = [a for a in kept if a.kind == model.ANCHOR and model.Span(a.line, a.hi, a.hi) in thin]
    return (*sorted(packs, key=lambda a: a[1:3]), *sorted(anchors, key=lambda a: a[1:3]))
