"""Reading the past of a branch as a list of checkpoints, verified, without rebuilding any state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.history.hydrate import ancestry, head_of, look, point_of, steady
from perdure.kernel import Kernel
from perdure.record import codec
from perdure.record.commit import Point
from perdure.record.packs import PackReader

if TYPE_CHECKING:
    from perdure.model import Row, SessionRow


def history(kernel: Kernel, session: str, branch: str, limit: int, before: int | None) -> list[Point]:
    """Up to ``limit`` checkpoints of a branch, newest first, those before a step only."""
    row = look(kernel, session)
    return steady(kernel, row, lambda r: _history(kernel, r, branch, limit, before))


def _history(kernel: Kernel, row: SessionRow, branch: str, limit: int, before: int | None) -> list[Point]:
    session = row.id
    head = head_of(kernel, row, branch)
    out: list[Point] = []
    top = head.step if before is None else min(head.step, before - 1)
    for line, end in sorted(ancestry(kernel, session, head.line, head.step).items(), reverse=True):
        last = min(end, top)
        width = limit
        while len(out) < limit and last >= 1:
            lowest = max(1, last - width)
            points = _window(kernel, session, line, lowest, last)
            out.extend(reversed(points))
            # Where retention has left few, look further at once.
            width *= 4
            last = lowest if lowest > 1 else 0
    return out[:limit]


def _window(kernel: Kernel, session: str, line: int, lowest: int, last: int) -> list[Point]:
    """The checkpoints of a line after ``lowest`` (from it on, if that is 1) up to ``last``, oldest first."""
    # One row more than wanted: each is verified on top of the digest of the one before it.
    bundle = kernel.store.slice(session, line, lowest, last)
    packs = PackReader(kernel, session, bundle.packs)
    points: list[Point] = []
    previous: Point | None = None
    for r in bundle.rows:
        if r.step == lowest > 1:
            previous = unverified(kernel, session, r, packs)
            continue
        previous = point_of(kernel, session, r, packs, previous)
        points.append(previous)
    return points


def unverified(kernel: Kernel, session: str, row: Row, packs: PackReader) -> Point:
    """A row's own claim about itself: enough to verify the row after it, which covers this one's digest."""
    if not row.envelope and (point := packs.anchored(row.line, row.step)) is not None:
        return point
    env = row.envelope or packs.row(row.line, row.step).envelope
    return Point(codec.decode_envelope(env, f"session {session!r}, line {row.line}, step {row.step}"), row.digest)
