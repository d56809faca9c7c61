"""Following a line's rows on a skeleton: what is appended to a long list is pointed at, not carried along."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure import codec
from perdure.delta import APPEND, apply
from perdure.hydrate import load, open_row, payload_of
from perdure.kernel import STATE, Kernel, Point, genesis
from perdure.packs import INLINE, RUN, PackReader, Skeleton, flesh_out, open_base

if TYPE_CHECKING:
    from perdure.codec import Body
    from perdure.delta import Op
    from perdure.model import Artifact, Row

SHARE = 4
"""A list is pointed at when its appends make up at least 1/SHARE of the packed bytes; else they are carried."""


class Builder:
    """A skeleton that moves along a line, row by row."""

    def __init__(self, kernel: Kernel, session: str, reader: PackReader) -> None:
        self.kernel = kernel
        self.session = session
        self.reader = reader
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

    def resume(self, base: Artifact) -> None:
        """Begin at a snapshot or an anchor."""
        opened = open_base(self.kernel, self.session, base)
        if opened.skeleton is not None:
            self.begin(opened.point, opened.skeleton.doc, opened.skeleton.lists)
        else:
            self.begin(opened.point, load(self.kernel, self.session, base.line, base.hi).doc, {})

    def begin(self, point: Point | None, doc: dict[str, Any], lists: dict[str, list[list[Any]]]) -> None:
        """Begin at a known skeleton."""
        self.point, self._doc, self._lists = point, doc, lists

    def take(self, point: Point, body: Body, *, packed: bool) -> None:
        """Follow one row; ``packed`` rows can be pointed at."""
        env = point.envelope
        self.weight += len(body.data)
        ops, _ = payload_of(self.kernel, body, point)
        if packed:
            line, lo, _ = self._span or (env.line, env.step, env.step)
            self._span = (line, lo, env.step)
        for op in ops:
            self._follow(op, env.step, packed=packed)
        self.point = point

    def _follow(self, op: Op, step: int, *, packed: bool) -> None:
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
                flesh_out(Skeleton(self._doc, {name: parts}), self.reader)
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


def start_of_line(builder: Builder, row: Row) -> None:
    """Begin a builder at the first row of a line, on the skeleton of the checkpoint the line comes from."""
    kernel, session = builder.kernel, builder.session
    env = codec.decode_envelope(row.envelope, f"session {session!r}, line {row.line}, step {row.step}")
    origin = env.x.get("from")
    before: Point | None = None
    if origin is None:
        builder.begin(None, genesis(), {})
    else:
        bundle = kernel.store.load(session, origin[0], origin[1], refs=False)
        reader = PackReader(kernel, session, bundle.packs)
        parent = Builder(kernel, session, reader)
        if bundle.base is not None:
            parent.resume(bundle.base)
        for other in bundle.rows:
            if parent.point is None:
                start_of_line(parent, other)
            else:
                parent.take(*open_row(kernel, session, other, reader, parent.point), packed=False)
        skeleton = parent.skeleton()
        before = parent.point
        builder.reader.add(bundle.packs)
        builder.begin(before, skeleton.doc, skeleton.lists)
    point, body = open_row(kernel, session, row, builder.reader, before)
    builder.take(point, body, packed=False)
