"""Giving work to a fleet: a session that names its agent, a message in its inbox, and its place on the board."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from perdure.agent.models.parts import packed
from perdure.boards import NewWork
from perdure.bridge import AsyncDatabase
from perdure.errors import InvalidInput
from perdure.fleet.places import board_of
from perdure.names import check_name, check_session

if TYPE_CHECKING:
    from perdure.database import Database

MOST = 1_000_000
"""So many sessions may be queued unless told otherwise."""


def submit(
    db: Database,
    session: str,
    message: Any = None,
    *,
    agent: str,
    owner: str = "",
    key: str | None = None,
    priority: int = 0,
    ttl: Any = "default",
    most: int | None = MOST,
) -> bool:
    """Have a fleet work on a session: it is made if need be, and the message is put into its inbox; durably.

    ``agent`` is the name of the agent that has it; ``key`` makes this safe to repeat; larger ``priority`` goes first;
    with ``most`` queued already it is refused with ``LimitExceeded``: slow down. False when the key was there already.
    """
    _check(session, agent, priority)
    board = board_of(db)
    made = db.create(session, agent=agent, owner=owner, ttl=ttl)
    fresh = made
    if message is not None:
        fresh = db.post(session, packed(message), key=key or os.urandom(12).hex())
    # Last: whoever is killed before it leaves a session with something to do, which a worker finds by itself.
    board.put([NewWork(session, agent, owner, priority)], most=most)
    return fresh


async def submit_async(
    db: AsyncDatabase,
    session: str,
    message: Any = None,
    *,
    agent: str,
    owner: str = "",
    key: str | None = None,
    priority: int = 0,
    ttl: Any = "default",
    most: int | None = MOST,
) -> bool:
    """The same as :func:`submit`, awaited."""
    _check(session, agent, priority)
    board = await asyncio.to_thread(board_of, db)
    made = await db.create(session, agent=agent, owner=owner, ttl=ttl)
    fresh = made
    if message is not None:
        fresh = await db.post(session, packed(message), key=key or os.urandom(12).hex())
    await asyncio.to_thread(board.put, [NewWork(session, agent, owner, priority)], most=most)
    return fresh


def _check(session: str, agent: str, priority: int) -> None:
    check_session(session)
    check_name(agent, "agent")
    if not -1000 <= priority <= 1000:
        raise InvalidInput(f"a priority is between -1000 and 1000, not {priority}")
