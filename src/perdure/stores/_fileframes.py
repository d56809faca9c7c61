"""A log of framed, checksummed records: how a record looks on disk, and how much of a file is intact.

A frame is a header (magic, type, length, distance back to the start of the write it was part of, crc of
the body, crc of the header) and a body. Both checksums start from the session's salt and the frame's own
offset, so a frame is valid only in its log and at its place: bytes that merely look like a frame (a log
kept inside a message, a block that landed elsewhere) are none.

Writes to one log never overlap: each is synced before the next begins. So after a power loss only the
last write can be damaged, but any of its frames may be: blocks reach the disk in any order. A bad frame
is therefore a *torn tail* when no frame of a later write follows, and damage otherwise.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

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
