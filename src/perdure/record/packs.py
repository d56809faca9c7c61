"""Packs: rows of a line compressed together, and snapshots that refer to them. Formats only; who builds them when
is decided in upkeep/snapshots.

A pack has two parts, so that a load inflates only what it needs. Most rows do nothing but append to one list: what
they append lies in the first part, ``[name of the list, how many values of each row, values]``. The second holds
``[digest before the pack, envelopes, forms, payloads]``; a row whose values lie in the first part has no payload, and
its bytes are written anew, exactly, when it is asked for.

A snapshot holds a document without its long
top-level lists; those are given in parts, ``[0, values]`` or ``[1, line, lo, hi]``: what the rows lo..hi appended.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Values are any JSON here: their types are looked at, not declared.
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from perdure.errors import Corrupted
from perdure.model import ANCHOR, PACK, SNAPSHOT, Artifact, Span
from perdure.record import codec
from perdure.record.codec import MSGPACK, Body, Point
from perdure.state.delta import APPEND
from perdure.state.document import STATE
from perdure.state.values import TREE, BlobRef

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from perdure.record.codec import Decoder
    from perdure.record.keys import Keys

INLINE, RUN = 0, 1


class Source(Protocol):
    """What opening a pack needs of the database it lies in."""

    @property
    def keys(self) -> Keys: ...
    @property
    def store_id(self) -> str: ...
    @property
    def decode(self) -> Decoder: ...
    def resolve(self, ref: BlobRef) -> Any: ...
    def packs_at(self, session: str, line: int, step: int) -> Iterable[Artifact]: ...


class Packed(NamedTuple):
    """One row inside a pack."""

    envelope: bytes
    body: Body


class Anchored(NamedTuple):
    """The checkpoint that an anchor stands for."""

    point: Point
    since: int
    """The first step of those that were dropped before it."""


_raw_column = msgspec.msgpack.Decoder(tuple[str, bytes, list[msgspec.Raw]]).decode
_raw_rows = msgspec.msgpack.Decoder(tuple[bytes, list[bytes], bytes, list[msgspec.Raw]]).decode
_raw_payload = msgspec.msgpack.Decoder(tuple[list[msgspec.Raw], msgspec.Raw]).decode
_raw_append = msgspec.msgpack.Decoder(tuple[int, list[str | int], list[msgspec.Raw]]).decode
_NIL = b"\xc0"
_MAX_COUNT = 255


def _append_of(body: Body) -> tuple[str, list[msgspec.Raw]] | None:
    """The list and the values of a row that does nothing but append to a top-level list; None for any other."""
    if body.form != MSGPACK:
        return None
    try:
        (op,), extra = _raw_payload(body.data)
        code, path, values = _raw_append(op)
        _, name = path
    except (msgspec.MsgspecError, ValueError):
        return None
    # Only what comes out byte for byte the same may be written anew: its digest is over these bytes.
    if not isinstance(name, str) or not 0 < len(values) <= _MAX_COUNT or bytes(extra) != _NIL:
        return None
    return (name, values) if code == APPEND and _append_bytes(name, values) == body.data else None


def _append_bytes(name: str, values: list[msgspec.Raw]) -> bytes:
    return msgspec.msgpack.encode(([[APPEND, [STATE, name], values]], None))


def build_pack(source: Source, session: str, line: int, lo: int, before: bytes, rows: list[Packed]) -> Artifact:
    """Compress rows together."""
    appends = [_append_of(r.body) for r in rows]
    names = [a[0] for a in appends if a is not None]
    column = max(set(names), key=names.count, default="")
    payloads: list[Any] = []
    counts = bytearray()
    values: list[msgspec.Raw] = []
    for row, append in zip(rows, appends, strict=True):
        if append is not None and append[0] == column:
            payloads.append(None)
            counts.append(len(append[1]))
            values += append[1]
        else:
            payloads.append(msgspec.Raw(row.body.data) if row.body.form == MSGPACK else row.body.data)
            counts.append(0)
    forms = bytes(r.body.form for r in rows)
    encode = msgspec.msgpack.encode
    parts = encode((column, bytes(counts), values)), encode((before, [r.envelope for r in rows], forms, payloads))
    artifact = Artifact(PACK, line, lo, lo + len(rows) - 1, b"")
    return codec.seal_artifact(
        source.keys, source.store_id, session, artifact, *(Body(MSGPACK, part) for part in parts)
    )


def _rows_of(first: Body, second: Body) -> Iterator[Packed]:
    """The rows of a pack as they were written."""
    column, counts, values = _raw_column(first.data)
    _, envelopes, forms, payloads = _raw_rows(second.data)
    taken = 0
    for envelope, form, payload, count in zip(envelopes, forms, payloads, counts, strict=True):
        if count:
            data = _append_bytes(column, values[taken : taken + count])
        else:
            data = bytes(payload) if form == MSGPACK else msgspec.msgpack.decode(payload, type=bytes)
        taken += count
        yield Packed(envelope, Body(form, data))


def _place(pack: Artifact) -> tuple[int, int]:
    return pack.line, pack.lo


class PackReader:
    """Rows of the packs in a bundle, opened when asked for."""

    def __init__(self, source: Source, session: str, packs: Iterable[Artifact]) -> None:
        self._source = source
        self._session = session
        held = list(packs)
        self._packs = sorted((p for p in held if p.kind == PACK), key=_place)
        self._anchors = {(p.line, p.hi): p for p in held if p.kind == ANCHOR}
        self._sealed: dict[tuple[int, int], list[memoryview]] = {}
        self._rows: dict[tuple[int, int], list[Packed]] = {}

    def add(self, packs: Iterable[Artifact]) -> None:
        """Read these too."""
        known = {(p.line, p.lo) for p in self._packs}
        self._packs = sorted(
            [*self._packs, *(p for p in packs if p.kind == PACK and (p.line, p.lo) not in known)], key=_place
        )

    def anchored(self, line: int, step: int) -> Anchored | None:
        """What an anchor says of a row since those before it were dropped; None: an ordinary row."""
        anchor = self._anchors.get((line, step))
        return Anchored(open_base(self._source, self._session, anchor).point, anchor.lo) if anchor is not None else None

    def _part(self, pack: Artifact, number: int) -> Body:
        """One of the two parts of a pack. Not kept: the next one is then inflated into the same memory."""
        at, where = (pack.line, pack.lo), self._where(pack)
        if at not in self._sealed:
            source = self._source
            self._sealed[at] = codec.artifact_parts(source.keys, source.store_id, self._session, pack, where)
        if len(self._sealed[at]) != 2:
            raise Corrupted(where, "the pack has not got two parts")
        return codec.unseal(self._sealed[at][number], where)

    def _where(self, pack: Artifact) -> str:
        return f"session {self._session!r}, pack of line {pack.line}, steps {pack.lo}-{pack.hi}"

    def _find(self, line: int, step: int) -> Artifact:
        for _ in range(2):
            for pack in self._packs:
                if pack.line == line and pack.lo <= step <= pack.hi:
                    return pack
            # Packs that a snapshot refers to are not always read along with it.
            self.add(self._source.packs_at(self._session, line, step))
        raise Corrupted(f"session {self._session!r}, line {line}, step {step}", "the pack that holds it is missing")

    def row(self, line: int, step: int) -> Packed:
        """A row that lives in a pack."""
        pack = self._find(line, step)
        at = (pack.line, pack.lo)
        if at not in self._rows:
            where = self._where(pack)
            try:
                self._rows[at] = list(_rows_of(self._part(pack, 0), self._part(pack, 1)))
            except (msgspec.MsgspecError, ValueError) as e:
                raise Corrupted(where, "the pack cannot be read") from e
            if len(self._rows[at]) != pack.hi - pack.lo + 1:
                raise Corrupted(where, "the pack holds another number of rows than it says")
        return self._rows[at][step - pack.lo]

    def before(self, pack: Artifact) -> bytes:
        """The digest of the row before a pack."""
        return _raw_rows(self._part(pack, 1).data)[0]

    def appended(self, name: str, span: Span) -> list[Any]:
        """All that the rows of a span appended to a top-level list of the state."""
        out: list[Any] = []
        path = [STATE, name]
        step = span.lo
        while step <= span.hi:
            pack = self._find(span.line, step)
            where = self._where(pack)
            column, counts, values = self._source.decode(self._part(pack, 0), where)
            if column == name and step == pack.lo and pack.hi <= span.hi and 0 not in counts:
                out.extend(values)
            else:
                _, _, forms, payloads = self._source.decode(self._part(pack, 1), where)
                taken = 0
                for i, count in enumerate(counts[: min(span.hi, pack.hi) - pack.lo + 1]):
                    if pack.lo + i < step:
                        pass
                    elif not count:
                        payload = payloads[i]
                        if forms[i] != MSGPACK:
                            payload = self._source.decode(Body(forms[i], payload), where)
                        for op in payload[0]:
                            if op[0] == APPEND and op[1] == path:
                                out.extend(op[2])
                    elif column == name:
                        out.extend(values[taken : taken + count])
                    taken += count
            step = pack.hi + 1
        return out


class Skeleton(NamedTuple):
    """A document with its long lists apart: what a snapshot stores."""

    doc: dict[str, Any]
    lists: dict[str, list[list[Any]]]
    """Name of a top-level list -> its parts."""

    def spans(self) -> tuple[Span, ...]:
        """The rows this snapshot refers to."""
        return tuple(Span(*part[1:]) for parts in self.lists.values() for part in parts if part[0] == RUN)


def build_snapshot(source: Source, session: str, point: Point, skeleton: Skeleton, gap: Span | None = None) -> Artifact:
    """Seal a document at a checkpoint; with ``gap`` as an anchor that stands for the dropped rows."""
    env = point.envelope
    value: list[Any] = [codec.encode_envelope(env), point.digest, skeleton.doc, skeleton.lists, None]
    artifact = Artifact(SNAPSHOT, env.line, env.step, env.step, b"", skeleton.spans())
    if gap is not None:
        # Rows that name a blob may be dropped: from then on the anchor names it.
        artifact = Artifact(ANCHOR, env.line, gap.lo, gap.hi, b"", (), blobs_in(source, skeleton.doc))
    return codec.seal_artifact(source.keys, source.store_id, session, artifact, codec.encode(value))


def state_to_cache(source: Source, session: str, point: Point, doc: dict[str, Any]) -> Callable[[], Artifact]:
    """The whole document at a checkpoint for a cache: encoded now, sealed when the cache has time for it.

    It is one piece that refers to no packs, so that it is opened in about half the time.
    """
    env = point.envelope
    body = codec.encode([codec.encode_envelope(env), point.digest, doc, {}, None])
    artifact = Artifact(SNAPSHOT, env.line, env.step, env.step, b"")
    return lambda: codec.seal_artifact(source.keys, source.store_id, session, artifact, body, level=codec.LIGHT)


def build_delta_anchor(source: Source, session: str, point: Point, after: Point, ops: list[Any], gap: Span) -> Artifact:
    """Seal a kept checkpoint as what changed since the kept checkpoint of its line before it."""
    value = [codec.encode_envelope(point.envelope), point.digest, ops, {}, [after.envelope.step, after.digest]]
    artifact = Artifact(ANCHOR, gap.line, gap.lo, gap.hi, b"", (), blobs_in(source, ops))
    return codec.seal_artifact(source.keys, source.store_id, session, artifact, codec.encode(value))


class Base(NamedTuple):
    """An opened snapshot or anchor."""

    point: Point
    skeleton: Skeleton | None
    ops: list[Any] | None
    after: tuple[int, bytes] | None
    """An anchor may say only what changed since an earlier kept checkpoint of its line: (step, digest)."""


def open_base(source: Source, session: str, artifact: Artifact) -> Base:
    """Open a snapshot or an anchor and check that it is about the checkpoint it is filed under."""
    where = f"session {session!r}, {artifact.kind} at line {artifact.line}, step {artifact.hi}"
    body = codec.open_artifact(source.keys, source.store_id, session, artifact, where)
    try:
        env_bytes, digest, doc, lists, after = source.decode(body, where)
        env = codec.decode_envelope(env_bytes, where)
    except (TypeError, ValueError) as e:
        raise Corrupted(where, "it cannot be read") from e
    if (env.session, env.line, env.step) != (session, artifact.line, artifact.hi):
        raise Corrupted(where, "it is about another checkpoint")
    point = Point(env, digest)
    if after is not None:
        if after[0] >= env.step:
            raise Corrupted(where, "it refers to itself")
        return Base(point, None, doc, (after[0], after[1]))
    return Base(point, Skeleton(doc, lists), None, None)


def flesh_out(skeleton: Skeleton, packs: PackReader) -> dict[str, Any]:
    """The whole document of a skeleton."""
    doc = skeleton.doc
    for name, parts in skeleton.lists.items():
        values: list[Any] = []
        for part in parts:
            if part[0] == INLINE:
                values.extend(part[1])
            else:
                values.extend(packs.appended(name, Span(*part[1:])))
        doc[STATE][name] = values
    return doc


def blobs_in(source: Source, value: Any) -> tuple[str, ...]:
    """The blobs a value refers to, those inside large lists and objects included."""
    found: set[str] = set()
    stack = [value]
    while stack:
        v = stack.pop()
        if isinstance(v, BlobRef):
            found.add(v.ref)
            if v.form == TREE:
                stack.append(source.resolve(v))
        elif isinstance(v, dict):
            stack.extend(v.values())
        elif isinstance(v, list):
            stack.extend(v)
    return tuple(sorted(found))
