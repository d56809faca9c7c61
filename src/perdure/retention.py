"""What leaves a store, and when: sessions whose time has run out, and old checkpoints that nobody asked to keep.

Who decides which checkpoints stay is ``keeping``; how the others go is ``pruning``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from perdure import faults
from perdure.compaction import PACK_ROWS
from perdure.errors import Busy, NotFound, PerdureError
from perdure.expiry import expired
from perdure.hydrate import load, look
from perdure.keeping import Keep, kept_lines
from perdure.model import SNAPSHOT, Rewrite, Span
from perdure.packs import Skeleton, build_snapshot
from perdure.pruning import LinePruner

if TYPE_CHECKING:
    from perdure.kernel import Kernel

Progress = Callable[[str, int], None]
"""Called with the session that was just done and how many are done so far."""


class Swept(NamedTuple):
    """What a sweep did."""

    removed: int
    kept: int
    """Their time is over by the store's column, but not by their checkpoints, or an input waits in their inbox."""
    busy: tuple[str, ...]
    """Being written: their next sweep will tell."""
    failed: tuple[tuple[str, str], ...]
    """Session and what is wrong with it; it was left as it is."""


class Pruned(NamedTuple):
    """What pruning a session did."""

    dropped: int
    kept: int
    anchors: int


def expire(kernel: Kernel, session: str, token: int | None) -> bool:
    """Remove a session whose TTL has run out, by the verified word of its newest checkpoints; leaves a tombstone."""
    if not expired(kernel, look(kernel, session)):
        return False
    faults.point("sweep.before_drop")
    kernel.store.drop(session, token, "expired")
    faults.point("sweep.after_drop")
    return True


def sweep(kernel: Kernel, holder: str, lease_ttl: int, progress: Progress | None = None, batch: int = 100) -> Swept:
    """Remove every session whose TTL has run out. Interrupted at any point, the next sweep goes on from there."""
    removed = kept = 0
    busy: list[str] = []
    failed: list[tuple[str, str]] = []
    after: str | None = None
    # Those that expire while we sweep are left to the next one: the list ends.
    now = kernel.clock.wall()
    while rows := kernel.store.sessions(expired_at=now, after=after, limit=batch):
        after = rows[-1].id
        for row in rows:
            try:
                # Whoever is about to answer what waits there keeps the lease.
                gone = not row.pending and _expire_alone(kernel, row.id, holder, lease_ttl)
            except Busy:
                busy.append(row.id)
                continue
            except PerdureError as e:
                failed.append((row.id, str(e)))
                continue
            removed, kept = removed + gone, kept + (not gone)
            if progress is not None:
                progress(row.id, removed)
    return Swept(removed, kept, tuple(busy), tuple(failed))


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
