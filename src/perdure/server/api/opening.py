"""Opening a session at a place for a request: to read it as it was stored, or to write it in the schema it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.agent.branching_off import open_as_stored
from perdure.errors import NotFound

if TYPE_CHECKING:
    from perdure.aio import AsyncDatabase
    from perdure.history.checkpoint import Reading

__all__ = ["is_number", "open_as_stored", "place_of", "read_at", "root_of"]

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


def root_of(reading: Reading) -> Any:
    """The state at a checkpoint, as it is in memory: blobs are not read before somebody looks."""
    return reading.state
