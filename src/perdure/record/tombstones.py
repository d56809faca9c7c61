"""Tombstones: why a session is gone, and the word of whoever ended it.

A store keeps a text. Behind the reason stand which life of the session has ended and how far each branch had come,
with a tag over that, the store and the session (an HMAC when there is a key): a deletion cannot be forged without the
key, nor can an older one be put back for a newer.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from perdure.errors import Corrupted
from perdure.model import SIGNED, plain_reason
from perdure.record import codec

if TYPE_CHECKING:
    from perdure.model import SessionRow
    from perdure.record.keys import Keys

LIFE = "life"
"""Under this name the checkpoints of a session that has begun anew say in which life they were made."""


class Tombstone(NamedTuple):
    """The end of a session, by the word of whoever ended it."""

    life: int
    lines: int
    """How many lines it had."""
    heads: dict[int, int]
    """The last step of each line that was a branch's or a tag's."""

    def covers(self, line: int, step: int) -> bool:
        """Whether a checkpoint of this life may have been made before it ended."""
        return line < self.lines and step <= self.heads.get(line, step)


class _Signed(msgspec.Struct, array_like=True):
    life: int
    lines: int
    heads: dict[int, int]
    key: str
    tag: bytes


def sign(keys: Keys, store: str, row: SessionRow, life: int, why: str) -> str:
    """The reason to drop a session with, signed."""
    stone = Tombstone(life, row.lines, {head.line: head.step for head in row.heads})
    tag = _tag(keys, keys.current, store, row.id, why, stone)
    return f"{why}{SIGNED}{_in_text(_Signed(*stone, keys.current, tag))}"


def _in_text(said: _Signed) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(said)).decode()


def read(keys: Keys, store: str, session: str, reason: str) -> Tombstone:
    """What a tombstone says; ``Corrupted`` when nobody who holds the key has said it of this session."""
    where = f"session {session!r}, tombstone"
    why, signed = plain_reason(reason), reason.partition(SIGNED)[2]
    if not signed:
        raise Corrupted(where, "it is not signed: the session was not deleted by Perdure")
    try:
        said = msgspec.msgpack.decode(base64.urlsafe_b64decode(signed.encode()), type=_Signed)
        if _in_text(said) != signed:
            raise ValueError("more stands there than was written")
    except (msgspec.MsgspecError, binascii.Error, ValueError) as e:
        raise Corrupted(where, "its signature cannot be read") from e
    stone = Tombstone(said.life, said.lines, said.heads)
    if not hmac.compare_digest(_tag(keys, said.key, store, session, why, stone), said.tag):
        raise Corrupted(where, f"its signature does not match: {codec.NOT_FROM_HERE}")
    return stone


def _tag(keys: Keys, name: str, store: str, session: str, why: str, stone: Tombstone) -> bytes:
    heads = sorted(stone.heads.items())
    about = msgspec.msgpack.encode((store, session, why, stone.life, stone.lines, heads))
    return codec.digest(keys, name, b"tombstone\0", (about,), f"session {session!r}, tombstone")
