"""Why a session stands where it stands, and what to do next: one answer for lists, pages, command line and API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import NotFound
from perdure.history.checkpoint import Checkpoint
from perdure.history.hydrate import load_head
from perdure.model import MAIN, Status
from perdure.protocols import Boarded
from perdure.session.handover import obstacle_of, served_by, work_of
from perdure.state.document import BOOK, plain
from perdure.system.lease_holders import describe, is_dead
from perdure.system.names import check_session
from perdure.system.times import gap
from perdure.system.wording import brief, call_words, one_line

if TYPE_CHECKING:
    from perdure.aio import AsyncDatabase
    from perdure.database import DatabaseHandle
    from perdure.model import InboxEntry, SessionRow
    from perdure.protocols import Board, Work

OK, WAIT, ACT = "ok", "wait", "act"
"""Nothing is to be done; it goes on by itself; a person has to do something."""
_TIMERS = ("wake", "cron")
_LEFT_OUT = 90
"""Characters of a call's arguments, or of an error, that are told."""


class Why(NamedTuple):
    """One plain line, what to do next, and how much it matters."""

    line: str
    next: str
    severity: str = OK
    """ok, wait (it goes on by itself) or act (a person has to do something)"""
    do: str = ""
    """The one thing to do, for programs: approve, answer, resolve, retry, unpause, unhold, worker, run, message,
    outcome, reopen; "" when there is none."""

    def __str__(self) -> str:
        return f"{self.line} {self.next}".strip()


class Facts(NamedTuple):
    """All that is known of a session at one moment."""

    row: SessionRow
    head: Checkpoint
    book: dict[str, Any]
    inbox: list[InboxEntry]
    work: Work | None
    served: bool | None
    """Whether a worker has its agent; None when there is no fleet to ask."""
    held: bool
    now: int


async def why_async(db: AsyncDatabase, session: str, *, branch: str = MAIN) -> Why:
    """The same as :func:`why`, awaited."""
    return await db.driver.call(why, db, session, branch=branch)


def why(db: DatabaseHandle, session: str, *, branch: str = MAIN) -> Why:
    """Why a session is where it is, and what to do next. Takes no lease and changes nothing.

    It blocks while it reads; ``NotFound`` when there is no such session.
    """
    row = db.kernel.store.look(check_session(session))
    if row is None:
        raise NotFound(f"there is no session {session!r} in {db.url}")
    if row.heads:
        return told(gather(db, row, branch))
    if row.reason:
        return Why(f"It is gone: {row.why_gone}.", "A message to it starts a new session under the same name.")
    waiting = f" {_waits(row.pending)} in its inbox." if row.pending else ""
    return Why(f"Nothing has been committed to it yet.{waiting}", "Run its agent on it.", ACT, "run")


def gather(db: DatabaseHandle, row: SessionRow, branch: str = MAIN) -> Facts:
    """Read what there is to know."""
    kernel = db.kernel
    loaded = load_head(kernel, row, branch)
    assert loaded.point is not None
    book: dict[str, Any] = plain(loaded.doc[BOOK])
    inbox = kernel.store.inbox(row.id, 100) if row.pending else []
    work, served, held = None, None, False
    if branch == MAIN and isinstance(kernel.store, Boarded):
        board: Board = kernel.store.board()
        work = work_of(board, row.id)
        agent = row.agent or (work.agent if work is not None else "")
        if agent:
            served = agent in served_by(board.workers())
            held = agent in board.held()
    return Facts(row, Checkpoint(loaded.point), book, inbox, work, served, held, kernel.clock.wall())


def told(f: Facts) -> Why:
    """What the facts come to."""
    if f.row.expires is not None and f.row.expires <= f.now and not f.row.pending:
        gone = f"Its time ran out {_gap(f.now - f.row.expires)} ago, and the next sweep removes it."
        return Why(gone, "Export it first if you still need it.")
    return _on_board(f) or _by_status(f)


def _on_board(f: Facts) -> Why | None:
    """What the fleet says, where that is the reason."""
    settled = (Status.WAITING_APPROVAL, Status.IN_DOUBT, Status.CLOSED, Status.CANCELLED)
    if f.work is None or f.head.status in settled:
        return None
    if obstacle := obstacle_of(f.work, f.held and _has_more(f)):
        return Why(obstacle.line, obstacle.next, ACT, obstacle.do)
    if f.work.due is not None and f.work.tries and f.head.status == Status.FAILED:
        again = "now" if f.work.due <= f.now else f"in {_gap(f.work.due - f.now)}"
        return Why(
            f"The last run failed ({_error(f)}), for the {_nth(f.work.tries)} time.",
            f"It is tried again {again}.",
            WAIT,
        )
    return None


def _by_status(f: Facts) -> Why:
    match f.head.status:
        case Status.IN_DOUBT:
            return _in_doubt(f)
        case Status.WAITING_APPROVAL:
            return _approval(f)
        case Status.WAITING_RESULT:
            return _result(f)
        case Status.FAILED:
            if f.work is not None and f.work.queued and f.served:
                return _waiting_for_somebody(f, f"The last run failed ({_error(f)})")
            return Why(
                f"The last run failed: {_end(_error(f))}", "Retry it, or branch before the failing step.", ACT, "retry"
            )
        case Status.PAUSED:
            note = f.head.more.get("note") or "a limit was reached"
            return Why(f"It stopped at a limit: {_end(str(note))}", "Run it again to go on.", ACT, "run")
        case Status.CANCELLED:
            if _messages(f):
                return _waiting_for_somebody(f, "It was cancelled, and a new message waits for it")
            note = str(f.head.more.get("note") or "cancelled")
            return Why(
                _end(f"It was {note}" if note.startswith("cancelled") else note), "A new message makes it go on."
            )
        case Status.CLOSED:
            return Why("It was closed.", "Open it with reopen=True to go on.", OK, "reopen")
        case Status.RUNNING:
            return _running(f)
        case _:
            return _resting(f)


def _effects(f: Facts, status: str) -> list[dict[str, Any]]:
    return [e for e in f.book.get("effects", {}).values() if e["status"] == status]


def _has_outcome(f: Facts, effect: dict[str, Any]) -> bool:
    return any(e.key == f"outcome:{effect['id']}" for e in f.inbox)


def _in_doubt(f: Facts) -> Why:
    doubts = _effects(f, "in_doubt")
    if not doubts:
        return _waiting_for_somebody(f, "A doubt was settled")
    first = doubts[0]
    if _has_outcome(f, first):
        return _waiting_for_somebody(f, f"The outcome of {first['tool']} has arrived")
    more = f" ({len(doubts) - 1} more in doubt)" if len(doubts) > 1 else ""
    ended = f" It ended with {first['error']}." if first.get("error") else ""
    line = f"{_call(first)} was started and nobody knows whether it happened{more}.{ended}"
    return Why(line, "Find out, then say: done, try again, or give up.", ACT, "resolve")


def _approval(f: Facts) -> Why:
    waiting = [a for a in f.book.get("approvals", {}).values() if a["status"] == "pending"]
    decided = {e.key.removeprefix("decision:") for e in f.inbox if e.kind == "decision"}
    still = [a for a in waiting if a["id"] not in decided]
    if not still:
        return _waiting_for_somebody(f, "The decision is in")
    first = still[0]
    since = _gap(f.now - first["asked"])
    if f.now >= first["expires"]:
        return _waiting_for_somebody(f, f"The request to agree to {first['tool']} has expired")
    if first.get("question"):
        return Why(
            f"{first['tool']} asks: {one_line(first['question'], _LEFT_OUT)} ({since})", "Answer it.", ACT, "answer"
        )
    more = f", and {len(still) - 1} more" if len(still) > 1 else ""
    line = f"{_call(first)} has waited for agreement for {since}{more}."
    return Why(line, "Approve it, change it, or reject it.", ACT, "approve")


def _result(f: Facts) -> Why:
    waiting = _effects(f, "waiting")
    if not waiting:
        return _waiting_for_somebody(f, "The result it waited for is there")
    first = waiting[0]
    if _has_outcome(f, first):
        return _waiting_for_somebody(f, f"The result of {first['tool']} has arrived")
    line = f"{_call(first)} was made {_gap(f.now - first['at'])} ago and its result comes later."
    return Why(line, f"Nothing to do, unless it never comes: then post the outcome of {first['id']}.", WAIT, "outcome")


def _running(f: Facts) -> Why:
    holder = f.row.lease.holder
    if not holder:
        return _waiting_for_somebody(f, "It was put down in the middle of its work")
    if is_dead(holder):
        return _taken_over(f, f"{describe(holder).capitalize()} died while it worked on it.")
    working = _effects(f, "started")
    who = describe(holder)
    if not working:
        return Why(f"{who.capitalize()} works on it: the model is being asked.", "Nothing to do.", WAIT)
    first = working[0]
    again = f", attempt {first['attempt']}" if first["attempt"] > 1 else ""
    progress = f", {brief(first['progress'], _LEFT_OUT)}" if first.get("progress") is not None else ""
    line = f"{who.capitalize()} runs {_call(first)} for {_gap(f.now - first['at'])}{again}{progress}."
    return Why(line, "Nothing to do.", WAIT)


def _taken_over(f: Facts, line: str) -> Why:
    if f.served:
        return Why(line, "Another worker takes it over.", WAIT)
    return Why(line, _who_could(f), ACT, "worker" if f.served is False else "run")


def _resting(f: Facts) -> Why:
    if waiting := _messages(f):
        return _waiting_for_somebody(f, f"{_waits(waiting)} in its inbox")
    timers = sorted(e.at for e in f.inbox if e.kind in _TIMERS)
    if timers and timers[0] <= f.now:
        return _waiting_for_somebody(f, "A timer is due")
    if timers:
        return Why(f"It sleeps, and is woken in {_gap(timers[0] - f.now)}.", "Nothing to do.", WAIT)
    if not f.row.agent:
        # Whatever writes it is not an agent: there is no command that could.
        return Why("Nothing in it is open.", "Its program can go on with it at any time.")
    return Why("It has answered everything.", "A new message makes it go on.", OK, "message")


def _waiting_for_somebody(f: Facts, what: str) -> Why:
    """There is something to do, and somebody has to do it."""
    holder = f.row.lease.holder
    if holder and not is_dead(holder):
        return Why(f"{what}, and {describe(holder)} is on it.", "Nothing to do.", WAIT)
    if f.served and f.work is not None:
        return Why(f"{what}, and it waits for a worker.", "Nothing to do.", WAIT)
    return Why(f"{what}, and nobody works on it.", _who_could(f), ACT, "worker" if f.served is False else "run")


def _who_could(f: Facts) -> str:
    if f.served is False:
        return f"No worker serves agent {f.row.agent}: start one with perdure worker APP, or resume it yourself."
    return "Hand it to the fleet by a retry, or run its agent." if f.served else "Run its agent again."


def _messages(f: Facts) -> int:
    return sum(e.kind == "message" for e in f.inbox)


def _has_more(f: Facts) -> bool:
    return bool(f.inbox) or f.head.status in (Status.RUNNING, Status.FAILED)


def _error(f: Facts) -> str:
    said = [str(f.head.more[k]) for k in ("error", "note") if f.head.more.get(k)]
    return one_line(": ".join(said), 200) or "its error was not recorded"


def _call(record: dict[str, Any]) -> str:
    return call_words(record["tool"], record["args"], _LEFT_OUT, 40)


def _end(text: str) -> str:
    text = one_line(text, 300)
    return text if text.endswith((".", "…", "!", "?")) else f"{text}."


def _gap(ms: int) -> str:
    return gap(ms) or "a moment"


def _waits(number: int) -> str:
    return "1 message waits" if number == 1 else f"{number} messages wait"


def _nth(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
