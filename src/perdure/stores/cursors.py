"""Cursors of the list of changes, for stores that number their commits one after the other.

A cursor names the store's epoch, the last number given out, and where the scan that it belongs to
ends: the newest number when somebody began to read from the beginning. Until that scan has got there,
nothing can be missed (what was trimmed before is simply not part of it); afterwards, every commit that
is trimmed before it was read has been missed, and the cursor has expired.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from perdure.stores import rules

if TYPE_CHECKING:
    from perdure.protocols import Store

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
        raise rules.no_cursor()
    cursor = Cursor(match[1], int(match[2]), int(match[3]))
    if cursor.epoch != epoch or cursor.seq > newest:
        raise rules.other_past()
    if trimmed > cursor.seq >= cursor.scan:
        raise rules.missed()
    return cursor


def latest(store: Store) -> str:
    """A cursor behind the newest change, without reading those before it.

    A scan that begins says in its cursor where it will end: that is where this one stands.
    """
    # The cursors of the other stores: not loaded before somebody asks.
    from perdure.stores.file import changes
    from perdure.stores.postgres import rows

    said = store.changes(None, 1).cursor
    if "/" in said:
        snapshot = rows.parse(said)
        return str(rows.Cursor(snapshot.epoch, snapshot.new or snapshot.old))
    epoch, dot, rest = said.partition(".")
    if dot:
        seq, _, scan = rest.partition(".")
        newest = max(int(seq), int(scan))
        return str(Cursor(epoch, newest, newest))
    return changes.at_the_end(said)
