"""What a session's log adds up to, in memory: its row, and where each record lies. No I/O here.

Built by applying records in the order of the log. It keeps ids, digests and places, never envelopes,
payloads or bodies, so its size is a small part of the log's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from perdure.model import ANCHOR, MAIN, PACK, SNAPSHOT, Head, SessionRow, Span, Status
from perdure.stores.file.records import Birth, Commit, Posted, Record, Rewritten, State
from perdure.stores.rules import overlap, sets_session_status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from perdure.model import LeaseInfo

COMPACT_FROM = 64 * 1024
"""Dead bytes below which a log is never rewritten."""


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where a frame lies in the log."""

    offset: int
    size: int


# No collector needs to walk these: there may be very many, and none of them can be part of a cycle.
class RowAt(msgspec.Struct, gc=False):
    """A checkpoint: what decisions need of it, and where the rest is."""

    line: int
    step: int
    id: bytes
    digest: bytes
    ordinal: int
    starts: bool
    branch: str
    blobs: tuple[str, ...]
    place: Place
    light: int
    """Bytes of the frame without envelope and payload."""
    heavy: int
    """Bytes of envelope and payload; 0 once the row is thin."""
    thin: bool


@dataclass(slots=True)
class LineAt:
    """The rows of a line that are still there."""

    rows: dict[int, RowAt] = field(default_factory=dict[int, RowAt])
    steps: list[int] = field(default_factory=list[int])

    def span(self, lo: int, hi: int) -> list[RowAt]:
        """Rows lo..hi, in order."""
        steps = self.steps
        return [self.rows[step] for step in steps[bisect_left(steps, lo) : bisect_right(steps, hi)]]


class ArtifactAt(msgspec.Struct, frozen=True, gc=False):
    """An artifact: its key and reach, and which of the artifacts in its frame it is."""

    kind: str
    line: int
    lo: int
    hi: int
    refs: tuple[Span, ...]
    blobs: tuple[str, ...]
    place: Place
    nth: int
    size: int

    def overlaps(self, span: Span) -> bool:
        """Whether it covers any step of the span."""
        return overlap(Span(self.line, self.lo, self.hi), span)


class PostAt(msgspec.Struct, gc=False):
    """An inbox entry; ``taken`` is the id of the checkpoint that took it."""

    seq: int
    key: str
    digest: bytes
    place: Place
    heavy: int
    taken: bytes


class SessionIndex:
    """One session, as far as its log was read."""

    def __init__(self) -> None:
        self.session = ""
        self.generation = b""
        self.durable = 0
        """Bytes at the start of the log that were synced before it got its name: no part of a torn tail."""
        self.owner = ""
        self.status = Status.IDLE.value
        self.agent = ""
        self.error = ""
        self.label = ""
        self.created = 0
        self.updated = 0
        self.expires: int | None = None
        self.reason = ""
        self.token = 0
        """The last token that somebody wrote under; the lease file knows better, if it is there."""
        self.heads: dict[str, Head] = {}
        self.next_line = 0
        self.ordinal = 0
        self.trimmed = 0
        """Ordinal of the newest commit that was dropped."""
        self.posted = 0
        self.lines: dict[int, LineAt] = {}
        self.commits: dict[int, RowAt] = {}
        """Rows by ordinal, ascending."""
        self.artifacts: dict[tuple[str, int, int], ArtifactAt] = {}
        self.posts: dict[str, PostAt] = {}
        self.waiting: dict[str, PostAt] = {}
        self.live = 0
        """Bytes that a rewritten log would still hold, as good as exactly."""

    def apply(self, record: Record, place: Place) -> None:
        """Take in the next record of the log."""
        match record:
            case Commit():
                self._commit(record, place)
            case Rewritten():
                self._rewritten(record, place)
            case Posted():
                self._posted(record, place)
            case State():
                self._state(record, place)
            case Birth():
                self.session, self.generation = record.session, record.generation
                self.created = self.updated = record.created
                self.durable = int.from_bytes(record.durable, "little")
                self.live += place.size

    def _commit(self, record: Commit, place: Place) -> None:
        heavy = len(record.envelope) + len(record.payload)
        row = RowAt(
            record.line,
            record.step,
            record.id,
            record.digest,
            record.ordinal,
            record.starts,
            record.branch,
            record.blobs,
            place,
            place.size - heavy,
            heavy,
            not heavy,
        )
        line = self.lines.get(record.line)
        if line is None:
            line = self.lines[record.line] = LineAt()
        elif record.step in line.rows or record.ordinal in self.commits:
            raise ValueError(f"step {record.step} of line {record.line} is there twice")
        if not line.steps or record.step > line.steps[-1]:
            line.steps.append(record.step)
        else:
            insort(line.steps, record.step)
        line.rows[record.step] = row
        self.commits[record.ordinal] = row
        if not self.next_line or self.reason:
            # The first commit of a life; a tombstone ends with it.
            self.created, self.reason = record.wall, ""
        self.heads[record.branch] = Head(record.branch, record.line, record.step, record.id)
        self.next_line = max(self.next_line, record.line + 1)
        self.ordinal = max(self.ordinal, record.ordinal)
        self.token = max(self.token, record.token)
        self.live += place.size
        self.owner, self.updated = record.owner, record.wall
        if sets_session_status(record.branch, MAIN in self.heads):
            self.status, self.error, self.agent = record.status, record.error, record.agent or self.agent
            self.label = record.label
        self.expires = None if record.ttl is None else record.wall + record.ttl * 1000
        for key in record.takes:
            self._take(key, record.id)

    def _take(self, key: str, by: bytes) -> None:
        post = self.waiting.pop(key, None)
        if post is not None:
            # The key stays known; what it said is in the commit's keeping now.
            self.live -= post.heavy
            post.taken, post.heavy = by, 0

    def _rewritten(self, record: Rewritten, place: Place) -> None:
        for key in record.discard:
            self._discard(key)
        for nth, put in enumerate(record.put):
            key = (put.kind, put.line, put.lo)
            self._discard(key)
            size = len(put.body) + 64 + 16 * len(put.refs) + 66 * len(put.blobs)
            at = ArtifactAt(put.kind, put.line, put.lo, put.hi, put.refs, put.blobs, place, nth, size)
            self.artifacts[key] = at
            self.live += size
        for span in record.thin:
            for row in self.rows(span):
                self.live -= row.heavy
                row.heavy, row.thin = 0, True
        for span in record.drop:
            self._drop(span)

    def _drop(self, span: Span) -> None:
        line = self.lines.get(span.line)
        if line is None:
            return
        for row in line.span(span.lo, span.hi):
            self.live -= row.light + row.heavy
            self.trimmed = max(self.trimmed, row.ordinal)
            del line.rows[row.step], self.commits[row.ordinal]
        del line.steps[bisect_left(line.steps, span.lo) : bisect_right(line.steps, span.hi)]
        for key, at in list(self.artifacts.items()):
            if at.kind == SNAPSHOT and (at.overlaps(span) or any(overlap(ref, span) for ref in at.refs)):
                self._discard(key)

    def _discard(self, key: tuple[str, int, int]) -> None:
        old = self.artifacts.pop(key, None)
        if old is not None:
            self.live -= old.size

    def _posted(self, record: Posted, place: Place) -> None:
        post = PostAt(record.seq, record.key, record.digest, place, len(record.body), record.taken)
        self.posts[record.key] = post
        if not record.taken:
            self.waiting[record.key] = post
        self.posted = max(self.posted, record.seq)
        self.live += place.size

    def _state(self, record: State, place: Place) -> None:
        self.owner, self.agent = record.owner, record.agent
        self.created, self.updated, self.expires = record.created, record.updated, record.expires
        self.heads = {head.branch: head for head in record.heads}
        self.status, self.error, self.label = record.status, record.error, record.label
        self.reason, self.token, self.next_line = record.reason, record.token, record.lines
        self.ordinal, self.trimmed, self.posted = record.ordinal, record.trimmed, record.posts
        self.live += place.size

    def state(self, token: int) -> State:
        """The record that makes a rewritten log add up to this index."""
        return State(
            self.owner,
            self.status,
            self.created,
            self.updated,
            self.expires,
            tuple(self.heads.values()),
            self.reason,
            token,
            self.next_line,
            self.ordinal,
            self.trimmed,
            self.posted,
            self.agent,
            self.error,
            self.label,
        )

    def wasteful(self, end: int) -> bool:
        """Whether rewriting a log of ``end`` bytes pays: no more than twice of what it frees is written."""
        dead = end - self.live
        return dead > COMPACT_FROM and dead * 2 > self.live

    def row(self, lease: LeaseInfo) -> SessionRow:
        """The session as the protocol shows it."""
        return SessionRow(
            self.session,
            self.owner,
            self.status,
            self.created,
            self.updated,
            self.expires,
            lease,
            tuple(self.heads[branch] for branch in sorted(self.heads)),
            self.reason,
            len(self.waiting),
            self.next_line,
            self.agent,
            self.error,
            self.label,
            self.posted,
        )

    def find(self, line: int, step: int) -> tuple[bytes, bytes] | None:
        """Id and digest of the row at a place, if there is one."""
        at = self.lines.get(line)
        row = None if at is None else at.rows.get(step)
        return None if row is None else (row.id, row.digest)

    def rows(self, span: Span) -> list[RowAt]:
        """The rows of a span that are there, in order."""
        line = self.lines.get(span.line)
        return [] if line is None else line.span(span.lo, span.hi)

    def base(self, line: int, step: int) -> ArtifactAt | None:
        """The newest snapshot or anchor of a line at or before a step."""
        states = [
            at for at in self.artifacts.values() if at.kind in {SNAPSHOT, ANCHOR} and at.line == line and at.hi <= step
        ]
        # On a tie the anchor wins: it stands for rows that are no longer there.
        return max(states, key=lambda at: (at.hi, at.kind == ANCHOR), default=None)

    def last(self, line: int) -> int | None:
        """The last step of a line; None when there is no such line."""
        at = self.lines.get(line)
        if at is not None and at.steps:
            return at.steps[-1]
        anchors = (at.hi for at in self.artifacts.values() if at.kind == ANCHOR and at.line == line)
        return max(anchors, default=None)

    def packs(self, spans: Iterable[Span]) -> list[ArtifactAt]:
        """The packs that hold any step of the spans, by line and step."""
        wanted = list(spans)
        packs = (at for at in self.artifacts.values() if at.kind == PACK)
        held = (at for at in packs if any(at.overlaps(span) for span in wanted))
        return sorted(held, key=lambda at: (at.line, at.lo))

    def anchors(self, spans: Iterable[Span]) -> list[ArtifactAt]:
        """The anchors that stand for a row of the spans, by line and step."""
        wanted = list(spans)
        anchors = (at for at in self.artifacts.values() if at.kind == ANCHOR)
        held = (at for at in anchors if any(overlap(Span(at.line, at.hi, at.hi), span) for span in wanted))
        return sorted(held, key=lambda at: (at.line, at.lo))

    def blobs(self) -> Iterator[str]:
        """Every blob that a row or an artifact refers to."""
        for row in self.commits.values():
            yield from row.blobs
        for at in self.artifacts.values():
            yield from at.blobs
