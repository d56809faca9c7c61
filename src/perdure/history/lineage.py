"""Reading the past of a branch as a list of checkpoints, verified, without rebuilding any state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.errors import Corrupted
from perdure.history.hydrate import ancestry, head_of, look, open_row, steady, where_is
from perdure.kernel import Kernel
from perdure.record import codec
from perdure.record.commit import Point
from perdure.record.packs import PackReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.model import Row, SessionRow
    from perdure.record.codec import Body


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
            after = max(0, last - width)
            out.extend(reversed([point for point, _ in window(kernel, session, line, after, last)]))
            # Where retention has left few, look further at once.
            width *= 4
            last = after
    return out[:limit]


def window(kernel: Kernel, session: str, line: int, after: int, last: int) -> Iterator[tuple[Point, Body | None]]:
    """The checkpoints of a line after one step and up to another, verified, oldest first.

    Each comes with the body of its commit; None where retention has left an anchor that stands for it.
    """
    # One row more than wanted: each is verified on top of the digest of the one before it.
    bundle = kernel.store.slice(session, line, after, last)
    packs = PackReader(kernel, session, bundle.packs)
    previous: Point | None = None
    for row in bundle.rows:
        if row.step == after:
            previous = unverified(kernel, session, row, packs)
            continue
        anchored = packs.anchored(row.line, row.step) if not row.envelope else None
        if anchored is not None and (anchored.envelope.id, anchored.digest) != (row.id, row.digest):
            raise Corrupted(where_is(session, row.line, row.step), "its anchor is about another checkpoint")
        # One that an anchor stands for needs nothing before it.
        previous, body = (anchored, None) if anchored else open_row(kernel, session, row, packs, previous)
        yield previous, body


def unverified(kernel: Kernel, session: str, row: Row, packs: PackReader) -> Point:
    """A row's own claim about itself: enough to verify the row after it, which covers this one's digest."""
    if not row.envelope and (point := packs.anchored(row.line, row.step)) is not None:
        return point
    env = row.envelope or packs.row(row.line, row.step).envelope
    return Point(codec.decode_envelope(env, where_is(session, row.line, row.step)), row.digest)
