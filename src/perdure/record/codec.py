"""A commit as bytes: canonical plaintext, envelope, chained digest, and sealing. Pure: no I/O, no clocks.

A checkpoint's digest covers its envelope, its plaintext and its parent's digest. Sealing is a separate layer
around the plaintext that may be done anew without touching a digest. What is stored is bound to its store by a tag over
the sealed bytes (an HMAC when keyed), which is checked before anything is inflated; ``binding`` has the rest of that.

A sealed value begins with a header:
magic, version, flags, form and compression, inflated size, and where flagged a dictionary id, and a cipher with
key id and nonce. Flags this version does not know are refused.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Values are any JSON here: their types are looked at, not declared.
from __future__ import annotations

import hashlib
import hmac
import os
import struct
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import zstandard

from perdure.errors import Corrupted, KeyMismatch, UnsupportedFormat
from perdure.model import Append, Artifact, Envelope
from perdure.state.delta import APPEND, DEL, SET, SPLICE
from perdure.state.values import EXT_BLOB, EXT_INT, MAX_BITS, BlobRef, Wire, is_plain, wire_ints, wire_ref

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.record.keys import Keys
    from perdure.state.document import TrackedDict

MSGPACK, JSON = 1, 2
"""Forms of a plaintext."""
RAW, ZSTD = 0, 1
"""Compressions."""
MAX_INFLATED = 512 * 1024 * 1024
MAX_ROW = 64 * 1024 * 1024
"""The most bytes the plaintext of one checkpoint may have, blobs apart."""
TAG, FENCE = 32, 8
"""Bytes of the tag and of the fencing token before a sealed payload."""
NOT_FROM_HERE = "it was changed, or written for another store"
ZERO = b"\0" * 32
"""Stands for the digest of the parent of a first checkpoint."""
_MAGIC, _VERSION = 0xD5, 1
_HAS_DICT, _HAS_CIPHER = 1, 2
_FORMS = [bytes((n,)) for n in range(256)]
_header = struct.Struct("<BBBBI").pack
_PLAUSIBLE = 200
"""By how much what people say may be compressed; beyond that, memory is taken step by step."""
_FAST, _SMALL = 3, 7
"""Levels of compression: for what a commit waits for, and for what is built off its path and kept."""
LIGHT = 1
"""The level for a cache: inflated fastest, and still a third of the bytes that go over the network."""
_WORTH = {_FAST: 4096, _SMALL: 96, LIGHT: 4096}
"""From which size compression pays. A small row is written as it is: it is packed with its neighbours soon enough."""
_local = threading.local()


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


class Body(NamedTuple):
    """A plaintext and how it is written."""

    form: int
    data: bytes


class Decoder:
    """Decodes plaintexts; the blob refs it makes know where to look."""

    def __init__(self, resolver: Callable[[BlobRef], Any] | None = None) -> None:
        self._resolver = resolver
        self.refs_made = 0
        """Grows with every blob ref: a load during which it stood still holds none."""
        self._decode = msgspec.msgpack.Decoder(ext_hook=self._unwire).decode

    def _unwire(self, code: int, data: memoryview) -> Any:
        if code == EXT_INT:
            if len(data) * 8 > MAX_BITS + 8:
                raise Corrupted("value", "an integer is larger than any that is written")
            return int.from_bytes(data, "big", signed=True)
        if code == EXT_BLOB:
            form, ref, size = msgspec.msgpack.decode(data, type=tuple[int, bytes, int])
            self.refs_made += 1
            return BlobRef(form, ref.hex(), size, self._resolver)
        raise Corrupted("value", f"unknown extension {code}")

    def __call__(self, body: Body, where: str = "value") -> Any:
        """The value of a plaintext."""
        try:
            if body.form == MSGPACK:
                return self._decode(body.data)
            if body.form == JSON:
                self.refs_made += _ESCAPE.encode() in body.data
                return _from_json(msgspec.json.decode(body.data), self._resolver)
        except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as e:
            raise Corrupted(where, "the bytes are verified but cannot be decoded") from e
        raise UnsupportedFormat(f"{where}: plaintext form {body.form} is not known to this version: upgrade Perdure")


_encode = msgspec.msgpack.Encoder(enc_hook=wire_ref).encode
encode_envelope = msgspec.msgpack.Encoder().encode
"""The canonical bytes of an envelope."""
_decode_env = msgspec.msgpack.Decoder(Envelope).decode

_ESCAPE = "$perdure"


def _to_json(v: Any) -> Any:
    """JSON has no extension types: a one-key object stands for them, and for itself where a user has such a key."""
    if isinstance(v, dict):
        out = {k: _to_json(x) for k, x in v.items()}
        return {_ESCAPE: out} if _ESCAPE in out else out
    if isinstance(v, list):
        return [_to_json(x) for x in v]
    return {_ESCAPE: [v.form, v.ref, v.size]} if isinstance(v, BlobRef) else v


def _from_json(v: Any, resolver: Callable[[BlobRef], Any] | None) -> Any:
    if isinstance(v, dict):
        found = cast("dict[str, Any]", v)
        if _ESCAPE in found and len(found) == 1:
            inner = found[_ESCAPE]
            if isinstance(inner, list):
                form, ref, size = cast("list[Any]", inner)
                return BlobRef(form, ref, size, resolver)
            found = cast("dict[str, Any]", inner)
        return {k: _from_json(x, resolver) for k, x in found.items()}
    return [_from_json(x, resolver) for x in cast("list[Any]", v)] if isinstance(v, list) else v


def encode(value: Any, form: int = MSGPACK) -> Body:
    """The plaintext of a checked value, or of one that was decoded before."""
    if form == JSON:
        return Body(form, msgspec.json.encode(_to_json(value)))
    try:
        return Body(form, _encode(value))
    except OverflowError:
        return Body(form, _encode(wire_ints(value)))


decode = Decoder()
"""Decodes plaintexts that hold no blob refs, or whose refs nobody looks into."""


def decode_envelope(data: bytes, where: str) -> Envelope:
    """Read an envelope; the caller verifies it against its digest."""
    try:
        envelope = _decode_env(data)
    except (msgspec.MsgspecError, ValueError) as e:
        raise Corrupted(where, "the envelope cannot be read") from e
    if envelope.v != 1:
        raise UnsupportedFormat(f"{where}: envelope version {envelope.v} is not known to this version: upgrade Perdure")
    return envelope


def seal(body: Body, level: int = _FAST) -> bytes:
    """Compress a plaintext and put the header before it."""
    data, how = body.data, RAW
    if len(data) >= _WORTH[level]:
        try:
            compressor = _local.compressors[level]
        except AttributeError:
            # A compressor serves one thread at a time.
            _local.compressors = {n: zstandard.ZstdCompressor(level=n) for n in _WORTH}
            compressor = _local.compressors[level]
        packed = compressor.compress(data)
        if len(packed) < len(data):
            data, how = packed, ZSTD
    return _header(_MAGIC, _VERSION, 0, body.form << 4 | how, len(body.data)) + data


def unseal(sealed: bytes | memoryview, where: str, limit: int = MAX_INFLATED) -> Body:
    """Check the header and give the plaintext back; it is verified by digest afterwards."""
    if len(sealed) < 8:
        raise Corrupted(where, "the sealed bytes are cut short")
    magic, version, flags, how, size = struct.unpack_from("<BBBBI", sealed)
    if magic != _MAGIC:
        raise Corrupted(where, "these are not sealed bytes")
    if version != _VERSION or flags & ~(_HAS_DICT | _HAS_CIPHER):
        raise UnsupportedFormat(f"{where}: header version {version}, flags {flags} are not known: upgrade Perdure")
    if flags:
        raise UnsupportedFormat(f"{where}: dictionaries and ciphers are not supported by this version: upgrade Perdure")
    if size > limit:
        raise Corrupted(where, f"claims to inflate to {size} bytes, over the limit of {limit}")
    form, compression = how >> 4, how & 15
    data = sealed[8:]
    if compression == ZSTD:
        data = inflate(data, size, where)
    elif compression == RAW:
        data = bytes(data)
    else:
        raise UnsupportedFormat(f"{where}: compression {compression} is not known to this version: upgrade Perdure")
    if len(data) != size:
        raise Corrupted(where, "the sealed bytes have another length than the header says")
    return Body(form, data)


def inflate(data: bytes | memoryview, size: int, where: str) -> bytes:
    """Decompress a frame that must come to this size, taking no more memory than what comes out of it."""
    try:
        decompressor = _local.decompressor
    except AttributeError:
        decompressor = _local.decompressor = zstandard.ZstdDecompressor()
    try:
        # The frame's own size is what memory is taken for: it must be the one that was checked against the limit.
        if zstandard.frame_content_size(data) != size:
            raise Corrupted(where, "the compressed frame claims another size than the header")
        if size > max(_PLAUSIBLE * len(data), 1 << 20):
            return _inflate_bit_by_bit(decompressor, data, size)
        return decompressor.decompress(data, max_output_size=size)
    except zstandard.ZstdError as e:
        raise Corrupted(where, "the compressed bytes cannot be read") from e


def _inflate_bit_by_bit(decompressor: zstandard.ZstdDecompressor, data: bytes | memoryview, size: int) -> bytes:
    """Nothing is verified yet, so no memory is taken on a frame's word alone: only for what really comes out."""
    out = bytearray()
    with decompressor.stream_reader(data) as reader:
        while len(out) <= size and (part := reader.read(1 << 20)):
            out += part
    return bytes(out)


def digest(keys: Keys, name: str, label: bytes, parts: tuple[bytes, ...], where: str) -> bytes:
    """A digest over labelled parts, under the key of that name ("" for none).

    With keys in hand nothing unkeyed is believed, or whoever can write the store could simply leave the key out.
    """
    pieces = [label]
    for part in parts:
        pieces += (len(part).to_bytes(8, "little"), part)
    return _digest(keys, name, b"".join(pieces), where)


def _digest(keys: Keys, name: str, message: bytes, where: str) -> bytes:
    if not name:
        if keys.current:
            raise KeyMismatch(
                f"{where} was written without a key, and a key was given: open it without keys= and PERDURE_KEY"
            )
        return hashlib.sha256(message).digest()
    key = keys.chain(name)
    if key is None:
        held = "another key was given" if keys else "no key was given"
        raise KeyMismatch(f"{where} was written with key {name!a:.20}, and {held}: pass keys= or set PERDURE_KEY")
    return hmac.digest(key, message, "sha256")


def chain_digest(keys: Keys, name: str, parent: bytes, envelope: bytes, body: Body, where: str) -> bytes:
    """The digest of a checkpoint on top of its parent's."""
    form, data = body
    if len(parent) != 32:
        return digest(keys, name, b"checkpoint\0", (parent, envelope, _FORMS[form], data), where)
    # The message that digest() makes of these parts, put together at once: every commit passes here.
    message = b"".join(
        (
            b"checkpoint\0\x20\0\0\0\0\0\0\0", parent, len(envelope).to_bytes(8, "little"), envelope,
            b"\1\0\0\0\0\0\0\0", _FORMS[form], len(data).to_bytes(8, "little"), data,
        )
    )  # fmt: skip
    return _digest(keys, name, message, where)


def bind_payload(
    keys: Keys, name: str, store: str, envelope: bytes, sealed: bytes, where: str, token: int = 0
) -> bytes:
    """A sealed payload as it lies in a store; with the token of the lease it was written under there, if it was."""
    fenced = token.to_bytes(FENCE, "little") + sealed
    return tag_payload(keys, name, store, envelope, fenced, where) + fenced


def token_of(payload: bytes) -> int:
    """The token of the lease that a verified payload was written under in its store; 0 for none."""
    return int.from_bytes(payload[TAG : TAG + FENCE], "little")


def tag_payload(keys: Keys, name: str, store: str, envelope: bytes, fenced: bytes | memoryview, where: str) -> bytes:
    """What precedes token and sealed bytes in a store."""
    about = store.encode()
    # The message that digest() makes of these parts, put together at once: every commit passes here.
    message = b"".join(
        (
            b"row\0", len(about).to_bytes(8, "little"), about, len(envelope).to_bytes(8, "little"), envelope,
            len(fenced).to_bytes(8, "little"), fenced,
        )
    )  # fmt: skip
    return _digest(keys, name, message, where)


def open_payload(keys: Keys, name: str, store: str, envelope: bytes, payload: bytes, where: str) -> Body:
    """The plaintext of a row: its tag is checked before anything of it is inflated."""
    fenced = memoryview(payload)[TAG:]
    if not hmac.compare_digest(tag_payload(keys, name, store, envelope, fenced, where), payload[:TAG]):
        raise Corrupted(where, NOT_FROM_HERE)
    return unseal(fenced[FENCE:], where, MAX_ROW)


def encode_commit(ops: list[Any], extra: dict[str, Any], form: int) -> tuple[Body, dict[str, bytes | BlobRef]]:
    """The plaintext of a commit, and what it keeps as blobs."""
    if not extra and all(map(_is_plain_op, ops)):
        try:
            return encode([ops, None], form), {}
        except UnicodeEncodeError:
            pass  # and find out below where it stands
    blobs: dict[str, bytes | BlobRef] = {}

    def offload(form: int, data: bytes) -> str:
        ref = hashlib.sha256(data).hexdigest()
        blobs[ref] = data
        return ref

    wire = Wire(offload, big_ints=form == MSGPACK)
    wired = [_wire_op(wire, op) for op in ops]
    body = encode([wired, wire.value(extra, ("extra",)) if extra else None], form)
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
    store: str,
    now: int,
    session: str,
    branch: str,
    before: Point | None,
    kind: str,
    body: Body,
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
        if "label" in last.x:
            # It stays until it is changed: every checkpoint tells it, so that no other need be asked.
            x.setdefault("label", last.x["label"])
        if "life" in last.x:
            x["life"] = last.x["life"]
    if "label" in x and not x["label"]:
        del x["label"]
    id, key = os.urandom(16), keys.current
    owner, ttl = settings.owner, settings.ttl
    env = Envelope(
        1, session, id, parent, at_line, step, branch, kind, now, owner, status, ttl, settings.schema, key, x
    )  # fmt: skip
    env_bytes = encode_envelope(env)
    where = f"session {session!r}"
    digest = chain_digest(keys, key, under, env_bytes, body, where)
    payload = bind_payload(keys, key, store, env_bytes, seal(body), where, token or 0)
    item = Append(
        session, branch, at_line, step, id, parent if line is None else expect, digest, env_bytes,
        payload, token, starts, owner, status, kind, now, ttl, *(_projected(x) if x else ()),
    )  # fmt: skip
    return item, Point(env, digest)


def _projected(x: dict[str, Any]) -> tuple[Any, ...]:
    """What stores are told of an envelope's rarer parts, in the order of :class:`Append`."""
    named = (str(x.get(name, "")) for name in ("tool", "error", "run", "effect", "approval", "agent", "label"))
    return tuple(x.get("takes", ())), tuple(x.get("blobs", ())), *named


def seal_artifact(
    keys: Keys, store: str, session: str, artifact: Artifact, *bodies: Body, level: int = _SMALL
) -> Artifact:
    """Seal derived bytes, bound to what they say they are; each part can be inflated without the others.

    The digest is over the sealed bytes: they are checked before anything is inflated, and there are fewer of them.
    """
    sealed = b"".join(len(part).to_bytes(4, "little") + part for part in (seal(b, level) for b in bodies))
    return bind_artifact(keys, keys.current, store, session, artifact, sealed)


def bind_artifact(
    keys: Keys, name: str, store: str, session: str, artifact: Artifact, sealed: bytes | memoryview
) -> Artifact:
    """Sealed bytes as the artifact of a session in a store."""
    mac = _artifact_digest(keys, name, store, session, artifact, sealed)
    return artifact._replace(body=bytes((len(name),)) + name.encode() + mac + sealed)


def open_artifact_seal(keys: Keys, store: str, session: str, artifact: Artifact, where: str) -> tuple[str, memoryview]:
    """The name of the key and the sealed bytes of an artifact, verified."""
    raw = artifact.body
    if not raw or len(raw) < 1 + raw[0] + 32:
        raise Corrupted(where, "the sealed bytes are cut short")
    try:
        name = raw[1 : 1 + raw[0]].decode("ascii")
    except UnicodeDecodeError as e:
        raise Corrupted(where, "the key's name cannot be read") from e
    at = 1 + raw[0]
    rest = memoryview(raw)[at + 32 :]
    if not hmac.compare_digest(_artifact_digest(keys, name, store, session, artifact, rest), raw[at : at + 32]):
        raise Corrupted(where, NOT_FROM_HERE)
    return name, rest


def artifact_parts(keys: Keys, store: str, session: str, artifact: Artifact, where: str) -> list[memoryview]:
    """The parts of an artifact, verified and still sealed."""
    _, rest = open_artifact_seal(keys, store, session, artifact, where)
    parts: list[memoryview] = []
    while rest:
        size = int.from_bytes(rest[:4], "little")
        if size > len(rest) - 4:
            raise Corrupted(where, "a part of it is cut short")
        parts.append(rest[4 : 4 + size])
        rest = rest[4 + size :]
    return parts


def open_artifact(keys: Keys, store: str, session: str, artifact: Artifact, where: str) -> Body:
    """The verified plaintext of an artifact of one part."""
    parts = artifact_parts(keys, store, session, artifact, where)
    if len(parts) != 1:
        raise Corrupted(where, f"it has {len(parts)} parts")
    return unseal(parts[0], where)


def _artifact_digest(keys: Keys, name: str, store: str, session: str, a: Artifact, sealed: bytes | memoryview) -> bytes:
    about = _encode((store, session, a.kind, a.line, a.lo, a.hi, [list(s) for s in a.refs], list(a.blobs)))
    where = f"{a.kind} of session {session!r}, line {a.line}, steps {a.lo}-{a.hi}"
    return digest(keys, name, b"artifact\0", (about, hashlib.sha256(sealed).digest()), where)
