"""Cursors of the list of changes in PostgreSQL.

Transactions become visible in another order than the one in which they took their numbers, so no number says what
has been read; a snapshot does. A cursor is the store's epoch and a snapshot: everything it sees was read. While the
way from one snapshot to the next takes several pages, the cursor names both and the last row given.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from perdure.errors import CursorExpired, InvalidInput

_SNAPSHOT = r"[0-9]{1,19}:[0-9]{1,19}:[0-9,]{0,20000}"
_FORM = re.compile(rf"([0-9a-f]{{1,64}})/({_SNAPSHOT})?(?:/({_SNAPSHOT})/([0-9]{{1,19}})/([0-9]{{1,18}}))?", re.ASCII)


class Cursor(NamedTuple):
    """A place in the list of changes. ``old`` None: a scan from the beginning; ``new`` None: up to now."""

    epoch: str
    old: str | None = None
    new: str | None = None
    pos: str | None = None
    seq: int | None = None

    def __str__(self) -> str:
        way = f"/{self.new}/{self.pos}/{self.seq}" if self.new else ""
        return f"{self.epoch}/{self.old or ''}{way}"


def parse(after: str | None) -> Cursor:
    """The cursor that was given out as this text; None is the beginning.

    >>> str(parse("e0/7:9:7")), str(parse("e0//7:9:7/8/1"))
    ('e0/7:9:7', 'e0//7:9:7/8/1')
    """
    if after is None:
        return Cursor("")
    match = _FORM.fullmatch(after)
    if match is None or not (match[2] or match[3]):
        raise InvalidInput("this is not a cursor: pass one that changes() gave, or None for the beginning")
    return Cursor(match[1], match[2], match[3], match[4], None if match[5] is None else int(match[5]))


def other_past() -> CursorExpired:
    """The store's epoch is another one."""
    return CursorExpired("this cursor is from before the store's past changed: scan again from the beginning")


def missed() -> CursorExpired:
    """Rows were deleted that the cursor has not read."""
    return CursorExpired("changes after this cursor were deleted before they were read: scan again from the beginning")
