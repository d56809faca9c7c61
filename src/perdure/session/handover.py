"""Waking a session that has something to do: it is handed to the fleet at once, or it is said who could go on with it.

Who decides on an approval, settles a call in doubt or posts from the console ends here, whichever door he came by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from perdure.errors import PerdureError
from perdure.model import MAIN
from perdure.protocols import Boarded, Filter, NewWork
from perdure.session.actions import Action, Do
from perdure.system.lease_holders import describe, is_dead
from perdure.system.wording import count, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.kernel import Kernel
    from perdure.model import SessionRow
    from perdure.protocols import Board, Store, Work, WorkerRow

SILENT = 60_000
"""Milliseconds after which a worker that was not heard of no longer counts as serving its agents."""


class Handover(NamedTuple):
    """Who goes on with a session that has something to do."""

    to: Literal["worker", "holder", "server", "caller", "nobody"]
    """worker: of the fleet, at once; holder: who has its lease; server: the one that was asked; caller: who asked."""
    words: str
    """The same as a sentence; where nobody does, with what to do about it."""


CALLER = Handover("caller", "Whoever decided goes on with it.")


class Obstacle(NamedTuple):
    """Why no worker takes a session that is on the board, and what a person can do about it."""

    line: str
    next: str
    action: Action


def hand_over(kernel: Kernel, row: SessionRow, branch: str = MAIN) -> Handover:
    """Have a worker look at a session now, where there is a fleet for it. Blocks; what was done before stands."""
    if branch != MAIN:
        # Whether the calls of a branch may change anything outside, a person says: no worker runs one by itself.
        return Handover("nobody", f"It is taken up when the branch is run on: {branch}.")
    if not row.agent:
        return Handover("nobody", "Its program takes it up when it calls again.")
    try:
        found = _to_fleet(kernel, row)
    except PerdureError as e:
        # What was said to the session is durable, and a worker finds it by itself.
        return Handover("nobody", f"The board of the fleet could not be told: {e}")
    if found is not None:
        return found
    holder = row.lease.holder
    if holder and not is_dead(holder):
        return Handover("holder", f"{describe(holder).capitalize()} has the session and finds it there.")
    typed, worker = (Action(do, row.id).command for do in (Do.RUN, Do.WORKER))
    return Handover("nobody", f"Nobody runs agent {row.agent}: go on with {typed}, or start {worker}.")


def _to_fleet(kernel: Kernel, row: SessionRow) -> Handover | None:
    """Queue a session that is on the board, or whose agent a worker has; None when no worker will come for it."""
    if not isinstance(kernel.store, Boarded):
        return None
    board = kernel.store.board()
    serving = sum(row.agent in served_by([worker]) for worker in board.workers())
    work = work_of(board, row.id)
    if work is None and not serving:
        # Nobody would ever take it off: a worker that comes later looks for such sessions anyway.
        return None
    if work is not None and (obstacle := obstacle_of(work, row.agent in board.held())):
        return Handover("nobody", f"{obstacle.line} {obstacle.next}")
    if work is None or not (work.queued or work.worker):
        # What is there keeps its priority.
        board.put([NewWork(row.id, row.agent, row.owner, work.priority if work is not None else 0)])
    if not serving:
        return None
    return Handover(
        "worker",
        f"It goes on at once: {count(serving, 'worker')} {'has' if serving == 1 else 'have'} agent {row.agent}.",
    )


def work_of(board: Board, session: str) -> Work | None:
    """What the board says of a session; None when it is not there."""
    return next(iter(board.works(Filter(sessions=(session,)), limit=1)), None)


def works_of(store: Store, sessions: Sequence[str]) -> dict[str, Work]:
    """What the board says of some sessions, by their ids; nothing where a store has none. Blocks."""
    if not sessions or not isinstance(store, Boarded):
        return {}
    return {w.session: w for w in store.board().works(Filter(sessions=tuple(sessions)), limit=len(sessions))}


def obstacle_of(work: Work, held: bool) -> Obstacle | None:
    """What keeps workers from a session on the board; ``held``: all sessions of its agent are."""
    then = " Then retry it: it is parked, too." if work.parked else ""
    if held:
        line = f"All sessions of agent {work.agent} are held: no worker takes them."
        return Obstacle(line, f"Let the agent go on again.{then}", Action(Do.UNHOLD, work.session, work.agent))
    if work.paused:
        next = f"Unpause it.{then}" if then else "Unpause it to let it go on."
        return Obstacle("A person has paused it: no worker takes it.", next, Action(Do.UNPAUSE, work.session))
    if work.parked:
        reason = one_line(work.parked, 300)
        line = f"No worker takes it any more: {reason}{'' if reason.endswith(('.', '…', '!', '?')) else '.'}"
        next = "Look at the failing step, then retry it, or branch before it."
        return Obstacle(line, next, Action(Do.RETRY, work.session))
    return None


def served_by(workers: Iterable[WorkerRow]) -> set[str]:
    """The agents that somebody serves. A worker that died serves nobody, although its row stays until it is found."""
    return {name for w in workers if lives(w) for name in w.agents}


def lives(worker: WorkerRow) -> bool:
    """Whether a worker lives, as far as anybody knows."""
    return worker.age < SILENT and not is_dead(worker.id)
