"""How rows, artifacts and inbox entries look inside Redis: bytes from records and back. No I/O here.

The scripts in ``lua/`` read the beginnings of these bytes too: change one and the other together.
A row is ``<number of its change>:<length of its head><head><length of the envelope><envelope><payload>``; a thin one
ends with its head. A head begins with id and digest, each after one byte of length.
"""

from __future__ import annotations

from struct import Struct
from struct import error as LengthError
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from perdure.errors import Corrupted, InvalidInput
from perdure.model import Artifact, Head, InboxEntry, Row, Span
from perdure.stores.rules import SHOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.model import Append

_length = Struct(">I")
_pack = msgspec.msgpack.Encoder().encode
_shown = msgspec.msgpack.Decoder(tuple[str, str, str, int, str, str, tuple[str, ...], tuple[str, ...], bool])
_artifact = msgspec.msgpack.Decoder(tuple[str, int, int, int, tuple[tuple[int, int, int], ...], tuple[str, ...]])
_entry = msgspec.msgpack.Decoder(tuple[str, int])
_names = msgspec.msgpack.Decoder(list[str])
WHOLE = 1 << 53
"""Numbers up to here are whole inside scripts."""


def number(value: int, what: str) -> bytes:
    """A number for a script, which counts in floating point."""
    if not 0 <= value <= WHOLE:
        raise InvalidInput(f"{what} is a number from 0 to 2**53, not {value}")
    return b"%d" % value


def mark(id: bytes, digest: bytes) -> bytes:
    """What a row is recognised by."""
    if not 0 < len(id) < 256 or len(digest) > 255:
        raise InvalidInput("an id has 1 to 255 bytes, and a digest up to 255")
    return bytes((len(id),)) + id + bytes((len(digest),)) + digest


def row_tail(marked: bytes, shown: Sequence[Any], envelope: bytes, payload: bytes) -> bytes:
    """A row without the number that the script puts in front."""
    head = marked + _pack(shown)
    if not (envelope or payload):
        return _length.pack(len(head)) + head
    return b"".join((_length.pack(len(head)), head, _length.pack(len(envelope)), envelope, payload))


def shown_of(item: Append) -> tuple[Any, ...]:
    """The projections of a commit, in the order of ``SHOWN``."""
    return (
        str(item.branch), str(item.kind), str(item.status), item.at, item.tool, item.error,
        tuple(item.takes), tuple(item.blobs), bool(item.starts),
    )  # fmt: skip


class Stored(NamedTuple):
    """A row taken apart: the number of its change (or its place among restored rows), projections still packed."""

    row: Row
    seq: int
    relative: bool
    shown: bytes

    def projections(self) -> dict[str, Any]:
        """Branch, kind and so on, as a dump has them."""
        return dict(zip(SHOWN, _shown.decode(self.shown), strict=True))


class Form:
    """Takes stored bytes apart; what does not fit together is ``Corrupted``. ``where`` names the store."""

    def __init__(self, where: str) -> None:
        self._where = where

    def damaged(self, what: str) -> Corrupted:
        """The error for bytes that nobody of us wrote."""
        return Corrupted(self._where, f"{what} is damaged")

    def row(self, place: bytes, value: bytes) -> Stored:
        """A row by its field and bytes."""
        try:
            line, step = place.split(b":")
            seq, _, rest = value.partition(b":")
            (length,) = _length.unpack_from(rest)
            end = 4 + length
            id_end = 5 + rest[4]
            digest_end = id_end + 1 + rest[id_end]
            envelope = payload = b""
            if len(rest) > end:
                (size,) = _length.unpack_from(rest, end)
                envelope, payload = rest[end + 4 : end + 4 + size], rest[end + 4 + size :]
                if len(envelope) != size:
                    raise ValueError
            if len(rest) < end or digest_end > end:
                raise ValueError
            row = Row(int(line), int(step), rest[5:id_end], rest[id_end + 1 : digest_end], envelope, payload)
            return Stored(row, int(seq), seq[:1] == b"+", rest[digest_end:end])
        except (ValueError, IndexError, LengthError):
            raise self.damaged("a row") from None

    def projections(self, stored: Stored) -> dict[str, Any]:
        """The projections of a row."""
        try:
            return stored.projections()
        except msgspec.MsgspecError:
            raise self.damaged("a row") from None

    def artifact(self, value: bytes) -> Artifact:
        """An artifact from its bytes."""
        try:
            (length,) = _length.unpack_from(value)
            kind, line, lo, hi, refs, blobs = _artifact.decode(value[4 : 4 + length])
            return Artifact(kind, line, lo, hi, value[4 + length :], tuple(Span(*ref) for ref in refs), blobs)
        except (LengthError, msgspec.MsgspecError):
            raise self.damaged("an artifact") from None

    def entry(self, session: str, key: bytes, value: bytes, *, waiting: bool) -> InboxEntry:
        """An inbox entry; of a taken one, the rest of its bytes is the id of the commit that took it."""
        try:
            seq, _, rest = value.partition(b":")
            (length,) = _length.unpack_from(rest)
            digest_end = 5 + rest[4]
            kind, at = _entry.decode(rest[digest_end : 4 + length])
            body, taken = (rest[4 + length :], b"") if waiting else (b"", rest[4 + length :])
            return InboxEntry(session, key.decode(), kind, at, rest[5:digest_end], body, int(seq), taken)
        except (LengthError, ValueError, IndexError, msgspec.MsgspecError):
            raise self.damaged("an inbox entry") from None

    def names(self, value: bytes) -> list[str]:
        """Refs of blobs."""
        try:
            return _names.decode(value)
        except msgspec.MsgspecError:
            raise self.damaged("a list of blobs") from None

    def head(self, branch: str, value: bytes | None) -> Head | None:
        """A head as stored under its branch."""
        if value is None:
            return None
        try:
            line, step, id = value.split(b":", 2)
            return Head(branch, int(line), int(step), id)
        except ValueError:
            raise self.damaged("a head") from None


def artifact_value(artifact: Artifact) -> bytes:
    """An artifact as stored."""
    head = _pack((artifact.kind, artifact.line, artifact.lo, artifact.hi, artifact.refs, artifact.blobs))
    return b"".join((_length.pack(len(head)), head, artifact.body))


def digest_mark(digest: bytes) -> bytes:
    """What an inbox entry is recognised by."""
    return bytes((len(digest),)) + digest


def entry_tail(entry: InboxEntry) -> bytes:
    """An inbox entry without the number that the script puts in front."""
    head = digest_mark(entry.digest) + _pack((entry.kind, entry.at))
    return _length.pack(len(head)) + head + (entry.taken or entry.body)


def names_value(names: Sequence[str]) -> bytes:
    """Refs of blobs as stored; "" for none."""
    return _pack(names) if names else b""


def packed(value: Any) -> bytes:
    """A structure for a script."""
    return _pack(value)
