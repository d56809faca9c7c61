"""Cursors of the list of changes of a file store: how far each session was read. No I/O here.

There is no number that all commits of the store share: giving one out would make every session wait for
every other. So a cursor holds a position for each session, by its own count of commits, some 15 characters
each. A session's position also says where the scan that it belongs to ends: the newest commit when somebody
began to read from the beginning. Until a scan has got there nothing can be missed (what was dropped before
is simply not part of it); afterwards, a commit that is dropped before it was read has been missed.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from perdure.stores import rules

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST = 1 << 26
_decoder = msgspec.msgpack.Decoder(tuple[str, dict[bytes, tuple[int, int]]])


class Reach(NamedTuple):
    """How far a session goes: its newest commit ever, and the newest that was dropped."""

    newest: int
    trimmed: int


class Cursor:
    """Positions by session."""

    def __init__(self, epoch: str, positions: dict[bytes, tuple[int, int]]) -> None:
        self._epoch = epoch
        self._positions = positions

    def at(self, name: str) -> int:
        """After which commit to go on."""
        return self._positions.get(_short(name), (0, 0))[0]

    def move(self, name: str, ordinal: int) -> None:
        """A commit was read."""
        _, scan = self._positions.get(_short(name), (0, 0))
        self._positions[_short(name)] = (ordinal, scan if ordinal < scan else 0)

    def __str__(self) -> str:
        raw = zlib.compress(msgspec.msgpack.encode((self._epoch, self._positions)), 1)
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def resume(after: str | None, *, epoch: str, reaches: Mapping[str, Reach]) -> Cursor:
    """The positions to go on from. ``reaches`` are all sessions, by name."""
    if after is None:
        return Cursor(epoch, {_short(name): (0, reach.newest) for name, reach in reaches.items()})
    found, positions = _parse(after)
    known = {_short(name): reach for name, reach in reaches.items()}
    if found != epoch or any(
        name not in known or ordinal > known[name].newest for name, (ordinal, _) in positions.items()
    ):
        raise rules.other_past()
    for name, reach in known.items():
        ordinal, scan = positions.get(name, (0, 0))
        if reach.trimmed > ordinal >= scan:
            raise rules.missed()
    return Cursor(epoch, positions)


def _short(name: str) -> bytes:
    """Enough of a session's name to tell it from all others."""
    return bytes.fromhex(name[:20])


def _parse(text: str) -> tuple[str, dict[bytes, tuple[int, int]]]:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        unpacker = zlib.decompressobj()
        # A cursor comes from outside: what it unpacks to is bounded.
        return _decoder.decode(unpacker.decompress(raw, _LONGEST))
    except (ValueError, binascii.Error, zlib.error, msgspec.MsgspecError) as error:
        raise rules.no_cursor() from error


def at_the_end(text: str) -> str:
    """The cursor of a scan that has just begun, moved to where that scan ends."""
    epoch, positions = _parse(text)
    return str(Cursor(epoch, {name: (max(ordinal, scan), 0) for name, (ordinal, scan) in positions.items()}))
