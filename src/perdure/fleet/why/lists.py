"""What lists and metrics say of many sessions, from their rows and the board alone: no session is opened for it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from perdure.fleet.why.facts import is_taken_up
from perdure.model import Status
from perdure.protocols import Filter, Work
from perdure.session.handover import (
    fitting,
    is_worked_on,
    lives,
    made_board,
    misfit_of,
    obstacle_of,
    served_by,
    works_of,
)
from perdure.system.lease_holders import describe, is_dead
from perdure.system.wording import count

if TYPE_CHECKING:
    from perdure.database import DatabaseHandle
    from perdure.model import SessionRow
    from perdure.session.handover import Fleet

PAGE = 1000
"""Sessions of a board that are read at once."""


def glance(row: SessionRow, work: Work | None, fleet: Fleet, now: int) -> str:
    """What a list says of a session, from its row and its place on the board alone: no session is opened for it."""
    # What waits or is in doubt may keep it: only who opens it knows.
    in_doubt = row.status in (Status.IN_DOUBT, Status.RUNNING)
    if row.expires is not None and row.expires <= now and not row.pending and not in_doubt:
        return "its time ran out"
    if said := trouble(row, work, fleet):
        return said
    if row.lease.holder and row.lease.until > now:
        return describe(row.lease.holder)
    if row.error:
        return row.error
    if row.pending:
        return f"{count(row.pending, 'input')} waiting"
    return ""


def trouble(row: SessionRow, work: Work | None, fleet: Fleet) -> str:
    """Why workers get no further with a session, or do not take it, in a few words; "" when that is not so."""
    if work is None:
        return ""
    has_more = bool(row.pending) or row.status in (Status.RUNNING, Status.FAILED)
    if obstacle := obstacle_of(work, work.agent in fleet.held and (has_more or work.paused)):
        return obstacle.line
    if has_more and _is_left(row, work, fleet):
        if misfit := misfit_of(work, fleet.workers):
            return misfit.line
        if work.agent not in served_by(fitting(work, fleet.workers)):
            return f"no worker serves agent {work.agent}"
    if polled_in_vain(row):
        return f"failing, what it waits for is asked for in vain: {row.error}"
    times = failures(row, work)
    return (
        f"failing, at least {times} times at the same place{': ' + row.error if row.error else ''}" if times > 1 else ""
    )


def polled_in_vain(row: SessionRow) -> bool:
    """Whether what a session waits for can be asked for, and the function that does it failed the last time."""
    return row.status == Status.WAITING_RESULT and bool(row.error)


def failures(row: SessionRow, work: Work) -> int:
    """How often workers have failed at the place where a session stands, or died of it, as far as its row tells."""
    ended = work.tries - (bool(work.worker) and not is_dead(work.worker))
    # Where a worker that died had come to, only the book tells, and the next worker then.
    told = work.worker or row.status == Status.FAILED or (work.due is not None and not work.queued)
    return max(0, ended if told else ended - 1)


def _is_left(row: SessionRow, work: Work, fleet: Fleet) -> bool:
    """Whether a session is to be taken up by a worker, and none has it."""
    if row.status in (Status.IN_DOUBT, Status.CLOSED) or not is_taken_up(work) or is_worked_on(row):
        return False
    return not any(lives(w) for w in fleet.workers if w.id == work.worker)


def stuck(db: DatabaseHandle) -> dict[str, int]:
    """How many sessions of which agent workers get no further with, or have put away for that. Blocks."""
    if (board := made_board(db.kernel.store)) is None:
        return {}
    found = Counter({agent: number for (agent, state), number in board.counts().items() if state == "parked"})
    after: str | None = None
    while works := board.works(Filter(tries=2), after=after, limit=PAGE):
        after = works[-1].session
        for work in works:
            row = None if work.parked or work.paused else db.kernel.store.look(work.session)
            if row is not None and failures(row, work) > 1 and not polled_in_vain(row):
                found[work.agent] += 1
    after = None
    while rows := db.kernel.store.sessions(status=Status.WAITING_RESULT, after=after, limit=PAGE):
        after = rows[-1].id
        waiting = [row for row in rows if row.agent and polled_in_vain(row)]
        put_away = {
            session for session, work in works_of(db.kernel.store, [r.id for r in waiting]).items() if work.parked
        }
        found.update(row.agent for row in waiting if row.id not in put_away)
    return dict(found)
