"""What the store in memory keeps: sessions, rows, artifacts, inboxes, in plain dictionaries.

Whoever calls anything here holds the room's lock.
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perdure.model import ANCHOR, PACK, SNAPSHOT, Artifact, Change, Head, InboxEntry, Row, Span, Status
from perdure.stores import _verdicts as verdicts
from perdure.stores._lease import StoredLease

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass
class Record:
    """One checkpoint with its projections."""

    seq: int
    row: Row
    shown: dict[str, Any]


@dataclass
class Session:
    """All of one session; also its tombstone."""

    created: int
    updated: int
    owner: str = ""
    status: str = Status.IDLE.value
    agent: str = ""
    error: str = ""
    expires: int | None = None
    reason: str = ""
    lines: int = 0
    lease: StoredLease = field(default_factory=StoredLease)
    heads: dict[str, Head] = field(default_factory=dict[str, Head])
    rows: dict[int, dict[int, Record]] = field(default_factory=dict[int, dict[int, Record]])
    artifacts: dict[tuple[str, int, int], Artifact] = field(default_factory=dict[tuple[str, int, int], Artifact])
    inbox: dict[str, InboxEntry] = field(default_factory=dict[str, InboxEntry])

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
    log: dict[int, Change] = field(default_factory=dict[int, Change])
    newest: int = 0
    trimmed: int = 0
    token: int = 0
    arrivals: int = 0


_rooms: dict[str, Room] = {}
_rooms_lock = threading.Lock()


def room_of(name: str) -> Room:
    """The room that handles of this name share; without a name, one of its own."""
    with _rooms_lock:
        return _rooms.setdefault(name, Room()) if name else Room()


def write_row(room: Room, id: str, session: Session, row: Row, shown: dict[str, Any]) -> None:
    """Add a row, and a change for it."""
    room.newest += 1
    session.rows.setdefault(row.line, {})[row.step] = Record(room.newest, row, shown)
    room.log[room.newest] = Change(
        id, shown["branch"], row.line, row.step, row.id, shown["kind"], shown["status"], shown["at"]
    )


def delete_rows(room: Room, rows: dict[int, Record], steps: list[int]) -> None:
    """Remove rows of a line, and their changes."""
    for step in steps:
        number = rows.pop(step).seq
        del room.log[number]
        room.trimmed = max(room.trimmed, number)


def delete_snapshots(session: Session, gone: Iterable[Span]) -> None:
    """Remove every snapshot at a row of the spans, or with a ref to one."""
    for key, a in list(session.artifacts.items()):
        about = (Span(a.line, a.lo, a.hi), *a.refs)
        if a.kind == SNAPSHOT and any(overlap(one, span) for one in about for span in gone):
            del session.artifacts[key]


def find_line(room: Room, id: str, line: int) -> tuple[Session, int]:
    """A session and the last step of one of its lines."""
    session = room.sessions.get(id)
    if session is not None and session.reason:
        raise verdicts.gone(id, session.reason)
    if session is None or not session.lines:
        raise verdicts.no_session(id)
    anchors = (a.hi for a in session.artifacts.values() if a.kind == ANCHOR and a.line == line)
    last = max(session.rows.get(line) or anchors, default=None)
    if last is None:
        raise verdicts.no_line(id, line)
    return session, last


def rows_between(session: Session, line: int, lo: int, hi: int) -> list[Row]:
    """Rows lo..hi of a line."""
    rows = session.rows.get(line, {})
    return [rows[step].row for step in range(lo, hi + 1) if step in rows]


def packs_for(session: Session, rows: Iterable[Row], refs: Iterable[Span]) -> tuple[Artifact, ...]:
    """Every pack that holds one of the thin rows or overlaps one of the spans, in order; then their anchors."""
    thin = [Span(row.line, row.step, row.step) for row in rows if not (row.envelope or row.payload)]
    wanted = [*thin, *refs]
    kept = session.artifacts.values()
    packs = [a for a in kept if a.kind == PACK and any(overlap(Span(a.line, a.lo, a.hi), s) for s in wanted)]
    anchors = [a for a in kept if a.kind == ANCHOR and Span(a.line, a.hi, a.hi) in thin]
    return (*sorted(packs, key=lambda a: a[1:3]), *sorted(anchors, key=lambda a: a[1:3]))


def overlap(one: Span, other: Span) -> bool:
    """Whether two spans share a step."""
    return one.line == other.line and one.lo <= other.hi and other.lo <= one.hi
