"""What a fleet is doing, and why a session is where it is, for people and pages; and the few things they can wish.

They can have workers go, pause and retry sessions, and say what became of calls in doubt. Why a session is where it is
and what to do next is told in two plain sentences, from its row, the book at its head (effects, approvals, the last
error), its inbox, its lease, and the board: nothing is written for that and no lease is taken.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import InvalidInput, NotFound, PerdureError
from perdure.fleet.board import board_of, check_boarded
from perdure.history.hydrate import known
from perdure.model import MAIN, Status
from perdure.protocols import Filter, NewWork
from perdure.session.actions import Action, Do
from perdure.session.calls.decisions import reported
from perdure.session.calls.other_branches import done_elsewhere
from perdure.session.calls.records import call_of
from perdure.session.handover import CALLER, Handover, hand_over, made_board, served_by
from perdure.session.posting import AT_REST, is_to_stop
from perdure.state.document import plain
from perdure.system.commands import typed
from perdure.system.lease_holders import is_dead
from perdure.system.names import check_session

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.aio import AsyncDatabase
    from perdure.database import DatabaseHandle
    from perdure.model import SessionRow
    from perdure.protocols import Board, Work, WorkerRow

DEEDS = ("pause", "unpause", "retry")
PAGE = 1000
"""Sessions of a board that are read at once."""


class Fleet(NamedTuple):
    """A fleet at one moment."""

    workers: list[WorkerRow]
    agents: dict[str, dict[str, int]]
    """How many sessions are in which state, by agent."""
    unserved: list[str]
    """Agents with something to do that no worker has."""
    held: list[str]


def fleet_of(db: DatabaseHandle) -> Fleet:
    """How a fleet stands. Blocks while it reads."""
    check_boarded(db)
    if (board := made_board(db.kernel.store)) is None:
        return Fleet([], {}, [], [])
    workers, at_work = board.workers(), _at_work(board)
    agents: dict[str, Counter[str]] = {}
    for (agent, state), number in board.counts().items():
        agents.setdefault(agent, Counter())[state] = number
    for work in at_work:
        if is_dead(work.worker):
            # Nobody works on it: the next worker that comes finds that out, and queues it.
            states = agents.setdefault(work.agent, Counter())
            states.update(queued=1, working=-1)
    # What a worker said of itself is as old as its last sign of life.
    busy = Counter(work.worker for work in at_work if not is_dead(work.worker))
    workers = [w._replace(busy=busy[w.id]) for w in workers]
    served = served_by(workers)
    waiting = sorted(a for a, states in agents.items() if a not in served and states.get("queued"))
    return Fleet(workers, {a: dict(+states) for a, states in agents.items()}, waiting, board.held())


def _at_work(board: Board) -> list[Work]:
    """All sessions that a worker has claimed."""
    found: list[Work] = []
    while works := board.works(Filter(state="working"), after=found[-1].session if found else None, limit=PAGE):
        found += works
    return found


def drain_workers(db: DatabaseHandle, which: str | None, *, wait: float, here: bool) -> tuple[int, int]:
    """Tell workers to go; how many were told, and how many of them are still there after the wait."""
    board = board_of(db)
    known = [w.id for w in board.workers() if _is_meant(w, which, here)]
    if which is not None and not known:
        raise NotFound(f"there is no worker {which[:80]!r}: {typed('workers', db.url)} lists them")
    # Who has died hears nothing, and is there until the next worker comes.
    meant = [worker for worker in known if not is_dead(worker)]
    told = sum(board.wish(worker, "drain") for worker in meant)
    end = time.monotonic() + wait
    left = _left(board, meant)
    while left and time.monotonic() < end:
        time.sleep(0.1)
        left = _left(board, meant)
    return told, left


def _is_meant(w: WorkerRow, which: str | None, here: bool) -> bool:
    return (which is None or which in (w.id, str(w.pid))) and (not here or w.host == os.uname().nodename)


def _left(board: Board, meant: Sequence[str]) -> int:
    return sum(w.id in meant and not is_dead(w.id) for w in board.workers())


def steer(db: DatabaseHandle, sessions: Iterable[str], do: str) -> int:
    """Pause, unpause or retry sessions by their names; how many were changed. Blocks."""
    return change(db, [known(db.kernel, check_session(session)) for session in dict.fromkeys(sessions)], do)


def change(db: DatabaseHandle, chosen: Sequence[SessionRow], do: str, *, on_board: bool = False) -> int:
    """Pause, unpause or retry sessions; how many were changed, or are tried again.

    To be paused or tried again they are put on the board if they are not there: also a session that a parent works on
    is nobody's then. ``on_board``: only those are meant that are there, since what keeps the others is said elsewhere.
    Those that name no agent, and to be tried again those that a person has paused, or in which there is nothing to do,
    no worker takes: they are not counted.
    """
    if do not in DEEDS:
        raise InvalidInput(f"what is done to a session is one of {', '.join(DEEDS)}, not {do!r:.40}")
    board = board_of(db)
    if do == "retry":
        chosen = to_retry(db, chosen)
    if not chosen:
        return 0
    meant = Filter(sessions=tuple(row.id for row in chosen))
    # What is there keeps its priority.
    there = {w.session: w.priority for w in board.works(meant, limit=len(chosen))}
    if do == "pause" and not on_board:
        board.put([NewWork(row.id, row.agent, row.owner) for row in chosen if row.agent and row.id not in there])
    if do != "retry":
        return board.change(meant, do, db.kernel.clock.wall())
    board.put([NewWork(row.id, row.agent, row.owner, there.get(row.id, 0)) for row in chosen if row.agent])
    board.change(meant, do, db.kernel.clock.wall())
    # Counted by what came of it: those that no worker was kept from are tried again.
    return sum(w.queued or bool(w.worker) for w in board.works(meant, limit=len(chosen)))


def to_retry(db: DatabaseHandle, rows: Sequence[SessionRow]) -> list[SessionRow]:
    """Those of them in which there is something to do. Blocks."""
    return [row for row in rows if row.status not in AT_REST or not _is_at_rest(db, row)]


def _is_at_rest(db: DatabaseHandle, row: SessionRow) -> bool:
    # Only here: it knows agents, and who merely looks at a fleet need not load them.
    from perdure.fleet.why.answer import OK
    from perdure.fleet.why.reading import of_row

    try:
        found = of_row(db, row)
        # One that was stopped goes on by none of these: whoever tries it finds nothing to do.
        stopped = row.status != Status.IDLE and found.do in (Do.RESOLVE, Do.OUTCOME, Do.REOPEN, Do.PROGRAM_REOPENS)
        return found.severity == OK or stopped
    except PerdureError:
        # Whoever tries it says what is wrong with it.
        return False


def to_stop(db: DatabaseHandle, rows: Sequence[SessionRow]) -> list[SessionRow]:
    """Those of them in which there is anything to stop. Blocks."""
    return [row for row in rows if is_to_stop(db.kernel, row)]


VERDICTS = ("done", "retry", "abort")
"""What can be said of a call in doubt: it happened; it did not, and may be made again; it did not, and is given up."""


class Doubted(NamedTuple):
    """A call that was started and whose outcome nobody knows."""

    branch: str
    record: dict[str, Any]


async def doubts_in(db: AsyncDatabase, row: SessionRow, *, left: bool = False) -> list[Doubted]:
    """The calls in doubt of a session whose outcome nobody has reported since; on those that a branch has from the
    line it parted from, main has the word.

    With ``left`` also those that somebody had started who is gone: nobody has gone on with them since.
    """
    alone = not row.lease.holder or row.lease.until <= row.now or is_dead(row.lease.holder)
    statuses = ("in_doubt", "started") if left and alone else ("in_doubt",)
    found: list[Doubted] = []
    seen: set[str] = set()
    for branch in row.branches:
        reading = await db.read(row.id, branch=branch, migrate=False)
        book = await db.driver.call(plain, reading.book)
        doubts = [r for r in book.get("effects", {}).values() if r["status"] in statuses and r["id"] not in seen]
        if doubts and row.lines > 1:
            at = reading.checkpoint.line, reading.step
            done = await db.driver.call(done_elsewhere, db.kernel, row.id, at, book)
            doubts = [r for r in doubts if r["id"] not in done]
        told = await db.driver.call(reported, db.kernel, row, [r["id"] for r in doubts])
        found += [Doubted(branch, record) for record in doubts if record["id"] not in told]
        seen |= {record["id"] for record in book.get("effects", {}).values()}
    return found


async def settle(
    db: AsyncDatabase, session: str, effect: str, branch: str, *, by: str, verdict: str, result: Any = None,
    wake: bool = True,
) -> tuple[dict[str, Any], Handover]:  # fmt: skip
    """Say what became of one call, with the session's lease, and wake it; the call's record, and who goes on then.

    With ``wake=False`` the caller is about to go on with the session himself.
    """
    if verdict not in VERDICTS:
        raise InvalidInput(f"what became of a call is one of {', '.join(VERDICTS)}, not {verdict!r:.40}")
    # Only here: who merely looks at a fleet need not load how agents run.
    from perdure.agent.branching_off import open_as_stored

    said: dict[str, Any] = {"done": result} if verdict == "done" else {verdict: True}
    async with await open_as_stored(db, session, branch) as s:
        await s.resolve(effect, by=by, **said)
        effects = s.effects()
    record = next(e for e in effects if e["id"] == effect)
    if not wake:
        return record, CALLER
    if others := [e for e in effects if e["status"] == "in_doubt" and not await _is_told(db, session, e["id"])]:
        first = others[0]
        calls = "1 more call is" if len(others) == 1 else f"{len(others)} more calls are"
        settles = Action(Do.RESOLVE, session, first["id"], branch, db.url).command
        words = f"{calls} in doubt, and it does not go on before that is settled: {call_of(first)}: {settles}"
        return record, Handover("nobody", words)
    # Only now: the lease is free for whoever comes.
    row = await db.look(session)
    if branch == MAIN and row.agent and row.status in (Status.IDLE, Status.SLEEPING) and not row.pending:
        # It has answered: whoever ran it would find nothing to do. That of a call counts when it is asked for again.
        becomes = "This result is given" if verdict == "done" else "It is made"
        say = Action(Do.MESSAGE, session, store=db.url).command
        words = f"The session has answered: nobody goes on with it for that. {becomes} when agent {row.agent} asks for "
        return record, Handover("nobody", f"{words}the same call again ({say}).")
    return record, await db.driver.call(hand_over, db.kernel, row, branch)


async def _is_told(db: AsyncDatabase, session: str, effect: str) -> bool:
    """Whether what became of a call waits in the inbox."""
    return bool(await db.driver.call(db.kernel.store.inbox, session, 1, f"outcome:{effect}"))


async def to_resolve(db: AsyncDatabase, rows: Sequence[SessionRow]) -> list[SessionRow]:
    """Those of them that have calls of which nobody knows what became of them."""
    found: list[SessionRow] = []
    for row in rows:
        try:
            open = bool(await doubts_in(db, row, left=True))
        except PerdureError:
            # Whoever settles them says what is wrong with it.
            open = True
        found += [row] if open else []
    return found


async def settle_all(db: AsyncDatabase, session: str, *, by: str, verdict: str, result: Any = None) -> int:
    """Say the same of every call of a session of which nobody knows what became of it; how many there were."""
    found = await doubts_in(db, await db.look(session), left=True)
    for one in found:
        await settle(db, session, one.record["id"], one.branch, by=by, verdict=verdict, result=result)
    return len(found)
