"""Cursors of the list of changes, for stores that number their commits one after the other.

A cursor names the store's epoch, the last number given out, and where the scan that it belongs to
ends: the newest number when somebody began to read from the beginning. Until that scan has got there,
nothing can be missed (what was trimmed before is simply not part of it); afterwards, every commit that
is trimmed before it was read has been missed, and the cursor has expired.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from perdure.errors import CursorExpired, InvalidInput

_FORM = re.compile(r"([0-9a-f]{1,64})\.([0-9]{1,18})\.([0-9]{1,18})")


class Cursor(NamedTuple):
    """A place in the list of changes."""

    epoch: str
    seq: int
    scan: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.seq}.{self.scan}"

    def after(self, seq: int) -> Cursor:
        """The cursor behind a change that was read."""
        return self._replace(seq=seq)


def resume(after: str | None, *, epoch: str, newest: int, trimmed: int) -> Cursor:
    """The place to go on from.

    ``newest`` is the number of the newest commit ever written, ``trimmed`` of the newest one deleted.

    >>> str(resume(None, epoch="e0", newest=7, trimmed=3))
    'e0.0.7'
    >>> resume("e0.2.7", epoch="e0", newest=9, trimmed=3).seq
    2
    >>> resume("e0.7.7", epoch="e0", newest=9, trimmed=8)
    Traceback (most recent call last):
    perdure.errors.CursorExpired: changes after this cursor were deleted before they were read: scan again ...
    """
    if after is None:
        return Cursor(epoch, 0, newest)
    match = _FORM.fullmatch(after)
    if match is None:
        raise InvalidInput("this is not a cursor: pass one that changes() gave, or None for the beginning")
    cursor = Cursor(match[1], int(match[2]), int(match[3]))
    if cursor.epoch != epoch or cursor.seq > newest:
        raise CursorExpired("this cursor is from before the store's past changed: scan again from the beginning")
    if trimmed > cursor.seq >= cursor.scan:
        raise CursorExpired(
            "changes after this cursor were deleted before they were read: scan again from the beginning"
        )
    return cursor
