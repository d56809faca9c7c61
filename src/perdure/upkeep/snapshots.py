"""Compaction: rows become packs, and snapshots that refer to them are taken, off the commit path.

Rows are packed a hundred or so at a time. A snapshot is taken once the rows since the last one weigh as much as
it does, so that all snapshots together stay linear and a load reads little more than the state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.history.hydrate import load, open_row, payload_of, where_is
from perdure.kernel import Kernel
from perdure.model import Artifact, Rewrite, Span
from perdure.record import codec
from perdure.record.codec import Point
from perdure.record.packs import (
    INLINE,
    RUN,
    Packed,
    PackReader,
    Skeleton,
    build_pack,
    build_snapshot,
    flesh_out,
    open_base,
)
from perdure.state.delta import APPEND, apply
from perdure.state.document import STATE, genesis
from perdure.system import faults

if TYPE_CHECKING:
    from perdure.model import Bundle, Row
    from perdure.record.codec import Body
    from perdure.state.delta import Op

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
    builder = SnapshotBuilder(kernel, session, bundle)
    rows: list[Packed] = []
    before: Point | None = None
    lo = size = 0
    for row in bundle.rows:
        if builder.point is None:
            # The first row of a line stays as it is: it says where the line comes from.
            builder.start(row)
            continue
        previous = builder.point
        body = builder.follow(row, packed=True)
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


SHARE = 4
"""A list is pointed at when its appends make up at least 1/SHARE of the packed bytes; else they are carried."""


class SnapshotBuilder:
    """What a snapshot says, brought from the base of a bundle along its line, row by row."""

    def __init__(self, kernel: Kernel, session: str, bundle: Bundle) -> None:
        self._kernel = kernel
        self._session = session
        self._reader = PackReader(kernel, session, bundle.packs)
        self.point: Point | None = None
        self.weight = 0
        """Bytes of the rows taken since the last snapshot."""
        self._doc: dict[str, Any] = {}
        self._lists: dict[str, list[list[Any]]] = {}
        self._packed: dict[str, list[Any]] = {}
        self._sizes: dict[str, int] = {}
        self._span: tuple[int, int, int] | None = None
        self._carried: dict[str, int] = {}
        """Name of a list -> the last packed step that edited it other than at its end: no run may reach back there."""

        if bundle.base is not None:
            opened = open_base(kernel, session, bundle.base)
            # An anchor may say only what changed since another one.
            at_base = opened.skeleton or Skeleton(load(kernel, session, bundle.base.line, bundle.base.hi).doc, {})
            self.point, self._doc, self._lists = opened.point, at_base.doc, at_base.lists

    def start(self, row: Row) -> None:
        """Begin at the first row of a line, on the skeleton of the checkpoint that the line comes from."""
        origin = codec.decode_envelope(row.envelope, where_is(self._session, row.line, row.step)).x.get("from")
        if origin is None:
            self._doc = genesis()
        else:
            bundle = self._kernel.store.load(self._session, origin[0], origin[1], refs=False)
            parent = SnapshotBuilder(self._kernel, self._session, bundle)
            for other in bundle.rows:
                if parent.point is None:
                    parent.start(other)
                else:
                    parent.follow(other, packed=False)
            self._reader.add(bundle.packs)
            self._doc, self._lists = parent.skeleton()
            self.point = parent.point
        self.follow(row, packed=False)

    def follow(self, row: Row, *, packed: bool) -> Body:
        """Verify one row and take in what it changed; ``packed`` rows can be pointed at."""
        point, body = open_row(self._kernel, self._session, row, self._reader, self.point)
        self.weight += len(body.data)
        if packed:
            line, lo, _ = self._span or (row.line, row.step, row.step)
            self._span = (line, lo, row.step)
        for op in payload_of(self._kernel, body, point)[0]:
            self._apply(op, row.step, packed=packed)
        self.point = point
        return body

    def _apply(self, op: Op, step: int, *, packed: bool) -> None:
        path = op[1]
        name = path[1] if len(path) > 1 and path[0] == STATE else None
        if name is None:
            apply([op], self._doc)
        elif packed and op[0] == APPEND and len(path) == 2 and self._carried.get(name) != step and self._grows(name):
            self._packed.setdefault(name, []).extend(op[2])
            self._sizes[name] = self._sizes.get(name, 0) + len(codec.encode(op[2]).data)
        else:
            self._carry(name)
            self._carried[name] = step
            apply([op], self._doc)

    def _grows(self, name: str) -> bool:
        return name in self._lists or name in self._packed or isinstance(self._doc[STATE].get(name), list)

    def _carry(self, name: str) -> None:
        """Bring a list that was pointed at back into the document: it is edited other than at its end."""
        if name in self._lists or name in self._packed:
            parts = self._lists.pop(name, None)
            if parts is not None:
                flesh_out(Skeleton(self._doc, {name: parts}), self._reader)
            self._doc[STATE][name] = [*self._doc[STATE][name], *self._packed.pop(name, [])]
            self._sizes.pop(name, None)

    def skeleton(self) -> Skeleton:
        """The skeleton where the builder stands."""
        for name, values in self._packed.items():
            # The list itself, even when it is empty: what is carried along is put into it.
            inline: list[Any] = [] if name in self._lists else self._doc[STATE][name]
            parts = self._lists.get(name) or ([[INLINE, inline]] if inline else [])
            if self._span is not None and self._sizes[name] * SHARE >= self.weight:
                line, lo, hi = self._span
                _add_run(parts, (line, max(lo, self._carried.get(name, 0) + 1), hi))
            elif name in self._lists:
                _add_values(parts, values)
            else:
                inline.extend(values)
                continue
            # The place in the order of keys is kept by a placeholder.
            self._doc[STATE][name] = None
            self._lists[name] = parts
        self._packed, self._sizes, self._span = {}, {}, None
        return Skeleton(self._doc, self._lists)


def _add_run(parts: list[list[Any]], span: tuple[int, int, int]) -> None:
    last = parts[-1] if parts else None
    if last is not None and last[0] == RUN and last[1] == span[0] and last[3] + 1 == span[1]:
        last[3] = span[2]
    else:
        parts.append([RUN, *span])


def _add_values(parts: list[list[Any]], values: list[Any]) -> None:
    if parts and parts[-1][0] == INLINE:
        parts[-1] = [INLINE, [*parts[-1][1], *values]]
    else:
        parts.append([INLINE, values])
