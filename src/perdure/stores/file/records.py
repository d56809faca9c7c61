"""The records of a session's log: framed and checksummed on disk, msgpack arrays inside, and how much is intact.

A frame is a header (magic, type, length, distance back to the start of the write it was part of, crc of
the body, crc of the header) and a body. Both checksums start from the session's salt and the frame's own
offset, so a frame is valid only in its log and at its place: bytes that merely look like a frame (a log
kept inside a message, a block that landed elsewhere) are none.

Writes to one log never overlap: each is synced before the next begins. So after a power loss only the
last write can be incomplete, but any of its frames may be: sectors reach the disk in any order, and one
that never did reads as zeros. A bad frame is therefore an *interrupted write* when no frame of a later
write follows and something of it is missing: the file ends before it does, or one of its sectors is all
zeros. One that is all there, and wrong, is damage: it may have been acknowledged.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from perdure.errors import Corrupted, InvalidInput, LimitExceeded, UnsupportedFormat
from perdure.model import Artifact, Head, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Read = Callable[[int, int], bytes]
    """(size, offset) -> bytes, shorter only at the end of the file."""

MAGIC = b"\x9ePd"
HEADER = struct.Struct("<3sBIIII")
_CHECKED = HEADER.size - 4
_OFFSET = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_CHUNK = 1 << 20
_SECTOR = 512
"""What a disk writes as a whole, or not at all; those with larger ones write several of these."""
_END = b"\xa5"
"""Ends each body: no record ends in zeros, as the rest of a sector that was never written does."""
MAX_BODY = 1 << 30
"""No record is longer; a header that says otherwise is damaged."""
MAX_WRITE = 1 << 31
"""No write is longer, so that the distance back always fits."""


class Frame(NamedTuple):
    """One intact record: its type, where it starts, how many bytes it takes in all, and its body."""

    kind: int
    offset: int
    size: int
    body: bytes


def pack(records: Iterable[tuple[int, bytes]], offset: int, salt: int) -> tuple[bytes, list[int]]:
    """Frame records as one write that will start at ``offset``; also where each of them starts."""
    parts: list[bytes] = []
    starts: list[int] = []
    at = offset
    for kind, body in records:
        seed = zlib.crc32(_OFFSET.pack(at), salt)
        head = HEADER.pack(MAGIC, kind, len(body), at - offset, zlib.crc32(body, seed), 0)[:_CHECKED]
        parts += (head, _CRC.pack(zlib.crc32(head, seed)), body)
        starts.append(at)
        at += HEADER.size + len(body)
    return b"".join(parts), starts


def _header(raw: bytes, at: int, offset: int, salt: int) -> tuple[int, int, int, int, int] | None:
    """(type, length, back, crc of the body, seed) of the header at ``raw[at:]``, if it is intact."""
    if len(raw) - at < HEADER.size:
        return None
    magic, kind, length, back, crc, check = HEADER.unpack_from(raw, at)
    if magic != MAGIC or length > MAX_BODY:
        return None
    seed = zlib.crc32(_OFFSET.pack(offset), salt)
    if zlib.crc32(raw[at : at + _CHECKED], seed) != check:
        return None
    return kind, length, back, crc, seed


def unpack(raw: bytes, at: int, offset: int, salt: int) -> Frame | None:
    """The frame at ``raw[at:]``, which was read from ``offset`` of the log; None when it is not intact."""
    head = _header(raw, at, offset, salt)
    if head is None:
        return None
    kind, length, _, crc, seed = head
    start = at + HEADER.size
    body = raw[start : start + length]
    if len(body) != length or zlib.crc32(body, seed) != crc:
        return None
    return Frame(kind, offset, HEADER.size + length, body)


def scan(read: Read, start: int, size: int, salt: int) -> Iterator[Frame]:
    """Intact frames from ``start``, in order; ends at the first that is not, or at ``size``."""
    base, raw = start, b""
    offset = start
    while offset < size:
        at = offset - base
        if len(raw) - at < HEADER.size:
            base, raw, at = offset, read(min(_CHUNK, size - offset), offset), 0
        head = _header(raw, at, offset, salt)
        if head is None:
            return
        total = HEADER.size + head[1]
        if len(raw) - at < total:
            # Never more than the file has: nothing is allocated on the word of a length alone.
            base, raw, at = offset, read(min(max(total, _CHUNK), size - offset), offset), 0
        frame = unpack(raw, at, offset, salt)
        if frame is None:
            return
        yield frame
        offset += total


def later_write(read: Read, bad: int, size: int, salt: int) -> int | None:
    """Where a frame starts that was written after the bad one at ``bad``; None when that was the last write.

    An intact header is proof enough: the write it belongs to began when everything before was durable.
    """
    offset = bad + 1
    while offset < size:
        raw = read(min(_CHUNK + HEADER.size, size - offset), offset)
        at = raw.find(MAGIC)
        while 0 <= at < _CHUNK:
            head = _header(raw, at, offset + at, salt)
            if head is not None and offset + at - head[2] > bad:
                return offset + at
            at = raw.find(MAGIC, at + 1)
        offset += _CHUNK
    return None


def interrupted(read: Read, bad: int, size: int, salt: int) -> bool:
    """Whether something of the bad frame at ``bad``, which was written last, never reached the disk."""
    if size - bad < HEADER.size:
        return True
    head = _header(read(HEADER.size, bad), 0, bad, salt)
    # Where the header is wrong nobody knows how long it was.
    stop = size if head is None else bad + HEADER.size + head[1]
    return stop > size or any(not piece.strip(b"\0") for piece in _sectors(read, bad, stop))


def _sectors(read: Read, start: int, stop: int) -> Iterator[bytes]:
    while start < stop:
        raw = read(min(_CHUNK - start % _SECTOR, stop - start), start)
        first = _SECTOR - start % _SECTOR
        yield raw[:first]
        yield from (raw[at : at + _SECTOR] for at in range(first, len(raw), _SECTOR))
        start += len(raw)


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
    label: str = ""
    token: int = 0
    """Of the lease it was written under, which may be known nowhere else after a loss of power; 0: under none."""


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
    label: str = ""


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
    return _KINDS[type(record)], _encoder.encode(record) + _END


def checked(record: Record) -> tuple[int, bytes]:
    """Type and body of a record made of what a caller passed; ``InvalidInput`` when it can not be read again.

    A value of the wrong type would be written without complaint and make the whole log unreadable.
    """
    try:
        kind, body = encode(record)
        _DECODERS[kind].decode(memoryview(body)[:-1])
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
    if body[-1:] != _END:
        raise Corrupted(where, f"a record of type {kind} does not end as records do")
    try:
        return decoder.decode(memoryview(body)[:-1])
    except msgspec.MsgspecError as error:
        raise Corrupted(where, f"a record of type {kind} cannot be read ({error})") from error
