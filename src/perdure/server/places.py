"""Opening a session at a place for a request: to read it as it was stored, or to write it in the schema it has."""

# pyright: reportPrivateUsage=false
# What waits for people is in the kernel's own books, which only readers of the library know.
from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from perdure.errors import NotFound
from perdure.kernel import BOOK
from perdure.tracked import plain

if TYPE_CHECKING:
    from perdure.bridge import AsyncDatabase, Opening
    from perdure.checkpoint import Reading

SHORTEST_ID = 6


async def read_at(db: AsyncDatabase, session: str, at: str | None, branch: str) -> Reading:
    """The state at a place, as it was stored: the server does not have the program's migrations."""
    if at is None or not is_number(at):
        return await db.read(session, at, branch=branch, migrate=False)
    try:
        return await db.read(session, int(at[:18]), branch=branch, migrate=False)
    except NotFound:
        if len(at) < SHORTEST_ID:
            raise
    # A number that is no step may be the beginning of an id that happens to have no letters.
    return await db.read(session, at, branch=branch, migrate=False)


def is_number(text: str) -> bool:
    """Whether a place is a step."""
    return text.isascii() and text.isdigit()


def place_of(at: str | None) -> int | str | None:
    """A place as the library takes it."""
    return int(at[:18]) if at is not None and is_number(at) else at


async def open_as_stored(db: AsyncDatabase, session: str, branch: str, **options: Any) -> Opening:
    """Open a session for writing in the schema that it has, and leave it in that schema."""
    reading = await db.read(session, branch=branch, migrate=False)
    view = copy.copy(db)
    view.kernel = copy.copy(db.kernel)
    view.kernel.schema = reading.checkpoint.schema
    # What validates states is for programs that have the state's type.
    view._state = None
    return view.session(session, branch=branch, create=False, **options)


def book_of(reading: Reading) -> dict[str, Any]:
    """The kernel's book at a checkpoint, as plain values. Reads blobs, so it blocks."""
    return plain(reading._document.root[BOOK])


def root_of(reading: Reading) -> Any:
    """The state at a checkpoint, as it is in memory: blobs are not read before somebody looks."""
    return reading.state
