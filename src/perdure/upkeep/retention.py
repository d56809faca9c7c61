"""Retention: sweeping sessions whose time has run out, and pruning old checkpoints that nobody asked to keep.

Kept are the checkpoints asked for, and those that something else of the session stands on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import Busy, Corrupted, InvalidInput, NotFound, PerdureError, Unavailable
from perdure.history.expiry import expired
from perdure.history.hydrate import TRIES, ancestry, head_of, load, look, origins, where_is
from perdure.model import ANCHOR, PACK, SNAPSHOT, TAG_PREFIX, Artifact, Kind, Rewrite, Span
from perdure.record import codec
from perdure.record.packs import PackReader, Skeleton, build_delta_anchor, build_pack, build_snapshot, open_base
from perdure.state.delta import apply, diff
from perdure.state.document import BOOK
from perdure.stores.listing import PAGE, Progress, each_session
from perdure.system import faults
from perdure.system.commands import door
from perdure.upkeep.expired_sessions import delete_for_good, expire
from perdure.upkeep.snapshots import PACK_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.history.hydrate import Origins
    from perdure.kernel import Kernel
    from perdure.model import Row, SessionRow
    from perdure.record.codec import Loaded


class Swept(NamedTuple):
    """What a sweep did."""

    removed: int
    """Their time has run out. They are set aside, and can be brought back for a while."""
    kept: int
    """Their time is over by the store's column, but not by their checkpoints, or an input waits in their inbox, or
    nobody knows what became of a call."""
    busy: tuple[str, ...]
    """Being written: their next sweep will tell."""
    failed: tuple[tuple[str, str], ...]
    """Session and what is wrong with it; it was left as it is."""
    deleted: int
    """They were set aside long enough ago, and are gone for good."""


class Pruned(NamedTuple):
    """What pruning a session did."""

    dropped: int
    kept: int
    anchors: int


def sweep(kernel: Kernel, holder: str, lease_ttl: int, progress: Progress | None = None, batch: int = PAGE) -> Swept:
    """Remove every session whose TTL has run out. Interrupted at any point, the next sweep goes on from there."""
    removed = kept = 0
    busy: list[str] = []
    failed: list[tuple[str, str]] = []
    for row in each_session(kernel.store, batch, expired=True):
        try:
            # Whoever is about to answer what waits there keeps the lease.
            gone = expired(kernel, row) and _expire_alone(kernel, row.id, holder, lease_ttl)
        except Busy:
            busy.append(row.id)
            continue
        except PerdureError as e:
            failed.append((row.id, str(e)))
            continue
        removed, kept = removed + gone, kept + (not gone)
        if progress is not None:
            progress(row.id, removed)
    return Swept(removed, kept, tuple(busy), tuple(failed), delete_for_good(kernel, batch))


def _expire_alone(kernel: Kernel, session: str, holder: str, lease_ttl: int) -> bool:
    lease = kernel.store.acquire(session, holder, lease_ttl)
    gone = False
    try:
        faults.point("sweep.leased")
        gone = expire(kernel, session, lease.token)
    finally:
        # A tombstone has ended every lease already.
        if not gone:
            kernel.store.release(lease)
    return gone


def prune(kernel: Kernel, session: str, token: int | None, keep: Keep) -> Pruned:
    """Drop the checkpoints of a session that need not be kept. Those that stay read exactly as before."""
    keep.check()
    row = look(kernel, session)
    before = _newest_snapshots(kernel, session)
    dropped = kept = anchors = 0
    for line in kept_lines(kernel, row, keep):
        pruner = LinePruner(kernel, session, token, line)
        pruner.run()
        dropped, kept, anchors = dropped + pruner.dropped, kept + pruner.kept, anchors + pruner.anchors
    if dropped:
        _renew_snapshots(kernel, session, token, before)
    return Pruned(dropped, kept, anchors)


def _newest_snapshots(kernel: Kernel, session: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for artifact in kernel.store.artifacts(session):
        if artifact.kind == SNAPSHOT:
            found[artifact.line] = max(found.get(artifact.line, 0), artifact.hi)
    return found


def _renew_snapshots(kernel: Kernel, session: str, token: int | None, before: dict[int, int]) -> None:
    """A snapshot went with the rows it refers to, whatever its line; where it is missed, one without refs comes."""
    after = _newest_snapshots(kernel, session)
    for line, step in before.items():
        if after.get(line) == step:
            continue
        try:
            bundle = kernel.store.load(session, line, step, refs=False)
        except NotFound:
            # Its own row was dropped: the line begins again at an anchor.
            continue
        if len(bundle.rows) < PACK_ROWS:
            continue
        loaded = load(kernel, session, line, step)
        assert loaded.point is not None
        snapshot = build_snapshot(kernel, session, loaded.point, Skeleton(loaded.doc, {}))
        faults.point("prune.before_snapshot")
        kernel.store.rewrite(Rewrite(session, token, (snapshot,), needs=(Span(line, step, step),)))
        faults.point("prune.after_snapshot")


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
        raise Unavailable(f"session {self._session!r} is being rewritten by others all the time: prune it again later")

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


class Keep(NamedTuple):
    """What to keep of a session's past: the last checkpoints of each branch, every k-th step, tagged ones.

    Whatever is asked for, some are always kept: the first and the last checkpoint of every line, the points
    branches were forked and rewound from, those that merges were made with, everything since the beginning of an
    unfinished run, and the outcomes of effects that another line may still reuse instead of doing them again.
    """

    last: int | None = None
    every: int | None = None
    tagged: bool = True
    """Without this a tag no longer keeps its checkpoint; reading a tag that lost it raises ``Gone``."""

    def check(self) -> None:
        """Refuse what cannot be meant."""
        shell = door() == "shell"
        last, every = ("--keep-last", "--keep-every") if shell else ("keep_last", "keep_every")
        for name, value in ((last, self.last), (every, self.every)):
            if value is not None and (type(value) is not int or value < 1):
                raise InvalidInput(f"{name} is a whole number, at least 1, or None: {value!r:.40}")
        if self.last is None and self.every is None:
            sign = " " if shell else "="
            raise InvalidInput(f"say what to keep: {last}{sign}100, {every}{sign}10, or both")


class Line(NamedTuple):
    """A line of a session and the steps of it to keep, whether or not they are still there."""

    line: int
    first: int
    last: int
    kept: set[int]


def kept_lines(kernel: Kernel, row: SessionRow, keep: Keep) -> list[Line]:
    """The steps to keep, line by line. Heads and ends of lines are verified first: nothing is decided on hearsay."""
    session = row.id
    lines = origins(kernel, session)
    heads = {head_of(kernel, row, h.branch).line for h in row.heads if not h.branch.startswith(TAG_PREFIX)}
    found = {n: Line(n, first, _last(kernel, session, n, first), set()) for n, (first, _, _) in lines.items()}
    for n, (first, origin, env) in lines.items():
        found[n].kept.update((first, found[n].last))
        if origin is not None and (keep.tagged or env.kind != Kind.TAG):
            _line(found, session, *origin).kept.add(origin[1])
        if keep.every is not None:
            found[n].kept.update(range(-(-first // keep.every) * keep.every, found[n].last + 1, keep.every))
    for n, (_, _, env) in lines.items():
        if env.kind == Kind.TAG:
            continue
        past = ancestry(kernel, session, n, found[n].last, lines)
        if keep.last is not None and n in heads:
            _keep_from(found, past, found[n].last - keep.last + 1)
        book = load(kernel, session, n, None).doc[BOOK]
        for run in book.get("runs", {}).values():
            if run["status"] == "open":
                # Catching up with a run goes through all that it recorded.
                _keep_from(found, past, run["at"][1])
        for line, step in book.get("merges", ()):
            _line(found, session, line, step).kept.add(step)
        found[n].kept.update(_outcomes(book, lines, n))
    return [found[n] for n in sorted(found)]


def _last(kernel: Kernel, session: str, line: int, first: int) -> int:
    return kernel.store.slice(session, line, first, first).last


def _line(found: dict[int, Line], session: str, line: int, step: int) -> Line:
    if line not in found:
        raise Corrupted(where_is(session, line, step), "its line has no beginning")
    return found[line]


def _keep_from(found: dict[int, Line], past: dict[int, int], step: int) -> None:
    """Keep all of a past from a step on: steps only grow along it, whatever the lines."""
    for line, end in past.items():
        found[line].kept.update(range(max(found[line].first, step), end + 1))


def _outcomes(book: dict[str, Any], lines: Origins, line: int) -> set[int]:
    """Where outcomes lie that a line which left this one before them would reuse.

    Only lines that are there already count. On a branch forked later, an outcome that is gone is not reused:
    the call is reported as done elsewhere.
    """
    left = [origin[1] for _, origin, env in lines.values() if origin and origin[0] == line and env.kind != Kind.TAG]
    places = [e["where"] for e in book.get("effects", {}).values() if e["status"] == "done"]
    places += [[n, step] for done in book.get("done", {}).values() for _, n, step in done]
    return {step for n, step in places if n == line and left and step > min(left)}
