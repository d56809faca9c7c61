"""Reads what there is to know of a session, and asks for the decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from perdure.agent.requests import AGENT, is_answer
from perdure.errors import ContextTooLong, NotFound, RequestRefused
from perdure.fleet.inputs import READ, waiting_in
from perdure.fleet.why.answer import ACT, Why
from perdure.fleet.why.decision import gone, not_begun, told
from perdure.fleet.why.facts import Facts, Trail, call_behind, calls_at, child_of, failures_here, is_taken_up, unfit_in
from perdure.fleet.why.wording import error_in
from perdure.history.checkpoint import OBJECTIVE, Checkpoint, is_objective
from perdure.history.expiry import expired
from perdure.history.hydrate import find, load_head
from perdure.history.reader import history
from perdure.model import MAIN, Kind, Status
from perdure.session.calls.decisions import decided, pending
from perdure.session.calls.other_branches import done_elsewhere
from perdure.session.calls.read_cache import claim_of
from perdure.session.handover import (
    close_to,
    fitting,
    kept_back,
    lives,
    made_board,
    misfit_of,
    obstacle_of,
    others_served,
    served_by,
    work_of,
)
from perdure.session.waiting_messages import REFUSED, messages_of
from perdure.state.document import BOOK, STATE, plain
from perdure.system.commands import about
from perdure.system.flow import check_awaited, check_open, used_awaited
from perdure.system.names import check_session
from perdure.upkeep.expired_sessions import set_aside

if TYPE_CHECKING:
    from perdure.aio import AsyncDatabase
    from perdure.database import DatabaseHandle
    from perdure.kernel import Kernel
    from perdure.model import SessionRow
    from perdure.protocols import Board

_OF_ANY_BRANCH = ("decision", "outcome", "returned", "failure")
"""Inputs that a branch takes; all others are main's."""
PARKED = "Parked"
"""What stands for an error in a session that is parked although none was recorded."""
_DEEP = 5
"""So far sessions that work for sessions are followed."""
_REFUSALS = (RequestRefused.__name__, ContextTooLong.__name__)
"""Errors that speak of what the model was sent."""
_LOOKS = 3
"""How often a board that changes meanwhile is read again."""
_SEARCHED = 200
"""How many checkpoints are looked through for the last one that got further."""
_TRIES = (
    Kind.STARTED, Kind.PLANNED, Kind.PROGRESS, Kind.RUN_STARTED, Kind.IN_DOUBT, Kind.RETRYING, Kind.MIGRATED,
    Kind.REOPENED, Kind.REVIVED,
)  # fmt: skip
"""What a session writes while it is tried again at the same place."""


def why(db: DatabaseHandle, session: str, *, branch: str = MAIN) -> Why:
    """Why a session is where it is, and what to do next. Takes no lease and changes nothing.

    It blocks while it reads; ``NotFound`` when there is no such session.
    """
    check_open(db, "perdure.why")
    row = find(db.kernel, check_session(session))
    if row is None:
        raise NotFound(f"there is no session {session!r} in {db.url}")
    return of_row(db, row, branch)


@used_awaited("perdure.why_async")
async def why_async(db: AsyncDatabase, session: str, *, branch: str = MAIN) -> Why:
    """The same as :func:`why`, awaited."""
    check_awaited(db, "perdure.why_async")
    return await db.driver.call(why, db, session, branch=branch)


def of_row(db: DatabaseHandle, row: SessionRow, branch: str = MAIN, depth: int = 0) -> Why:
    """The same for a row that was just read."""
    with about(db.url):
        found = _of_row(db, row, branch, depth)
    return found._replace(actions=tuple(action._replace(store=db.url) for action in found.actions))


def _of_row(db: DatabaseHandle, row: SessionRow, branch: str, depth: int) -> Why:
    if row.heads:
        facts = gather(db, row, branch, depth)
        return told(facts)._replace(objective=facts.objective)
    if row.reason:
        can_come_back = bool(set_aside(db.kernel, row.id))
        return gone(row, waiting_in(db.kernel, row), db.kernel.clock.wall(), can_come_back)
    now = db.kernel.clock.wall()
    return not_begun(row, waiting_in(db.kernel, row), now)


def gather(db: DatabaseHandle, row: SessionRow, branch: str = MAIN, depth: int = 0) -> Facts:
    """Read what there is to know."""
    kernel = db.kernel
    loaded = load_head(kernel, row, branch)
    assert loaded.point is not None
    book: dict[str, Any] = plain(loaded.doc[BOOK])
    inbox = waiting_in(kernel, row)
    if branch != MAIN:
        inbox = [entry for entry in inbox if entry.kind in _OF_ANY_BRANCH]
    facts = Facts(row, Checkpoint(loaded.point), book, inbox, None, None, False, kernel.clock.wall())
    if is_objective(objective := plain(loaded.doc[STATE].get(OBJECTIVE))):
        facts = facts._replace(objective=objective)
    facts = facts._replace(decided=decided(kernel, row, pending(book, facts.head.line)), over=expired(kernel, row))
    if row.lines > 1:
        at = facts.head.line, facts.head.step
        facts = facts._replace(done_elsewhere=done_elsewhere(kernel, row.id, at, book))
    notes: dict[str, Any] = book.get(AGENT) or {}
    if notes.get("parent"):
        facts = facts._replace(parent=str(notes["parent"]["session"]))
    if branch != MAIN:
        messages: Any = plain(loaded.doc[STATE]).get("messages")
        facts = facts._replace(unanswered=bool(messages) and _role(messages) == "user")
    elif (board := made_board(kernel.store)) is not None:
        facts = _on_the_board(board, facts)
    if facts.head.status == Status.FAILED or (facts.work is not None and (facts.work.parked or failures_here(facts))):
        facts = facts._replace(trail=_trail(kernel, row, branch))
    if facts.head.status == Status.RUNNING and (working := calls_at(facts, "started")):
        facts = facts._replace(begun=_begun(kernel, row, branch, working[0]["id"]))
    failed = facts.head.more.get("error") if branch == MAIN and facts.head.status == Status.FAILED else None
    if failed in _REFUSALS and (keys := notes.get(REFUSED)):
        refused = (m for m in messages_of(kernel, row.id, READ) if m.key in keys and m.kind == "message")
        facts = facts._replace(refused=tuple(refused))
    child = next((h for e in calls_at(facts, "waiting") if (h := child_of(e))), None)
    if child is not None and depth < _DEEP:
        facts = facts._replace(child=_of_child(db, child, depth))
    return _with_claim(db, facts, depth)


def _begun(kernel: Kernel, row: SessionRow, branch: str, effect: str) -> int | None:
    """When the last attempt at a call began: it is written down by itself, or with the answer that asks for it."""
    for point in history(kernel, row.id, branch, _SEARCHED, None):
        x = point.envelope.x
        if (point.envelope.kind == Kind.STARTED and x.get("effect") == effect) or effect in x.get("effects", ()):
            return point.envelope.at
    return None


def _of_child(db: DatabaseHandle, child: dict[str, Any], depth: int) -> Why | None:
    """Why the session of a child stands where it stands; also of one that is held and was never made."""
    session = str(child["session"])
    if (found := db.kernel.store.look(session)) is not None:
        return of_row(db, found, depth=depth + 1)
    agent = str(child.get("agent", ""))
    if not agent or (obstacle := kept_back(db.kernel.store, session, agent)) is None:
        return None
    return Why(obstacle.line, obstacle.next, ACT, (obstacle.action,))


def _with_claim(db: DatabaseHandle, f: Facts, depth: int) -> Facts:
    """The same, with what is known of the session that was first with the same call."""
    if (first := call_behind(f)) is None:
        return f
    f = f._replace(claim=claim_of(db.kernel, f.row.owner, first["cache"]["name"]))
    if f.claim is None or f.claim.session == f.row.id or depth >= _DEEP:
        return f
    if (found := db.kernel.store.look(f.claim.session)) is None:
        return f
    return f if found.reason else f._replace(ahead=of_row(db, found, depth=depth + 1))


def _role(messages: Any) -> Any:
    """Who said the last message; None when it is no message: a program may put there what it likes."""
    last = cast("Any", messages)[-1] if isinstance(messages, list) else None
    return cast("dict[str, Any]", last).get("role") if isinstance(last, dict) else None


def _on_the_board(board: Board, f: Facts) -> Facts:
    rows, work = board.workers(), work_of(board, f.row.id)
    for _ in range(_LOOKS):
        if work is None or not work.worker or any(w.id == work.worker for w in rows):
            break
        # Whoever claims is known from then on: it came since, or has gone.
        rows, work = board.workers(), work_of(board, f.row.id)
    held = board.held()
    agent = f.row.agent or (work.agent if work is not None else "")
    if agent:
        alive = work is not None and any(lives(w) for w in rows if w.id == work.worker)
        served = agent in served_by(rows if work is None else fitting(work, rows))
        f = f._replace(work=work, served=served, held=agent in held, at_work=alive)
        f = f._replace(misfit=None if work is None else misfit_of(work, rows, unfit_in(f)))
        if not served and f.misfit is None:
            # One that has worked on it is its own, whoever is there now.
            likely = [] if f.book.get(AGENT) else close_to(agent, served_by(rows))
            f = f._replace(others=others_served(agent, rows), meant=likely[0] if likely else "")
    if f.parent and (above := work_of(board, f.parent)) is not None:
        free = above.agent in served_by(fitting(above, rows)) and not obstacle_of(above, above.agent in held)
        f = f._replace(polled=free and is_taken_up(above))
    return f


def _trail(kernel: Kernel, row: SessionRow, branch: str) -> Trail | None:
    """Back to where it last wrote something that was not merely another try at the same place."""
    error, last = "", None
    for point in history(kernel, row.id, branch, _SEARCHED, None):
        last = point.envelope
        if is_answer(last.x) or (last.kind not in _TRIES and not last.x.get("error")):
            break
        if not error and last.x.get("error") not in (None, "", PARKED):
            error = f"at step {last.step}: {error_in(last.x)}"
    return None if last is None else Trail(last.at, last.step, error)
