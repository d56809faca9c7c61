"""Keeping loads short and bytes few: packs of rows, and snapshots that refer to them. Runs off the commit path.

Rows are packed a hundred or so at a time. A snapshot is taken once the rows since the last one weigh as much as
it does, so that all snapshots together stay linear and a load reads little more than the state.
"""

from __future__ import annotations

from perdure import codec, faults
from perdure.hydrate import open_row
from perdure.kernel import Kernel, Point
from perdure.model import Artifact, Rewrite, Span
from perdure.packs import Packed, PackReader, build_pack, build_snapshot
from perdure.skeletons import Builder, start_of_line

PACK_ROWS = 128
PACK_BYTES = 512 * 1024
PACK_MIN = 8
"""Fewer loose rows than this are left alone."""


def compact(kernel: Kernel, session: str, line: int, minimum: int = PACK_ROWS) -> int:
    """Pack the loose rows of a line, ``minimum`` of them at least; returns how many rows were packed."""
    packed = 0
    while n := _compact_once(kernel, session, line, minimum):
        packed += n
    return packed


def _compact_once(kernel: Kernel, session: str, line: int, minimum: int) -> int:
    bundle = kernel.store.load(session, line, None, refs=False)
    reader = PackReader(kernel, session, bundle.packs)
    builder = Builder(kernel, session, reader)
    if bundle.base is not None:
        builder.resume(bundle.base)
    rows: list[Packed] = []
    before: Point | None = None
    lo = size = 0
    for row in bundle.rows:
        if builder.point is None:
            # The first row of a line stays as it is: it says where the line comes from.
            start_of_line(builder, row)
            continue
        previous = builder.point
        point, body = open_row(kernel, session, row, reader, previous)
        builder.take(point, body, packed=True)
        if not row.envelope:
            continue
        if not rows:
            lo, before = row.step, previous
        rows.append(Packed(row.envelope, body))
        size += len(body.data)
        if len(rows) >= PACK_ROWS or size >= PACK_BYTES:
            break
    if before is None or (len(rows) < minimum and size < PACK_BYTES):
        return 0
    assert builder.point is not None
    put: tuple[Artifact, ...] = (build_pack(kernel, session, line, lo, before.digest, rows),)
    skeleton = builder.skeleton()
    # The doubling rule: what a snapshot costs, the rows since the last one have already cost.
    if builder.weight >= len(codec.encode([skeleton.doc, skeleton.lists]).data):
        put = (*put, build_snapshot(kernel, session, builder.point, skeleton))
    faults.point("compact.before_rewrite")
    # Retention may be at work: a snapshot must not come after the rows it refers to are gone.
    needs = tuple(ref for artifact in put for ref in artifact.refs)
    done = kernel.store.rewrite(Rewrite(session, None, put, (Span(line, lo, put[0].hi),), needs=needs))
    faults.point("compact.after_rewrite")
    return len(rows) if done else 0
