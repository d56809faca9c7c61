"""A store as somebody else would write it: each session is one JSON document in a database of Python's own sqlite3.

Simple on purpose, and slow on long sessions: a commit writes its whole document. Every method is one transaction.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from perdure.errors import ForkedProcess, HandleClosed, InvalidInput, PerdureError
from perdure.model import (
    ANCHOR,
    MAIN,
    PACK,
    SNAPSHOT,
    Append,
    Artifact,
    Bundle,
    Change,
    ChangePage,
    Dump,
    Head,
    InboxEntry,
    Landed,
    Lease,
    Outrun,
    Promise,
    Rewrite,
    Row,
    SessionRow,
    Span,
    Usage,
)
from perdure.protocols import Clock
from perdure.stores import rules
from perdure.stores.cursors import resume
from perdure.stores.listing import EVERY, Asked
from perdure.stores.rules import LeaseJudge, StoredLease

SHOWN = ("branch", "kind", "status", "at", "tool", "error", "takes", "blobs", "starts")


@dataclass
class Record:
    """One checkpoint, its number in the list of changes, and what queries need to know of it."""

    seq: int
    row: Row
    shown: dict[str, Any]


@dataclass
class Document:
    """All of one session, or its tombstone."""

    created: int
    updated: int
    owner: str = ""
    status: str = "idle"
    agent: str = ""
    error: str = ""
    label: str = ""
    expires: int | None = None
    reason: str = ""
    lines: int = 0
    posts: int = 0
    lease: StoredLease = field(default_factory=StoredLease)
    heads: dict[str, Head] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list)
    inbox: dict[str, InboxEntry] = field(default_factory=dict)

    def at(self, line: int, step: int) -> Record | None:
        return next((r for r in self.records if (r.row.line, r.row.step) == (line, step)), None)


@dataclass
class Numbers:
    """What all sessions share."""

    id: str = field(default_factory=lambda: secrets.token_hex(16))
    epoch: str = field(default_factory=lambda: secrets.token_hex(8))
    token: int = 0
    newest: int = 0
    trimmed: int = 0


class Transaction:
    """What one method reads and writes."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        found = db.execute("select body from numbers").fetchone()
        self.numbers = msgspec.json.decode(found[0], type=Numbers) if found else Numbers()

    def get(self, session: str) -> Document | None:
        found = self._db.execute("select body from sessions where id = ?", (_key(session),)).fetchone()
        return msgspec.json.decode(found[0], type=Document) if found else None

    def every(self) -> dict[str, Document]:
        rows = self._db.execute("select id, body from sessions")
        found = {msgspec.json.decode(id): msgspec.json.decode(body, type=Document) for id, body in rows}
        return dict(sorted(found.items()))

    def put(self, session: str, document: Document) -> None:
        body = msgspec.json.encode(document)
        self._db.execute("insert or replace into sessions values (?, ?)", (_key(session), body))

    def save_numbers(self) -> None:
        self._db.execute("insert or replace into numbers values (1, ?)", (msgspec.json.encode(self.numbers),))

    def bytes(self) -> int:
        return self._db.execute("select coalesce(sum(length(body)), 0) from sessions").fetchone()[0]


class JsonStore:
    """Implements :class:`perdure.protocols.Store`."""

    promise = Promise(
        process_crash=True,
        power_loss=True,
        words="Each method is one transaction of SQLite with a full sync: what has returned is on the disk.",
    )

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self.url = f"json://{path}"
        self._clock = clock
        self._judge = LeaseJudge(clock)
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = sqlite3.connect(
            path, timeout=30, isolation_level=None, check_same_thread=False
        )
        self._db.execute("pragma synchronous = full")
        self._db.execute("create table if not exists sessions (id text primary key, body blob)")
        self._db.execute("create table if not exists numbers (one integer primary key, body blob)")
        with self._inside() as t:
            self.id, self.epoch = t.numbers.id, t.numbers.epoch
            t.save_numbers()

    @contextmanager
    def _inside(self) -> Iterator[Transaction]:
        if os.getpid() != self._pid:
            raise ForkedProcess(f"{self.url}: open a new handle in the child")
        with self._lock:
            db = self._db
            if db is None:
                raise HandleClosed(f"{self.url}: open a new handle")
            db.execute("begin immediate")
            try:
                yield Transaction(db)
            except BaseException:
                db.execute("rollback")
                raise
            db.execute("commit")

    # -- commits and inbox -------------------------------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> list[Landed | PerdureError]:
        with self._inside() as t:
            answers = [self._append(t, item) for item in batch]
            t.save_numbers()
            return answers

    def _append(self, t: Transaction, item: Append) -> Landed | PerdureError:
        try:
            item.session.encode()
        except UnicodeEncodeError:
            return InvalidInput(f"{item.session!r} is not text")
        now = self._clock.wall()
        document = t.get(item.session) or Document(now, now)
        there, head = document.at(item.line, item.step), document.heads.get(item.branch)
        if landed := self._landed(item, there):
            return landed
        if refused := self._fenced(item.session, item.token, document):
            return refused
        if self._moved(item, head):
            return rules.moved(item, head)
        if there is not None or (item.starts and item.line < document.lines):
            return rules.taken_place(item, head)
        for n, key in enumerate(item.takes):
            entry = document.inbox.get(key)
            if entry is None or entry.taken or key in item.takes[:n]:
                return rules.not_waiting(item, key, head)
        row = Row(item.line, item.step, item.id, item.digest, item.envelope, item.payload)
        self._add(t, document, row, {name: getattr(item, name) for name in SHOWN})
        document.heads[item.branch] = Head(item.branch, item.line, item.step, item.id)
        self._take(document, item)
        if document.reason or not document.lines:
            document.created, document.reason = now, ""
        document.owner, document.updated = item.owner, now
        if rules.sets_session_status(item.branch, MAIN in document.heads):
            document.status, document.error = str(item.status), item.error
            document.agent, document.label = item.agent or document.agent, item.label
        document.expires = None if item.ttl is None else now + item.ttl * 1000
        document.lines = max(document.lines, item.line + 1)
        if item.token is not None:
            document.lease = self._judge.grant(document.lease.holder, item.token, document.lease.span)
        t.put(item.session, document)
        return Landed(item.id)

    def _landed(self, item: Append, there: Record | None) -> Landed | PerdureError | None:
        if there is None or there.row.id != item.id:
            return None
        return Landed(item.id, again=True) if there.row.digest == item.digest else rules.other_digest(item)

    def _fenced(self, session: str, token: int | None, document: Document) -> PerdureError | None:
        return rules.fenced(session, token, document.lease, self._judge)

    def _moved(self, item: Append, head: Head | None) -> bool:
        return (head.id if head else None) != item.expect

    def _take(self, document: Document, item: Append) -> None:
        for key in item.takes:
            document.inbox[key] = document.inbox[key]._replace(taken=item.id, body=b"")

    def _add(self, t: Transaction, document: Document, row: Row, shown: dict[str, Any]) -> None:
        t.numbers.newest += 1
        document.records.append(Record(t.numbers.newest, row, shown))

    def post(self, entries: Sequence[InboxEntry]) -> list[bool | Outrun | PerdureError]:
        answers: list[bool | Outrun | PerdureError] = []
        with self._inside() as t:
            for entry in entries:
                document = self._known(t, entry.session)
                if (known := document.inbox.get(entry.key)) is not None:
                    same = known.digest == entry.digest
                    answers.append(False if same else rules.other_post(entry.session, entry.key))
                    continue
                number = document.posts + 1
                if entry.seq not in (0, number):
                    answers.append(Outrun(number))
                    continue
                document.posts = number
                document.inbox[entry.key] = entry._replace(seq=number, taken=b"")
                t.put(entry.session, document)
                answers.append(True)
        return answers

    def inbox(self, session: str, limit: int = 100, key: str | None = None) -> list[InboxEntry]:
        with self._inside() as t:
            found = t.get(session)
            waiting = [e for e in (found.inbox.values() if found else ()) if not e.taken and key in (None, e.key)]
            return sorted(waiting, key=lambda e: e.seq)[:limit]

    def _known(self, t: Transaction, session: str) -> Document:
        return t.get(session) or Document(self._clock.wall(), self._clock.wall())

    # -- looking -----------------------------------------------------------------------------------------------------

    def look(self, session: str) -> SessionRow | None:
        with self._inside() as t:
            found = t.get(session)
            return self._row(session, found) if found else None

    def _row(self, id: str, d: Document) -> SessionRow:
        lease = self._judge.info(id, d.lease)
        heads = tuple(d.heads[name] for name in sorted(d.heads))
        pending = sum(not entry.taken for entry in d.inbox.values())
        return SessionRow(
            id, d.owner, d.status, d.created, d.updated, d.expires, lease, heads, d.reason, pending, d.lines, d.agent,
            d.error, d.label, d.posts, self._clock.wall(),
        )  # fmt: skip

    def sessions(self, **wanted: Any) -> list[SessionRow]:
        asked = Asked(**wanted)
        with self._inside() as t:
            now = self._clock.wall()
            kept = {id: d for id, d in t.every().items() if asked.keeps(id, d, now)}
            ids = sorted(kept, key=lambda id: asked.key(id, kept[id].updated))
            return [self._row(id, kept[id]) for id in ids[: asked.limit]]

    def counts(self) -> list[tuple[str, str, str, int]]:
        with self._inside() as t:
            living = Counter((d.status, d.agent, d.error) for id, d in t.every().items() if EVERY.keeps(id, d))
            return [(*what, number) for what, number in sorted(living.items())]

    def starts(self, session: str, branch: str | None) -> list[Row]:
        with self._inside() as t:
            found = t.get(session)
            rows = (
                [r.row for r in found.records if r.shown["starts"] and branch in (None, r.shown["branch"])]
                if found
                else []
            )
            return sorted(rows, key=lambda row: row.line)

    def load(self, session: str, line: int, step: int | None = None, *, refs: bool = True) -> Bundle:
        with self._inside() as t:
            found, last = self._line(t, session, line)
            at = last if step is None else step
            bases = [a for a in found.artifacts if a.kind in (SNAPSHOT, ANCHOR) and a.line == line]
            base = max((a for a in bases if a.hi <= at), key=lambda a: (a.hi, a.kind == ANCHOR), default=None)
            rows = _rows(found, line, base.hi + 1 if base else 0, min(at, last))
            if (rows[-1].step if rows else base.hi if base else -1) != at:
                for a in bases:
                    if a.kind == ANCHOR and a.lo <= at < a.hi:
                        raise rules.retained(session, line, at, a.lo, a.hi)
                raise rules.no_step(session, line, at, last)
            return Bundle(base, tuple(rows), _packs(found, rows, base.refs if base and refs else ()), last)

    def slice(self, session: str, line: int, lo: int, hi: int) -> Bundle:
        with self._inside() as t:
            found, last = self._line(t, session, line)
            rows = _rows(found, line, lo, min(hi, last))
            return Bundle(None, tuple(rows), _packs(found, rows, ()), last)

    def _line(self, t: Transaction, session: str, line: int) -> tuple[Document, int]:
        found = t.get(session)
        if found is not None and found.reason:
            raise rules.gone(session, found.reason)
        if found is None or not found.lines:
            raise rules.no_session(session)
        steps = [r.row.step for r in found.records if r.row.line == line]
        steps = steps or [a.hi for a in found.artifacts if a.kind == ANCHOR and a.line == line]
        if not steps:
            raise rules.no_line(session, line)
        return found, max(steps)

    def artifacts(self, session: str) -> list[Artifact]:
        with self._inside() as t:
            found = t.get(session)
            return sorted(found.artifacts, key=lambda a: a[:3]) if found else []

    def changes(self, after: str | None = None, limit: int = 1000) -> ChangePage:
        with self._inside() as t:
            n = t.numbers
            place = resume(after, epoch=n.epoch, newest=n.newest, trimmed=n.trimmed)
            found = [(r.seq, id, r) for id, d in t.every().items() for r in d.records if r.seq > place.seq]
            page = sorted(found, key=lambda one: one[0])[:limit]
            items = tuple(_change(id, r) for _, id, r in page)
            return ChangePage(items, str(place.after(page[-1][0]) if page else place))

    def blob_refs(self) -> Iterator[str]:
        with self._inside() as t:
            every = t.every().values()
            refs = [ref for d in every for r in d.records for ref in r.shown["blobs"]]
            refs += [ref for d in every for a in d.artifacts for ref in a.blobs]
        yield from refs

    def usage(self) -> Usage:
        with self._inside() as t:
            every = t.every().values()
            return Usage(sum(not d.reason for d in every), sum(len(d.records) for d in every), t.bytes())

    # -- leases ------------------------------------------------------------------------------------------------------

    def acquire(self, session: str, holder: str, ttl: int) -> Lease:
        with self._inside() as t:
            found = self._known(t, session)
            if busy := self._judge.busy(session, found.lease):
                raise busy
            token = self._new_token(t)
            found.lease = self._judge.grant(holder, token, ttl)
            t.put(session, found)
            t.save_numbers()
            return Lease(session, holder, token, self._clock.wall() + ttl)

    def _new_token(self, t: Transaction) -> int:
        t.numbers.token += 1
        return t.numbers.token

    def renew(self, leases: Sequence[Lease], ttl: int) -> list[bool]:
        answers: list[bool] = []
        with self._inside() as t:
            for lease in leases:
                found = t.get(lease.session)
                current = found is not None and bool(found.lease.holder) and found.lease.token == lease.token
                if found is not None and current:
                    found.lease = self._judge.grant(found.lease.holder, lease.token, ttl)
                    t.put(lease.session, found)
                answers.append(current)
        return answers

    def release(self, lease: Lease) -> None:
        with self._inside() as t:
            found = t.get(lease.session)
            if found is not None and found.lease.token == lease.token:
                found.lease = StoredLease(token=lease.token)
                t.put(lease.session, found)

    # -- maintenance -------------------------------------------------------------------------------------------------

    def rewrite(self, change: Rewrite) -> bool:
        with self._inside() as t:
            found = t.get(change.session)
            if found is None or found.reason:
                return False
            if change.token is not None and (refused := self._fenced(change.session, change.token, found)):
                raise refused
            if not self._applies(found, change):
                return False
            put = {(a.kind, a.line, a.lo) for a in change.put} | set(change.discard)
            found.artifacts = [a for a in found.artifacts if (a.kind, a.line, a.lo) not in put] + list(change.put)
            for record in found.records:
                if any(_in(record.row, span) for span in change.thin):
                    record.row = record.row._replace(envelope=b"", payload=b"")
            gone = [r for r in found.records if any(_in(r.row, span) for span in change.drop)]
            self._forget(t, gone)
            found.records = [r for r in found.records if r not in gone]
            found.artifacts = [a for a in found.artifacts if a.kind != SNAPSHOT or not _needs(a, gone)]
            t.put(change.session, found)
            t.save_numbers()
            return True

    def _applies(self, found: Document, change: Rewrite) -> bool:
        for span in (*change.thin, *change.needs):
            for step in range(span.lo, span.hi + 1):
                record = found.at(span.line, step)
                if record is None or (span in change.thin and not record.row.envelope):
                    return False
        return True

    def _forget(self, t: Transaction, records: list[Record]) -> None:
        t.numbers.trimmed = max([t.numbers.trimmed, *(r.seq for r in records)])

    def drop(self, session: str, token: int | None, reason: str, *, keep_waiting: bool = False) -> None:
        with self._inside() as t:
            found = t.get(session)
            if found is None:
                raise rules.no_session(session)
            if refused := self._fenced(session, token, found):
                raise refused
            self._forget(t, found.records)
            status = "expired" if reason == "expired" else "closed"
            lease = StoredLease(token=found.lease.token)
            waiting = {key: entry for key, entry in found.inbox.items() if keep_waiting and not entry.taken}
            tombstone = Document(
                found.created, self._clock.wall(), status=status, reason=reason or "deleted", lease=lease,
                posts=found.posts, inbox=waiting,
            )  # fmt: skip
            t.put(session, tombstone)
            t.save_numbers()

    def dump(self, session: str) -> Dump:
        with self._inside() as t:
            found = t.get(session)
            if found is None:
                raise rules.no_session(session)
            if found.reason:
                raise rules.gone(session, found.reason)
            rows = tuple((r.row, {**r.shown, **_tuples(r.shown)}) for r in found.records)
            artifacts = tuple(sorted(found.artifacts, key=lambda a: a[:3]))
            entries = tuple(sorted(found.inbox.values(), key=lambda e: e.seq))
            return Dump(self._row(session, found)._replace(now=0), rows, artifacts, entries)

    def restore(self, dump: Dump) -> None:
        row = rules.restored_row(dump)
        for _, shown in dump.rows:
            if missing := set(SHOWN) - set(shown):
                raise InvalidInput(f"the dump is incomplete: a row has no {min(missing)!r}")
        with self._inside() as t:
            found = self._known(t, row.id)
            if found.lines:
                raise rules.has_checkpoints(row.id, next(iter(found.heads.values()), None))
            known = {entry.key: (entry.seq, entry.digest) for entry in found.inbox.values()}
            entries = rules.restored_inbox(dump, known, found.posts)
            for stored, shown in dump.rows:
                self._add(t, found, stored, shown)
            found.heads.update({head.branch: head for head in row.heads})
            found.artifacts = list(dump.artifacts)
            for entry in entries:
                if entry.key not in found.inbox:
                    found.posts = max(found.posts, entry.seq)
                    found.inbox[entry.key] = entry
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
            t.numbers.token = max(t.numbers.token, row.lease.token)
            if not found.lease.holder:
                found.lease = StoredLease(token=max(found.lease.token, row.lease.token))
            t.put(row.id, found)
            t.save_numbers()

    def renew_epoch(self) -> None:
        with self._inside() as t:
            t.numbers.epoch = self.epoch = secrets.token_hex(8)
            t.numbers.token += 1 << 32
            for id, found in t.every().items():
                found.lease = StoredLease(token=found.lease.token)
                t.put(id, found)
            t.save_numbers()

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None


def _key(session: str) -> str:
    return msgspec.json.encode(session).decode()


def _tuples(shown: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(shown[name]) for name in ("takes", "blobs")}


def _change(id: str, r: Record) -> Change:
    return Change(
        id, r.shown["branch"], r.row.line, r.row.step, r.row.id, r.shown["kind"], r.shown["status"], r.shown["at"]
    )


def _rows(found: Document, line: int, lo: int, hi: int) -> list[Row]:
    rows = [r.row for r in found.records if r.row.line == line and lo <= r.row.step <= hi]
    return sorted(rows, key=lambda row: row.step)


def _in(row: Row, span: Span) -> bool:
    return row.line == span.line and span.lo <= row.step <= span.hi


def _needs(snapshot: Artifact, gone: list[Record]) -> bool:
    about = (Span(snapshot.line, snapshot.lo, snapshot.hi), *snapshot.refs)
    return any(_in(record.row, span) for record in gone for span in about)


def _packs(found: Document, rows: list[Row], refs: Sequence[Span]) -> tuple[Artifact, ...]:
    thin = [Span(row.line, row.step, row.step) for row in rows if not (row.envelope or row.payload)]
    packs = [a for a in found.artifacts if a.kind == PACK and any(_overlap(a, s) for s in (*thin, *refs))]
    anchors = [a for a in found.artifacts if a.kind == ANCHOR and Span(a.line, a.hi, a.hi) in thin]
    return (*sorted(packs, key=lambda a: a[1:3]), *sorted(anchors, key=lambda a: a[1:3]))


def _overlap(a: Artifact, span: Span) -> bool:
    return a.line == span.line and a.lo <= span.hi and span.lo <= a.hi
