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
    unserved: bool = False
    """Whether that is because nobody runs its agent."""


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
        typed = Action(Do.RUN, row.id, "reuse", branch).command
        return Handover("nobody", f"It is taken up when the branch is run on: {typed} (a dry run makes no call).")
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
    return Handover("nobody", f"Nobody runs agent {row.agent}: go on with {typed}, or start {worker}.", True)


def _to_fleet(kernel: Kernel, row: SessionRow) -> Handover | None:
    """Queue a session that is on the board, or whose agent a worker has; None when no worker will come for it."""
    if not isinstance(kernel.store, Boarded):
        return None
    board = kernel.store.board()
    workers, work = board.workers(), work_of(board, row.id)
    serving = sum(row.agent in served_by([worker]) for worker in workers)
    if work is None and not serving:
        # Nobody would ever take it off: a worker that comes later looks for such sessions anyway.
        return None
    if work is not None and (obstacle := obstacle_of(work, row.agent in board.held()) or misfit_of(work, workers)):
        return Handover("nobody", f"{obstacle.line} {obstacle.next} ({obstacle.action.command})")
    if work is None or not (work.queued or work.worker):
        # What is there keeps its priority.
        board.put([NewWork(row.id, row.agent, row.owner, work.priority if work is not None else 0)])
    if not serving:
        return None
    return Handover(
        "worker",
        f"It is taken up at once: {count(serving, 'worker')} {'has' if serving == 1 else 'have'} agent {row.agent}.",
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
        next = "Mend what it fails of, then retry it."
        return Obstacle(line, next, Action(Do.RETRY, work.session))
    return None


def misfit_of(work: Work, workers: Sequence[WorkerRow]) -> Obstacle | None:
    """That workers have its agent, and none of them a program that can go on with it."""
    if (
        not work.avoid_version
        or work.agent in served_by(fitting(work, workers))
        or work.agent not in served_by(workers)
    ):
        return None
    line = (
        f"The workers that have agent {work.agent} cannot go on with it: their program, version {work.avoid_version}, "
        "does not fit a call that is open in it, or its schema."
    )
    next = "Start a worker with the program that it was left by, or resume it with that program yourself."
    return Obstacle(line, next, Action(Do.WORKER, work.session))


def fitting(work: Work, workers: Iterable[WorkerRow]) -> list[WorkerRow]:
    """The workers that may take a session, as far as their programs go."""
    return [w for w in workers if not work.avoid_version or w.version != work.avoid_version]


def gone_on_with(kernel: Kernel, session: str, *, looked_at: bool) -> None:
    """Somebody has run a session himself: what workers had failed at is behind it, and it is parked no more. Blocks.

    With ``looked_at`` a worker has to look at it again by itself; otherwise it leaves the board until there is
    something to do for it. What a person paused, or a worker has who lives, is left as it is.
    """
    store = kernel.store
    if not isinstance(store, Boarded) or not store.has_board() or (work := work_of(store.board(), session)) is None:
        return
    # What is there keeps its priority.
    do = "retry" if looked_at or work.priority else "forget"
    for state in ("queued", "waiting", "parked", *(("working",) if is_dead(work.worker) else ())):
        store.board().change(Filter(sessions=(session,), state=state), do, kernel.clock.wall())


def served_by(workers: Iterable[WorkerRow]) -> set[str]:
    """The agents that somebody serves. A worker that died serves nobody, although its row stays until it is found."""
    return {name for w in workers if lives(w) for name in w.agents}


def lives(worker: WorkerRow) -> bool:
    """Whether a worker lives, as far as anybody knows."""
    return worker.age < SILENT and not is_dead(worker.id)
