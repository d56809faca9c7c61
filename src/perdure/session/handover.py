"""Waking a session that has something to do: it is handed to the fleet at once, or it is said who could go on with it.

Who decides on an approval, settles a call in doubt or posts from the console ends here, whichever door he came by.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from perdure.errors import PerdureError
from perdure.history.hydrate import find
from perdure.model import MAIN, Status
from perdure.protocols import Boarded, Filter, NewWork, Work
from perdure.session.actions import Action, Do
from perdure.session.wakes import sort_out
from perdure.system.commands import about
from perdure.system.lease_holders import describe, is_dead, runs_agent
from perdure.system.wording import count, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from perdure.kernel import Kernel
    from perdure.model import SessionRow
    from perdure.protocols import Board, Store, WorkerRow

NAMED = 10
"""Agents that are listed instead of one that nobody serves."""
MISFITS = "its program does not fit the version that the session was left by, its schema, or a call that is open in it"
"""What is said of a worker that has left a session to those of other versions; its log says which of these it is."""
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


class Fleet(NamedTuple):
    """Who may take sessions up at one moment: for all sessions of a list it is asked once."""

    workers: Sequence[WorkerRow] = ()
    held: Sequence[str] = ()
    """Agents whose sessions no worker takes."""


def hand_over(kernel: Kernel, row: SessionRow, branch: str = MAIN) -> Handover:
    """Have a worker look at a session now, where there is a fleet for it. Blocks; what was done before stands."""
    with about(kernel.store.url):
        return _hand_over(kernel, row, branch)


def _hand_over(kernel: Kernel, row: SessionRow, branch: str) -> Handover:
    if branch != MAIN:
        # Whether the calls of a branch may change anything outside, a person says: no worker runs one by itself.
        typed = Action(Do.RUN, row.id, "reuse", branch).command
        return Handover("nobody", f"It is taken up when the branch is run on: {typed} (a dry run makes no call).")
    holder = row.lease.holder
    held = bool(holder) and not is_dead(holder)
    if not row.agent and held and runs_agent(holder):
        # Which agent that is stands in its first checkpoint, and the model is asked before that.
        return _finds_it(holder)
    if row.status == Status.CLOSED:
        # What was decided stands, and whoever opens it finds it.
        opens = Action(Do.REOPEN if row.agent else Do.PROGRAM_REOPENS, row.id)
        return Handover("nobody", f"It was closed, and nothing goes on with it unless {opens.here} opens it again.")
    if not row.agent:
        return Handover("nobody", "Its program takes it up when it calls again.")
    if row.status == Status.CANCELLED and not _is_told_more(kernel, row):
        typed = Action(Do.MESSAGE, row.id).command
        return Handover("nobody", f"It was cancelled, and goes on with a new message: {typed}.")
    try:
        found = _to_fleet(kernel, row)
    except PerdureError as e:
        # What was said to the session is durable, and a worker finds it by itself.
        return Handover("nobody", f"The board of the fleet could not be told: {e}")
    if found is not None:
        return found
    if held and runs_agent(holder):
        return _finds_it(holder)
    typed, worker = (Action(do, row.id).command for do in (Do.RUN, Do.WORKER))
    others = others_served(row.agent, workers_of(kernel))
    nobody = f"Nobody runs agent {row.agent}{others}"
    if held:
        nobody = f"{has_it_open(holder).capitalize()}. When it is let go"
    return Handover("nobody", f"{nobody}: go on with {typed}, or start {worker}.", True)


def _is_told_more(kernel: Kernel, row: SessionRow) -> bool:
    """Whether there is something in a session's inbox that has it go on after it was cancelled."""
    now = find(kernel, row.id) or row
    entries = kernel.store.inbox(row.id, now.pending) if now.pending else []
    return bool(sort_out(entries, set(), kernel.clock.wall()).ready)


def _finds_it(holder: str) -> Handover:
    return Handover("holder", f"{describe(holder).capitalize()} has the session and finds it there.")


def is_worked_on(row: SessionRow) -> bool:
    """Whether somebody lives who goes on with a session: of an agent's only who runs the agent is known to."""
    holder = row.lease.holder
    return bool(holder) and not is_dead(holder) and (not row.agent or runs_agent(holder))


def has_it_open(holder: str) -> str:
    """What is said of who has a session and does not run its agent: whether he reads its inbox, nobody knows."""
    return f"{describe(holder)} has it open without running its agent"


def _to_fleet(kernel: Kernel, row: SessionRow) -> Handover | None:
    """Queue a session that is on the board, or whose agent a worker has; None when no worker will come for it."""
    if (board := made_board(kernel.store)) is None:
        return None
    workers, work = board.workers(), work_of(board, row.id)
    serving = sum(row.agent in served_by([worker]) for worker in workers)
    # One that is not on the board yet is held with all others of its agent, and so is one that a parent works on.
    obstacle = obstacle_of(work or Work(row.id, row.agent), row.agent in board.held())
    if obstacle := obstacle or (misfit_of(work, workers) if work is not None else None):
        return Handover("nobody", f"{obstacle.line} {obstacle.next} ({obstacle.action.command})")
    if work is None and not serving:
        # Nobody would ever take it off: a worker that comes later looks for such sessions anyway.
        return None
    if work is None or not (work.queued or work.worker):
        # What is there keeps its priority.
        board.put([NewWork(row.id, row.agent, row.owner, work.priority if work is not None else 0)])
    if not serving:
        return None
    holder = row.lease.holder
    if holder and not is_dead(holder) and not runs_agent(holder):
        return Handover("worker", f"{has_it_open(holder).capitalize()}; a worker takes it up when it is let go.")
    # Whether the program of one of them fits what the session was left by, only a worker that has it finds out.
    return Handover(
        "worker",
        f"It is handed to the fleet at once: {count(serving, 'worker')} {'has' if serving == 1 else 'have'} agent "
        f"{row.agent}.",
    )


class _Unmade:
    """A board that nobody has made yet: nothing is on it, and nobody serves anything."""

    def workers(self) -> list[WorkerRow]:
        """None."""
        return []

    def works(self, which: Filter, *, after: str | None = None, limit: int = 1) -> list[Work]:
        """None."""
        return []

    def held(self) -> list[str]:
        """None."""
        return []

    def counts(self) -> dict[tuple[str, str], int]:
        """None."""
        return {}


def made_board(store: Store) -> Board | None:
    """The board of a fleet to look at; None where the store can have none. One that is not there yet is empty, and is
    not made: who only looks writes nothing, and waits for no writer. Blocks."""
    if not isinstance(store, Boarded):
        return None
    # What is changed on a board is what was found there: an empty one is only ever read.
    return store.board() if store.has_board() else cast("Board", _Unmade())


def workers_of(kernel: Kernel) -> list[WorkerRow]:
    """The workers of a store; none where it cannot have any. Blocks."""
    return [] if (board := made_board(kernel.store)) is None else board.workers()


def others_served(agent: str, workers: Iterable[WorkerRow]) -> str:
    """Which agents workers serve instead of one that none of them has, for people; "" when they serve none at all.

    >>> others_served("dsek", [])
    ''
    """
    if not (served := served_by(workers)):
        return ""
    likely = close_to(agent, served)
    listed = [*likely, *sorted(served.difference(likely))]
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    meant = f"; did you mean {likely[0]}?" if likely else ""
    return f" (workers serve {', '.join(name[:80] for name in listed[:NAMED])}{more}{meant})"


def close_to(agent: str, served: Iterable[str]) -> list[str]:
    """Which of these somebody may have meant, the closest first.

    >>> close_to("dsek", ["shop", "desk"])
    ['desk']
    """
    by_letters = {name.casefold(): name for name in sorted(served)}
    return [by_letters[name] for name in get_close_matches(agent.casefold(), by_letters, 3)]


def work_of(board: Board, session: str) -> Work | None:
    """What the board says of a session; None when it is not there."""
    return next(iter(board.works(Filter(sessions=(session,)), limit=1)), None)


def works_of(store: Store, sessions: Sequence[str]) -> dict[str, Work]:
    """What the board says of some sessions, by their ids; nothing where a store has none. Blocks."""
    if not sessions or (board := made_board(store)) is None:
        return {}
    return {w.session: w for w in board.works(Filter(sessions=tuple(sessions)), limit=len(sessions))}


def fleet_of(store: Store, works: Mapping[str, Work]) -> Fleet:
    """The fleet that a page of sessions is held against, after what the board says of them was read: whoever has one of
    them by then is known. Blocks; not asked for where none of them is on the board."""
    if not works or not isinstance(store, Boarded):
        return Fleet()
    board = store.board()
    return Fleet(board.workers(), board.held())


def obstacle_of(work: Work, held: bool) -> Obstacle | None:
    """What keeps workers from a session on the board; ``held``: all sessions of its agent are."""
    then = " Then retry it: it is parked, too." if work.parked else ""
    if held:
        line = f"All sessions of agent {work.agent} are held: no worker takes them."
        paused = " Then unpause it: a person has paused it, too." if work.paused else ""
        return Obstacle(line, f"Let the agent go on again.{paused}{then}", Action(Do.UNHOLD, work.session, work.agent))
    if work.paused:
        next = f"Unpause it.{then}" if then else "Unpause it to let it go on."
        return Obstacle("A person has paused it: no worker takes it.", next, Action(Do.UNPAUSE, work.session))
    if work.parked:
        reason = one_line(work.parked, 300)
        line = f"No worker takes it any more: {reason}{'' if reason.endswith(('.', '…', '!', '?')) else '.'}"
        next = "Mend what it fails of, then retry it."
        return Obstacle(line, next, Action(Do.RETRY, work.session))
    return None


def kept_back(store: Store, session: str, agent: str) -> Obstacle | None:
    """What keeps workers from a session, on the board or not yet: who runs it as a part of another one asks. Blocks."""
    if (board := made_board(store)) is None:
        return None
    return obstacle_of(work_of(board, session) or Work(session, agent), agent in board.held())


def misfit_of(work: Work, workers: Sequence[WorkerRow], unfit: str = MISFITS) -> Obstacle | None:
    """That workers have its agent, and none of them a program that can go on with it; ``unfit``: because of what."""
    if (
        not work.avoid_version
        or work.agent in served_by(fitting(work, workers))
        or work.agent not in served_by(workers)
    ):
        return None
    line = f"The workers that have agent {work.agent} cannot go on with it, version {work.avoid_version}: {unfit}."
    next = (
        "Start a worker with the program that it was left by, or resume it with that program yourself. "
        "To resume it with another one says what does not fit, as the log of the workers does."
    )
    return Obstacle(line, next, Action(Do.WORKER, work.session))


def fitting(work: Work, workers: Iterable[WorkerRow]) -> list[WorkerRow]:
    """The workers that may take a session, as far as their programs go."""
    return [w for w in workers if not work.avoid_version or w.version != work.avoid_version]


def gone_on_with(kernel: Kernel, session: str, *, looked_at: bool) -> None:
    """Somebody has run a session himself: what workers had failed at is behind it, and it is parked no more. Blocks.

    With ``looked_at`` a worker has to look at it again by itself; otherwise it leaves the board until there is
    something to do for it. What a person paused, or a worker has who lives, is left as it is.
    """
    board = made_board(kernel.store)
    if board is None or (work := work_of(board, session)) is None:
        return
    # What is there keeps its priority.
    do = "retry" if looked_at or work.priority else "forget"
    for state in ("queued", "waiting", "parked", *(("working",) if is_dead(work.worker) else ())):
        board.change(Filter(sessions=(session,), state=state), do, kernel.clock.wall())


def served_by(workers: Iterable[WorkerRow]) -> set[str]:
    """The agents that somebody serves. A worker that died serves nobody, although its row stays until it is found."""
    return {name for w in workers if lives(w) for name in w.agents}


def lives(worker: WorkerRow) -> bool:
    """Whether a worker lives, as far as anybody knows."""
    return worker.age < SILENT and not is_dead(worker.id)
