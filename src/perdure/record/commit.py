"""Making a sealed commit: the edits encoded, large values put aside, the envelope, the digest. No I/O."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Values are any JSON here: their types are looked at, not declared.
from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.model import Append, Envelope
from perdure.record import codec
from perdure.record.codec import ZERO
from perdure.state.delta import APPEND, DEL, SET, SPLICE
from perdure.state.values import BlobRef, Wire, is_plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.record.keys import Keys
    from perdure.state.document import TrackedDict


class Point(NamedTuple):
    """A verified checkpoint: its envelope and its digest."""

    envelope: Envelope
    digest: bytes


class Loaded(NamedTuple):
    """A document rebuilt at a checkpoint, every byte of it verified."""

    doc: dict[str, Any]
    point: Point | None
    """None before the first checkpoint."""
    loose: int
    """How many rows after the newest pack were read one by one."""
    blobs: bool = True
    """Whether blob refs may stand in the document; False when certainly none does."""


class Settings:
    """How a session was opened: what every commit of its handle says."""

    def __init__(self, owner: str, ttl: int | None, schema: str, effects: str = "reuse") -> None:
        self.owner = owner
        self.ttl = ttl
        self.schema = schema
        self.effects = effects
        self.agent = ""
        """Who works through this handle; "" when it is no agent."""
        self.validate: Callable[[TrackedDict, list[Any]], None] | None = None


def encode(ops: list[Any], extra: dict[str, Any], form: int) -> tuple[codec.Body, dict[str, bytes | BlobRef]]:
    """The plaintext of a commit, and what it keeps as blobs."""
    if not extra and all(map(_is_plain_op, ops)):
        try:
            return codec.encode([ops, None], form), {}
        except UnicodeEncodeError:
            pass  # and find out below where it stands
    blobs: dict[str, bytes | BlobRef] = {}

    def offload(form: int, data: bytes) -> str:
        ref = hashlib.sha256(data).hexdigest()
        blobs[ref] = data
        return ref

    wire = Wire(offload, big_ints=form == codec.MSGPACK)
    wired = [_wire_op(wire, op) for op in ops]
    body = codec.encode([wired, wire.value(extra, ("extra",)) if extra else None], form)
    # A value that was moved is named where it stands now: its old place may be dropped.
    for held in wire.refs:
        blobs.setdefault(held.ref, held)
    return body, blobs


def _is_plain_op(op: list[Any]) -> bool:
    code = op[0]
    if code == APPEND:
        return is_plain(op[2], len(op[1]))
    if code == SET:
        return is_plain([op[2]], len(op[1]))
    return code == DEL


def _wire_op(wire: Wire, op: list[Any]) -> list[Any]:
    code, path = op[0], op[1]
    shown = tuple(path[1:])
    if code == APPEND:
        return [APPEND, path, [wire.value(v, (*shown, i)) for i, v in enumerate(op[2])]]
    if code == SET:
        return [SET, path, wire.value(op[2], shown)]
    if code == DEL:
        return op
    return [SPLICE, path, op[2], op[3], [wire.value(v, (*shown, op[2] + i)) for i, v in enumerate(op[4])]]


def seal_commit(
    keys: Keys,
    now: int,
    session: str,
    branch: str,
    before: Point | None,
    kind: str,
    body: codec.Body,
    x: dict[str, Any],
    settings: Settings,
    status: str,
    token: int | None,
    *,
    line: int | None = None,
    expect: bytes | None = None,
) -> tuple[Append, Point]:
    """Build a sealed commit on top of ``before``; with ``line`` it starts that line, the branch being at ``expect``."""
    # Plain strings, whatever named them: what is written does not depend on how it was spelt.
    kind, status = str(kind), str(status)
    starts = before is None or line is not None
    if before is None:
        parent, under, at_line, step = None, ZERO, line or 0, 1
    else:
        last, under = before
        parent, step = last.id, last.step + 1
        at_line = last.line if line is None else line
        if line is not None:
            x["from"] = [last.line, last.step, under]
    id, key = os.urandom(16), keys.current
    owner, ttl = settings.owner, settings.ttl
    env = Envelope(
        1, session, id, parent, at_line, step, branch, kind, now, owner, status, ttl, settings.schema, key, x
    )  # fmt: skip
    env_bytes = codec.encode_envelope(env)
    digest = codec.chain_digest(keys, key, under, env_bytes, body, f"session {session!r}")
    item = Append(
        session, branch, at_line, step, id, parent if line is None else expect, digest, env_bytes,
        codec.seal(body), token, starts, owner, status, kind, now, ttl, *(_projected(x) if x else ()),
    )  # fmt: skip
    return item, Point(env, digest)


def _projected(x: dict[str, Any]) -> tuple[Any, ...]:
    """What stores are told of an envelope's rarer parts, in the order of :class:`Append`."""
    named = (str(x.get(name, "")) for name in ("tool", "error", "run", "effect", "approval", "agent"))
    return tuple(x.get("takes", ())), tuple(x.get("blobs", ())), *named
