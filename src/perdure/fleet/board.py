"""The board of a database, and giving work to a fleet by it: a session, a message in its inbox, and its place there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from perdure.agent.models.parts import packed
from perdure.errors import InvalidInput
from perdure.history.hydrate import find
from perdure.protocols import Boarded, NewWork
from perdure.session.handover import work_of
from perdure.session.journal import check_not_closed
from perdure.system.flow import Do, Flow, awaited, sync
from perdure.system.names import check_name, check_session

if TYPE_CHECKING:
    from perdure.database import DatabaseHandle
    from perdure.model import SessionRow
    from perdure.protocols import Board, Work


def board_of(db: DatabaseHandle) -> Board:
    """The board beside the sessions of a database; an error says where there is none. Blocks when first asked."""
    store = db.kernel.store
    if not isinstance(store, Boarded):
        kind = db.url.partition("://")[0]
        raise InvalidInput(
            f"a fleet cannot work on {kind}: use sqlite:///… on one machine, postgresql://… on many "
            "(a cache may stand before it: tiered:redis://…,postgresql://…)"
        )
    return store.board()


MOST = 1_000_000
"""So many sessions may be queued unless told otherwise."""


def submit_flow(
    db: DatabaseHandle,
    session: str,
    message: Any = None,
    *,
    agent: str,
    owner: str = "",
    key: str | None = None,
    priority: int | None = None,
    ttl: Any = "default",
    most: int | None = MOST,
) -> Flow[bool]:
    """Have a fleet work on a session: it is made if need be, and the message is put into its inbox; durably.

    ``agent`` is the name of the agent that has it; ``key`` makes this safe to repeat; larger ``priority`` goes first,
    and without it the session keeps what it has (0 at first); with ``most`` queued already it is refused with
    ``LimitExceeded``: slow down. False when the key was there already.
    """
    check_session(session)
    check_name(agent, "agent")
    if priority is not None and not -1000 <= priority <= 1000:
        raise InvalidInput(f"a priority is between -1000 and 1000, not {priority}")
    board: Board = yield Do(board_of, (db,))
    fresh = yield from db.create_flow(session, agent=agent, owner=owner, ttl=ttl)
    if not fresh:
        row: SessionRow | None = yield Do(find, (db.kernel, session))
        if row is not None:
            yield Do(check_not_closed, (db.kernel, row))
    if priority is None:
        there: Work | None = None if fresh else (yield Do(work_of, (board, session)))
        priority = there.priority if there is not None else 0
    if message is not None:
        fresh = yield from db.posting.post(session, packed(message), key=key or os.urandom(12).hex())
    # Last: whoever is killed before it leaves a session with something to do, which a worker finds by itself.
    yield Do(lambda: board.put([NewWork(session, agent, owner, priority)], most=most))
    return fresh


submit = sync(submit_flow)
submit_async = awaited(submit_flow)
