"""The board of a database, and giving work to a fleet by it: a session, a message in its inbox, and its place there."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from perdure.agent.conversation import check_message
from perdure.agent.models.parts import packed
from perdure.errors import InvalidInput, LimitExceeded, PerdureError
from perdure.history.hydrate import find, load_head
from perdure.model import MAIN, Kind
from perdure.protocols import Boarded, NewWork
from perdure.session.actions import Action
from perdure.session.actions import Do as ToDo
from perdure.session.handover import Handover, close_to, hand_over, served_by, work_of, workers_of
from perdure.session.inbox import seal_entry
from perdure.session.journal import check_not_closed
from perdure.state.document import BOOK
from perdure.system.commands import door
from perdure.system.flow import Do, Flow, awaited, check_open, sync
from perdure.system.names import check_name, check_own_session, check_ttl

if TYPE_CHECKING:
    from perdure.agent.agent import Agent
    from perdure.database import DatabaseHandle
    from perdure.kernel import Kernel
    from perdure.model import SessionRow
    from perdure.protocols import Board, Work


def board_of(db: DatabaseHandle) -> Board:
    """The board beside the sessions of a database; an error says where there is none. Blocks when first asked."""
    check_open(db, "board_of")
    return check_boarded(db).board()


def check_boarded(db: DatabaseHandle) -> Boarded:
    """The store of a database, on which a fleet can work; an error says where it cannot."""
    store = db.kernel.store
    if not isinstance(store, Boarded):
        kind = db.url.partition("://")[0]
        raise InvalidInput(
            f"a fleet cannot work on {kind}: use sqlite:///… on one machine, postgresql://… on many "
            "(a cache may stand before it: tiered:redis://…,postgresql://…)"
        )
    return store


log = logging.getLogger("perdure.fleet")
ANSWERED = Handover("nobody", "It was answered already.")
"""What becomes of a message that is said again when it has its answer: nobody is given anything to do."""
MOST = 1_000_000
"""So many sessions may be queued unless told otherwise."""


class Submission(NamedTuple):
    """What came of giving a session to a fleet; true when it, or its message, is new."""

    new: bool
    handover: Handover
    """Who goes on with it; ``unserved`` when no worker has its agent."""
    instead_of: str = ""
    """The agent that had it, and that nobody serves, when it was given to another one."""

    def __bool__(self) -> bool:
        return self.new


def submit_flow(
    db: DatabaseHandle,
    session: str,
    message: Any = None,
    *,
    agent: str | Agent,
    owner: str = "",
    key: str | None = None,
    priority: int | None = None,
    ttl: Any = "default",
    most: int | None = MOST,
) -> Flow[Submission]:
    """Have a fleet work on a session: it is made if need be, and the message is put into its inbox; durably.

    ``agent`` is the agent that has it, or its name; one whose tools need ``deps`` and that opens none is refused, since
    no worker could give it any. ``key`` makes this safe to repeat; larger ``priority`` goes first,
    and without it the session keeps what it has (0 at first); with ``most`` queued already it is refused with
    ``LimitExceeded``: slow down. What is returned is false when the key was there already (``Gone`` when that message
    was withdrawn); its ``handover`` says who goes on with it, or that no worker has this agent. A session that was
    given to one that nobody serves, and that has not worked on it, can be given to another one: without a message, or
    with one while a worker has that agent.
    """
    check_own_session(session)
    if not isinstance(agent, str):
        # Only here: whoever submits by name need not load how agents run.
        from perdure.agent.agent import Agent
        from perdure.agent.dependencies import check_deps

        if not isinstance(cast("Any", agent), Agent):
            raise InvalidInput(f"agent is the agent that works on it, or its name, not {agent!r:.60}")
        check_deps(agent)
        agent = agent.name
    check_name(agent, "agent's name")
    if message is not None:
        check_message(message)
    # All that can be refused is, before a session is made or anything is said to it.
    key = check_name(key, "message key") if key is not None else os.urandom(12).hex()
    if message is not None:
        seal_entry(db.kernel, session, key, "message", message := packed(message))
    if ttl != "default":
        check_ttl(ttl)
    if priority is not None and (type(priority) is not int or not -1000 <= priority <= 1000):
        raise InvalidInput(f"priority is a whole number between -1000 and 1000, not {priority!r:.40}")
    if most is not None and (type(most) is not int or most < 1):
        raise InvalidInput(f"most is how many sessions may be queued, or None for any number, not {most!r:.40}")
    board: Board = yield Do(board_of, (db,))
    if most is not None:
        yield Do(_check_room, (board, session, most))
    before = yield from given_anew_flow(db, session, agent, owner, says=message is not None)
    fresh = made = yield from db.create_flow(session, agent=agent, owner=owner, ttl=ttl)
    if not fresh:
        row: SessionRow | None = yield Do(find, (db.kernel, session))
        if row is not None:
            yield Do(check_not_closed, (db.kernel, row, "then submit it again"))
    if priority is None:
        there: Work | None = None if fresh else (yield Do(work_of, (board, session)))
        priority = there.priority if there is not None else 0
    if message is not None:
        fresh = yield from db.posting.post(session, message, key=key)
        if not fresh and (yield Do(_is_answered, (db, session, key))):
            return Submission(fresh, ANSWERED, before)
    # Last: whoever is killed before it leaves a session with something to do, which a worker finds by itself.
    try:
        yield Do(lambda: board.put([NewWork(session, agent, owner, priority)], most=most))
    except PerdureError as e:
        # Others were faster since there was room, or the board cannot be reached.
        e.kept, e.message_key = message is not None, key if message is not None else ""
        raise
    handed: Handover = yield Do(_handed, (db, session))
    if not handed.unserved or not (served := served_by((yield Do(board.workers)))):
        return Submission(fresh, handed, before)
    if made and (likely := close_to(agent, served)):
        gives = Action(ToDo.SUBMIT, session, likely[0]).here
        handed = handed._replace(words=f"{handed.words} Or give it to {likely[0]}: {gives}.")
    if door() == "program":
        # Whoever does not look at what is returned is told, too: it would lie there for ever.
        log.warning("session %r was submitted, and waits: %s", session, handed.words)
    return Submission(fresh, handed, before)


def _check_room(board: Board, session: str, most: int) -> None:
    """Refuse one more session where so many are queued; one that is queued itself is none more."""
    try:
        board.put((), most=most - 1)
    except LimitExceeded:
        there = work_of(board, session)
        if there is None or not there.queued:
            raise LimitExceeded(
                f"{most} sessions are queued, which is the limit, and nothing was submitted: wait until some are done, "
                "start more workers, or raise the limit, submit(most=...)"
            ) from None


def _handed(db: DatabaseHandle, session: str) -> Handover:
    row = find(db.kernel, session)
    return hand_over(db.kernel, row) if row is not None else Handover("nobody", "It is gone.")


def _is_answered(db: DatabaseHandle, session: str, key: str) -> bool:
    """Whether a message that was said before has its answer; ``Gone`` when nobody takes it up any more."""
    # Only here: whoever submits by name need not load how agents run, and most messages are new.
    from perdure.agent.said_once import answer_of

    return answer_of(db.kernel, session, key, MAIN) is not None


def given_anew_flow(db: DatabaseHandle, session: str, agent: str, owner: str = "", *, says: bool) -> Flow[str]:
    """A session of an agent that nobody serves, and that never worked on it, is given to another one.

    Who ``says`` something to a session means one that has this agent: while no worker does either, nobody can tell a
    slip from a name that two have taken, and it is refused. Without a message it is to be given to the agent, and to
    nothing else. Answers which one had it; "" where it stays as it is.
    """
    row: SessionRow | None = yield Do(find, (db.kernel, session))
    if row is None or row.over or row.agent in ("", agent) or not any(head.branch == MAIN for head in row.heads):
        return ""
    served = served_by((yield Do(workers_of, (db.kernel,))))
    if row.agent in served or (yield Do(was_worked_on, (db.kernel, row))):
        return ""
    if says and agent not in served:
        gives = Action(ToDo.SUBMIT, session, agent, store=db.url).here
        raise InvalidInput(
            f"session {session!r} is one of agent {row.agent!r:.80}, not {agent!r:.80}: say that one, or, if that was "
            f"a slip, give it to this one first, without a message: {gives}"
        )
    s = yield from db.as_stored_flow(session, owner=owner)
    try:
        s.journal.settings.agent = agent
        note = f"given to agent {agent!r:.80}: nobody serves {row.agent!r:.80}, which never worked on it"
        yield from s.journal.write(Kind.COMMIT, x={"note": note})
    finally:
        yield from s.release_flow()
    return row.agent


def was_worked_on(kernel: Kernel, row: SessionRow) -> bool:
    """Whether an agent has ever worked on a session: then it stays with that one."""
    return bool(load_head(kernel, row, MAIN).doc[BOOK].get("agent"))


given_anew_async = awaited(given_anew_flow)
submit = sync(submit_flow)
submit_async = awaited(submit_flow)
