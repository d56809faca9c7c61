"""What becomes of a session on the board when a run of it has ended, in one way or the other."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from perdure.agent import run_result as ended
from perdure.agent.requests import AGENT
from perdure.errors import Busy, Gone, Incompatible, LeaseLost, NotFound, OutcomeUnknown, Unavailable
from perdure.history.hydrate import load_head
from perdure.model import MAIN
from perdure.protocols import Rest
from perdure.session.parallel_calls import OPEN
from perdure.state.document import BOOK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.agent.agent import Agent
    from perdure.agent.run_result import RunResult
    from perdure.database import DatabaseFlows
    from perdure.model import SessionRow
    from perdure.protocols import Work

POLL = 5_000
"""Milliseconds between looks at results that come later and can be asked for."""
FIRST, LONGEST = 1_000, 300_000
"""How long to wait before a failed run is tried again, at first and at most, in ms."""


def wait_before(tries: int) -> int:
    """How long to wait before the next try: doubled each time, and never the same for two sessions at once."""
    return min(LONGEST, int(FIRST * 2 ** (max(tries, 1) - 1) * random.uniform(0.75, 1.25)))


def after_run(
    agents: Iterable[Agent], work: Work, result: RunResult, now: int, *, most: int, version: str, going: bool = False
) -> Rest:
    """How to put a session down after a run that ended with a result.

    ``agents`` are all that may have its conversation now; ``going``: the worker was told to go.
    """
    rest = Rest(work.session, work.step)
    match result.status:
        case ended.STOPPED:
            return rest._replace(again=True)
        case ended.FAILED:
            if work.tries >= most:
                return rest._replace(failed=True, park=f"failed {work.tries} times: {result.reason}"[:500])
            return rest._replace(failed=True, due=now + wait_before(work.tries))
        case ended.INCOMPATIBLE:
            return rest._replace(again=True, avoid_version=version)
        case ended.WAITING_APPROVAL:
            # An expired request is an outcome, and somebody must notice.
            return rest._replace(due=min((a.expires for a in result.approvals), default=None))
        case ended.WAITING_RESULT if going:
            # What it waits for may be a child that was put down between two steps, as this worker goes.
            return rest._replace(again=True)
        case ended.WAITING_RESULT if any(t.poll is not None for agent in agents for t in agent.tools.values()):
            return rest._replace(due=now + POLL)
        case _:
            return rest._replace(due=result.until)


def how_far(db: DatabaseFlows, row: SessionRow) -> int:
    """A number that grows whenever a session gets further: answers, and outcomes of the calls of the last one.

    Its steps do not tell: a call that is tried again and again and kills its worker writes one each time.
    """
    if not any(head.branch == MAIN for head in row.heads):
        return 0
    book = load_head(db.kernel, row, MAIN).doc[BOOK]
    settled = sum(effect["status"] not in OPEN for effect in book.get("effects", {}).values())
    return book.get(AGENT, {}).get("turn", 0) * 10_000 + settled


def after_error(work: Work, error: Exception, now: int, *, most: int, span: int, version: str) -> Rest | None:
    """How to put a session down that could not be run; None when it is nobody's business any more."""
    rest = Rest(work.session, work.step)
    if isinstance(error, LeaseLost):
        # Another one has it, and the board knows, or will as soon as that one's lease ends.
        return rest._replace(due=now + span)
    if isinstance(error, Busy):
        # A person talks to it, or a worker that was thought dead is alive after all.
        return rest._replace(uncounted=True, due=now + max(50, span // 4))
    if isinstance(error, (Gone, NotFound)):
        return rest
    if isinstance(error, Incompatible):
        # Another version of the program has brought it to a schema that this one does not know: it is theirs.
        return rest._replace(again=True, avoid_version=version)
    if isinstance(error, (Unavailable, OutcomeUnknown)):
        # The store is down or full, which is not the session's doing: it is not suspected, nor ever parked for it.
        return rest._replace(uncounted=True, due=now + wait_before(1))
    if work.tries >= most:
        return rest._replace(failed=True, park=f"failed {work.tries} times: {type(error).__name__}: {error}"[:500])
    return rest._replace(failed=True, due=now + wait_before(work.tries))
