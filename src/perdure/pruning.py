"""Dropping rows of a line: first an anchor is added that stands for them, then they go.

Invariant 4: history is never rewritten. An anchor holds the envelope, the digest and the state of the kept checkpoint
after a gap, so that what follows is verified on top of it. One rewrite, which is one transaction, adds the anchors of
a part of the line and drops its rows: a crash leaves whole parts done, and the rest as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from perdure import codec, faults
from perdure.delta import apply, diff
from perdure.errors import Corrupted, Unavailable
from perdure.hydrate import TRIES, load, where_is
from perdure.model import ANCHOR, PACK, SNAPSHOT, Artifact, Rewrite, Span
from perdure.packs import PackReader, Skeleton, build_delta_anchor, build_pack, build_snapshot, open_base

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.keeping import Line
    from perdure.kernel import Kernel, Loaded
    from perdure.model import Row

CHUNK_ROWS = 1000
"""Rows dropped in one transaction, about; one gap is never split."""
CHUNK_ANCHORS = 32
"""Anchors added in one transaction."""
CHUNK_BYTES = 8 << 20
"""Bytes of anchors added in one transaction, about: each may hold a whole state."""
WINDOW = 1024
"""Rows looked at in one reading."""
LOOKUP = 4096
"""What it costs to open one more anchor, in bytes read for the same time."""


class Gap(NamedTuple):
    """Rows to drop, between a kept step (``lo`` - 1) and the next kept one (``hi``)."""

    line: int
    lo: int
    hi: int
    drop: tuple[int, ...]


class LinePruner:
    """Drops rows of one line, chunk by chunk."""

    def __init__(self, kernel: Kernel, session: str, token: int | None, line: Line) -> None:
        self._kernel = kernel
        self._session = session
        self._token = token
        self._line = line
        self._there: dict[int, Row] = {}
        self._held: dict[tuple[str, int], Artifact] = {}
        self._debt = 0
        """What it costs to open the newest anchor, beyond a whole state."""
        self.dropped = self.anchors = 0

    @property
    def kept(self) -> int:
        """How many rows are there."""
        return len(self._there)

    def run(self) -> None:
        """Drop what need not be kept."""
        for _ in range(TRIES):
            self._scan()
            for chunk, anchors in self._chunks(self._gaps()):
                if not self._drop(chunk, anchors):
                    # Somebody packed some of these rows meanwhile: look again.
                    break
                self.dropped += sum(len(gap.drop) for gap in chunk)
                self.anchors += len(chunk)
            else:
                return
        msg = f"session {self._session!r} is being rewritten by others all the time: prune it again later"
        raise Unavailable(msg)

    def _scan(self) -> None:
        """What is there of the line: rows without their bytes, and the artifacts that hold thin ones."""
        self._there, self._held = {}, {}
        for lo in range(self._line.first, self._line.last + 1, WINDOW):
            bundle = self._kernel.store.slice(self._session, self._line.line, lo, lo + WINDOW - 1)
            for row in bundle.rows:
                if row.step <= self._line.last:
                    # One byte says that it is not thin.
                    self._there[row.step] = row._replace(payload=b"", envelope=row.envelope[:1])
            self._held.update({(a.kind, a.lo): a for a in bundle.packs if a.line == self._line.line})

    def _gaps(self) -> list[Gap]:
        gaps: list[Gap] = []
        drop: list[int] = []
        previous = self._line.first
        for step in sorted(self._there):
            if step not in self._line.kept:
                drop.append(step)
                continue
            if drop:
                gaps.append(Gap(self._line.line, previous + 1, step, tuple(drop)))
            previous, drop = step, []
        if gaps:
            self._debt = _debt(self._kernel, self._session, self._line.line, gaps[0].lo - 1)
        return gaps

    def _chunks(self, gaps: list[Gap]) -> Iterator[tuple[list[Gap], list[Artifact]]]:
        """Gaps with their anchors, as many at a time as go into one transaction."""
        kernel, session, line = self._kernel, self._session, self._line.line
        chunk: list[Gap] = []
        anchors: list[Artifact] = []
        loaded: Loaded | None = None
        for gap in gaps:
            if loaded is None or loaded.point is None or loaded.point.envelope.step != gap.lo - 1:
                loaded = load(kernel, session, line, gap.lo - 1)
            now = load(kernel, session, line, gap.hi)
            anchor, self._debt = _anchor(kernel, session, loaded, now, Span(line, gap.lo, gap.hi), self._debt)
            loaded = now
            chunk.append(gap)
            anchors.append(anchor)
            rows, size = sum(len(g.drop) for g in chunk), sum(len(a.body) for a in anchors)
            if len(chunk) >= CHUNK_ANCHORS or rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
                yield chunk, anchors
                chunk, anchors = [], []
        if chunk:
            yield chunk, anchors

    def _drop(self, chunk: list[Gap], anchors: list[Artifact]) -> bool:
        line = self._line.line
        gone = {step for gap in chunk for step in gap.drop}
        ends = {gap.hi for gap in chunk}
        put = list(anchors)
        discard = [(SNAPSHOT, line, end) for end in ends]
        for (kind, lo), held in self._held.items():
            if kind == ANCHOR and held.hi in gone | ends:
                discard.append((ANCHOR, line, lo))
            elif kind == PACK and any(step in gone for step in range(held.lo, held.hi + 1)):
                discard.append((PACK, line, lo))
                put.extend(self._repack(held, gone))
        # Rows to be dropped are thinned first: if somebody packs one of them meanwhile, nothing is done.
        full = [step for step in sorted(gone | ends) if self._there[step].envelope]
        drop = tuple(Span(line, *run) for run in _runs(sorted(gone)))
        change = Rewrite(
            self._session, self._token, tuple(put), tuple(Span(line, *r) for r in _runs(full)), drop, tuple(discard)
        )
        faults.point("prune.before_rewrite")
        if not self._kernel.store.rewrite(change):
            return False
        faults.point("prune.after_rewrite")
        for key in discard:
            self._held.pop((key[0], key[2]), None)
        self._held.update({(a.kind, a.lo): a for a in put})
        for step in gone:
            del self._there[step]
        for step in full:
            if step in self._there:
                self._there[step] = self._there[step]._replace(envelope=b"")
        return True

    def _repack(self, pack: Artifact, gone: set[int]) -> Iterator[Artifact]:
        """The rows of a pack that stay, as packs of their own."""
        reader = PackReader(self._kernel, self._session, (pack,))
        left = [step for step in range(pack.lo, pack.hi + 1) if step in self._there and step not in gone]
        for lo, hi in _runs(left):
            rows = [reader.row(pack.line, step) for step in range(lo, hi + 1)]
            before = reader.before(pack)
            if lo > pack.lo:
                if lo - 1 not in gone:
                    raise Corrupted(where_is(self._session, pack.line, lo - 1), "it is missing")
                before = self._there[lo - 1].digest
            yield build_pack(self._kernel, self._session, pack.line, lo, before, rows)


def _anchor(kernel: Kernel, session: str, then: Loaded, now: Loaded, gap: Span, debt: int) -> tuple[Artifact, int]:
    """The anchor of a kept checkpoint, and what opening it costs beyond a whole state.

    The whole state, or what changed since the kept checkpoint before it; whole again once the changes to go through
    cost as much as the state, so that opening stays in proportion to it, and all anchors together to what they say.
    """
    assert then.point is not None
    assert now.point is not None
    whole = build_snapshot(kernel, session, now.point, Skeleton(now.doc, {}), gap)
    ops = diff(then.doc, now.doc)
    part = build_delta_anchor(kernel, session, now.point, then.point, ops, gap)
    debt += max(len(part.body), LOOKUP)
    if debt >= len(whole.body):
        return whole, 0
    apply(ops, then.doc)
    exact = codec.encode(then.doc) == codec.encode(now.doc)
    return (part, debt) if exact else (whole, 0)


def _debt(kernel: Kernel, session: str, line: int, step: int) -> int:
    """What opening a step costs beyond a whole state: the anchors it goes through that are not whole."""
    debt = 0
    while (base := kernel.store.load(session, line, step, refs=False).base) is not None:
        opened = open_base(kernel, session, base)
        if opened.after is None:
            break
        debt += max(len(base.body), LOOKUP)
        step = opened.after[0]
    return debt


def _runs(steps: list[int]) -> list[tuple[int, int]]:
    """Neighbouring steps together.

    >>> _runs([1, 2, 3, 7])
    [(1, 3), (7, 7)]
    """
    runs: list[tuple[int, int]] = []
    for step in steps:
        if runs and runs[-1][1] == step - 1:
            runs[-1] = (runs[-1][0], step)
        else:
            runs.append((step, step))
    return runs
