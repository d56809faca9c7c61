"""The records of a session's log, as msgpack arrays. Fields are only ever added at the end."""

from __future__ import annotations

import msgspec

from perdure.errors import Corrupted, InvalidInput, LimitExceeded, UnsupportedFormat
from perdure.model import Artifact, Head, Span
from perdure.stores._fileframes import MAX_BODY

FORMAT = 1
"""Version of the format of logs; a newer one is refused."""

BIRTH, COMMIT, REWRITE, POST, STATE = 1, 2, 3, 4, 5


class Birth(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """First record of every log file. A replaced file has another ``generation``."""

    format: int
    session: str
    generation: bytes
    created: int
    durable: bytes = bytes(8)
    """Length of the file when it got its name (8 bytes, little-endian): all of that was synced before."""

    def lasting(self, length: int) -> Birth:
        """The same, for a file of which ``length`` bytes are durable before it gets its name."""
        return msgspec.structs.replace(self, durable=length.to_bytes(8, "little"))


class Commit(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One checkpoint. ``ordinal`` counts the commits of the session, for cursors; it never restarts."""

    ordinal: int
    branch: str
    line: int
    step: int
    id: bytes
    digest: bytes
    starts: bool
    owner: str
    status: str
    kind: str
    at: int
    wall: int
    """When the store wrote it, by the store's clock; ``at`` is the writer's."""
    ttl: int | None
    takes: tuple[str, ...]
    blobs: tuple[str, ...]
    tool: str
    error: str
    envelope: bytes
    payload: bytes
    agent: str = ""


class Rewritten(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Maintenance, all of it or nothing: one frame is one transaction."""

    put: tuple[Artifact, ...] = ()
    thin: tuple[Span, ...] = ()
    drop: tuple[Span, ...] = ()
    discard: tuple[tuple[str, int, int], ...] = ()


class Posted(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An inbox entry. ``taken`` is set only in a rewritten log; else the taking commit says it."""

    seq: int
    key: str
    kind: str
    at: int
    digest: bytes
    body: bytes
    taken: bytes = b""


class State(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The session's row as of here; overrides whatever the records before it add up to."""

    owner: str
    status: str
    created: int
    updated: int
    expires: int | None
    heads: tuple[Head, ...]
    reason: str
    token: int
    lines: int
    ordinal: int
    trimmed: int
    posts: int
    agent: str = ""
    error: str = ""


Record = Birth | Commit | Rewritten | Posted | State

_encoder = msgspec.msgpack.Encoder()
_KINDS: dict[type, int] = {Birth: BIRTH, Commit: COMMIT, Rewritten: REWRITE, Posted: POST, State: STATE}
_DECODERS: dict[int, msgspec.msgpack.Decoder[Record]] = {
    BIRTH: msgspec.msgpack.Decoder(Birth),
    COMMIT: msgspec.msgpack.Decoder(Commit),
    REWRITE: msgspec.msgpack.Decoder(Rewritten),
    POST: msgspec.msgpack.Decoder(Posted),
    STATE: msgspec.msgpack.Decoder(State),
}


def encode(record: Record) -> tuple[int, bytes]:
    """Type and body of a record."""
    return _KINDS[type(record)], _encoder.encode(record)


def checked(record: Record) -> tuple[int, bytes]:
    """Type and body of a record made of what a caller passed; ``InvalidInput`` when it can not be read again.

    A value of the wrong type would be written without complaint and make the whole log unreadable.
    """
    try:
        kind, body = encode(record)
        _DECODERS[kind].decode(body)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"a field has the wrong type or cannot be written ({error})") from error
    if len(body) > MAX_BODY:
        raise LimitExceeded(
            f"{len(body)} bytes in one commit, over the limit of {MAX_BODY}: use blobs for large values"
        )
    return kind, body


def decode(kind: int, body: bytes, where: str) -> Record:
    """The record of an intact frame."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise UnsupportedFormat(
            f"{where}: a record of type {kind} was written by a newer Perdure; upgrade this process"
        )
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise Corrupted(where, f"a record of type {kind} cannot be read ({error})") from error
