"""Reading the past without rebuilding any state: the rows of a line, verified, and the checkpoints of a branch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import Corrupted
from perdure.history.hydrate import ancestry, head_of, look, open_row, payload_of, steady, where_is
from perdure.kernel import Kernel
from perdure.record import codec
from perdure.record.codec import Point
from perdure.record.packs import PackReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.model import Envelope, Row, SessionRow
    from perdure.record.codec import Body


class OpenedRow(NamedTuple):
    """A verified row of a line."""

    point: Point
    body: Body | None
    """What it recorded, for ``payload_of``; None where an anchor stands for it: what was before it was dropped."""


def read_rows(
    kernel: Kernel, session: str, line: int, lo: int, hi: int, before: Point | None = None
) -> Iterator[OpenedRow]:
    """The rows ``lo`` to ``hi`` of a line that are there, oldest first, each verified on top of the one before it.

    ``before`` is the verified checkpoint that the first one stands on. Without it one row more is read: what that row
    says of itself is enough, since the digest of the next one covers it.
    """
    bundle = kernel.store.slice(session, line, lo if before is not None or lo <= 1 else lo - 1, hi)
    packs = PackReader(kernel, session, bundle.packs)
    for row in bundle.rows:
        if row.step < lo:
            before = unverified(kernel, session, row, packs)
            continue
        body: Body | None = None
        anchored = packs.anchored(row.line, row.step) if not row.envelope else None
        if anchored is None:
            before, body = open_row(kernel, session, row, packs, before)
        elif (anchored.envelope.id, anchored.digest) == (row.id, row.digest):
            before = anchored
        else:
            raise Corrupted(where_is(session, row.line, row.step), "its anchor is about another checkpoint")
        yield OpenedRow(before, body)


def change_of(kernel: Kernel, env: Envelope) -> tuple[list[Any], dict[str, Any]] | None:
    """The operations of one checkpoint and what it carries beside them; None when retention dropped what was before."""
    for point, body in read_rows(kernel, env.session, env.line, env.step, env.step):
        return payload_of(kernel, body, point) if body is not None else None
    return None


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
            lowest = max(1, last - width + 1)
            out.extend(reversed([row.point for row in read_rows(kernel, session, line, lowest, last)]))
            # Where retention has left few, look further at once.
            width *= 4
            last = lowest - 1
    return out[:limit]


def unverified(kernel: Kernel, session: str, row: Row, packs: PackReader) -> Point:
    """A row's own claim about itself: enough to verify the row after it, which covers this one's digest."""
    if not row.envelope and (point := packs.anchored(row.line, row.step)) is not None:
        return point
    env = row.envelope or packs.row(row.line, row.step).envelope
    return Point(codec.decode_envelope(env, f"session {session!r}, line {row.line}, step {row.step}"), row.digest)
