"""Why a session stands where it stands, and what to do next: one answer for lists, pages, command line, API and
metrics.

``told`` decides, from facts that ``gather`` has read; nobody else words what to do. What it says to do is typed: an
:class:`perdure.session.actions.Action` knows its command, its HTTP call and its library call.

Long because all sentences stand in one place: only side by side is it seen that no two of them contradict each other.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import quote

from perdure.agent.requests import AGENT, is_answer
from perdure.agent.run_result import raised_in
from perdure.errors import AccessRefused, ContextTooLong, NotFound, RequestRefused
from perdure.fleet.inputs import READ, said_in, waiting_in
from perdure.history.checkpoint import OBJECTIVE, Checkpoint, is_objective
from perdure.history.expiry import expired, in_doubt_in
from perdure.history.hydrate import find, load_head
from perdure.history.reader import history
from perdure.model import MAIN, Kind, Status
from perdure.protocols import Filter, Work
from perdure.session.actions import Action, Do
from perdure.session.calls.decisions import decided, is_late, pending
from perdure.session.calls.other_branches import done_elsewhere
from perdure.session.calls.read_cache import Claim, claim_of
from perdure.session.calls.records import (
    AGAIN,
    BEHIND,
    DONE_ELSEWHERE,
    ENDED_RUN,
    OPEN,
    RESTORED,
    call_of,
    exception_of,
    is_tried_again,
    is_whole,
    looked_up,
)
from perdure.session.handover import (
    MISFITS,
    close_to,
    fitting,
    has_it_open,
    is_worked_on,
    lives,
    made_board,
    misfit_of,
    obstacle_of,
    others_served,
    served_by,
    work_of,
)
from perdure.session.journal import LEFT
from perdure.session.tools.exceptions import in_short
from perdure.session.waiting_messages import REFUSED, InboxMessage, messages_of
from perdure.state.document import BOOK, STATE, plain
from perdure.system import times
from perdure.system.commands import about, door, typed
from perdure.system.commands import quoted as as_word
from perdure.system.flow import check_awaited, check_open, used_awaited
from perdure.system.lease_holders import describe, is_dead, runs_agent
from perdure.system.names import check_session
from perdure.system.wording import brief, count, one_line
from perdure.upkeep.expired_sessions import set_aside

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from perdure.agent.run_result import Raised
    from perdure.aio import AsyncDatabase
    from perdure.database import DatabaseHandle
    from perdure.kernel import Kernel
    from perdure.model import InboxEntry, SessionRow
    from perdure.protocols import Board
    from perdure.session.handover import Fleet, Obstacle

OK, WAIT, FAILING, ACT = "ok", "wait", "failing", "act"
"""Nothing is to be done; it goes on by itself; it is tried again by itself and gets no further; a person must act."""
_TIMERS = ("wake", "cron")
_OF_ANY_BRANCH = ("decision", "outcome", "returned", "failure")
"""Inputs that a branch takes; all others are main's."""
_LEFT_OUT = 90
"""Characters of a call's arguments, or of an error, that are told."""
MOST_TRIES = 10
"""So often workers try a session at one place, unless they are started with another number."""
PARKED = "Parked"
"""What stands for an error in a session that is parked although none was recorded."""
_OTHERS = 3
"""Calls that raised, beside the one that is told in full, that are told with their exceptions."""
PAGE = 1000
"""Sessions of a board that are read at once."""
_DEEP = 5
"""So far sessions that work for sessions are followed."""
_REFUSALS = (RequestRefused.__name__, ContextTooLong.__name__)
"""Errors that speak of what the model was sent."""
_CHANGE_FIRST = "Change the key, the model's name, the address or the account first: the provider says which."
"""What nobody gets past by trying again."""
_LOOKS = 3
"""How often a board that changes meanwhile is read again."""
_SEARCHED = 200
"""How many checkpoints are looked through for the last one that got further."""
_TRIES = (
    Kind.STARTED, Kind.PLANNED, Kind.PROGRESS, Kind.RUN_STARTED, Kind.IN_DOUBT, Kind.RETRYING, Kind.MIGRATED,
    Kind.REOPENED, Kind.REVIVED,
)  # fmt: skip
"""What a session writes while it is tried again at the same place."""


class Why(NamedTuple):
    """One plain line, what to do next, and how much it matters."""

    line: str
    next: str
    severity: str = OK
    """ok, wait (it goes on by itself), failing (it is tried again, and gets no further) or act (a person has to)"""
    actions: tuple[Action, ...] = ()
    """What can be done, the first thing to try first; each alone is enough."""
    error: Mapping[str, str] | None = None
    """The exception of a tool that the line speaks of: its class, message and traceback."""
    objective: Mapping[str, Any] | None = None
    """What the session is to achieve, and whether that is open, reached or given up; None when none is set."""

    @property
    def do(self) -> str:
        """The one thing to do, by name; "" when there is none."""
        return self.actions[0].name.value if self.actions else ""

    def __str__(self) -> str:
        return f"{self.line} {self.next}".strip()


class Trail(NamedTuple):
    """The last checkpoints of a session that workers get no further with."""

    since: int
    """When it last got any further."""
    step: int
    """The checkpoint it got to then."""
    error: str
    """At which step an error was recorded last since, and which; "" when none was: who is killed records none."""


class Facts(NamedTuple):
    """All that is known of a session at one moment."""

    row: SessionRow
    head: Checkpoint
    book: dict[str, Any]
    inbox: list[InboxEntry]
    work: Work | None
    served: bool | None
    """Whether a worker has its agent, and can go on with it; None when there is no fleet to ask."""
    held: bool
    now: int
    at_work: bool = False
    """Whether the worker that has it on the board lives, as far as is known."""
    unanswered: bool = False
    """Whether what was said last on a branch has no answer: it does not lie in the inbox, which is main's."""
    trail: Trail | None = None
    """What it wrote last, where workers get no further with it."""
    parent: str = ""
    """The session it works for."""
    polled: bool = False
    """Whether a worker looks after it through the session it works for."""
    child: Why | None = None
    """Of the session that works for it and that it waits for."""
    claim: Claim | None = None
    """Of another session that has begun the same call; None when it has ended."""
    ahead: Why | None = None
    """Of that session, while it has the claim."""
    done_elsewhere: Collection[str] = ()
    """Open effects whose outcome another line of the session has."""
    decided: Collection[str] = ()
    """Requests whose decision waits to be taken up."""
    over: bool = False
    """Whether it has expired, whether or not a sweep has come by."""
    misfit: Obstacle | None = None
    """That workers have its agent, and none can go on with it."""
    objective: Mapping[str, Any] | None = None
    """What it is to achieve, as its state says."""
    others: str = ""
    """Where none has its agent: which ones workers have instead, for people."""
    meant: str = ""
    """Which of those may have been meant by who named an agent that has never worked on it."""
    refused: tuple[InboxMessage, ...] = ()
    """Messages that wait, or are not answered, and went with a request that the provider has refused."""


@used_awaited("perdure.why_async")
async def why_async(db: AsyncDatabase, session: str, *, branch: str = MAIN) -> Why:
    """The same as :func:`why`, awaited."""
    check_awaited(db, "perdure.why_async")
    return await db.driver.call(why, db, session, branch=branch)


def why(db: DatabaseHandle, session: str, *, branch: str = MAIN) -> Why:
    """Why a session is where it is, and what to do next. Takes no lease and changes nothing.

    It blocks while it reads; ``NotFound`` when there is no such session.
    """
    check_open(db, "perdure.why")
    row = find(db.kernel, check_session(session))
    if row is None:
        raise NotFound(f"there is no session {session!r} in {db.url}")
    return of_row(db, row, branch)


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
        return _gone(db.kernel, row)
    line, now = "Nothing has been committed to it yet.", db.kernel.clock.wall()
    entries = waiting_in(db.kernel, row)
    holder = row.lease.holder if row.lease.holder and not is_dead(row.lease.holder) else ""
    if (what := _to_do(entries, now)) and runs_agent(holder):
        return Why(f"{line} {what}, and {describe(holder)} is on it.", "Nothing to do.", WAIT)
    if what:
        what = f"{what}, and {describe(holder)} has it open" if holder else what
        next = "Run its agent on it. Whose it is to be is not known before its first checkpoint: name its owner again."
        return Why(f"{line} {what}.", next, ACT, _do(row, Do.START))
    begins = "It begins when its agent is run on it, or its program writes it."
    due = min((e.at for e in entries if e.kind in _TIMERS), default=None)
    return Why(line if due is None else f"{line} A timer in its inbox is due in {_ahead(due - now)}.", begins)


def _gone(kernel: Kernel, row: SessionRow) -> Why:
    """It has ended; what was set aside can be brought back."""
    back = _do(row, Do.REVIVE) if set_aside(kernel, row.id) else ()
    revived = " Reviving it brings it back as it was." if back else ""
    line = f"It is gone: {row.why_gone}."
    if what := _to_do(waiting_in(kernel, row), kernel.clock.wall()):
        begins = f"Run its agent on it: it begins anew.{revived}"
        return Why(f"{line} {what}.", begins, ACT, (*_do(row, Do.START), *back))
    begins = f"A message to it starts a new session under the same name.{revived}"
    return Why(line, begins, OK, (*back, *_do(row, Do.MESSAGE)))


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
    if facts.head.status == Status.FAILED or (facts.work is not None and (facts.work.parked or _failures(facts))):
        facts = facts._replace(trail=_trail(kernel, row, branch))
    failed = facts.head.more.get("error") if branch == MAIN and facts.head.status == Status.FAILED else None
    if failed in _REFUSALS and (keys := notes.get(REFUSED)):
        refused = (m for m in messages_of(kernel, row.id, READ) if m.key in keys and m.kind == "message")
        facts = facts._replace(refused=tuple(refused))
    child = next((str(h["session"]) for e in _effects(facts, "waiting") if (h := _child_of(e))), "")
    if child and depth < _DEEP and (found := kernel.store.look(child)) is not None:
        facts = facts._replace(child=of_row(db, found, depth=depth + 1))
    return _with_claim(db, facts, depth)


def _with_claim(db: DatabaseHandle, f: Facts, depth: int) -> Facts:
    """The same, with what is known of the session that was first with the same call."""
    if (first := _behind(f)) is None:
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
        f = f._replace(misfit=None if work is None else misfit_of(work, rows))
        if not served and f.misfit is None:
            # One that has worked on it is its own, whoever is there now.
            likely = [] if f.book.get(AGENT) else close_to(agent, served_by(rows))
            f = f._replace(others=others_served(agent, rows), meant=likely[0] if likely else "")
    if f.parent and (above := work_of(board, f.parent)) is not None:
        free = above.agent in served_by(fitting(above, rows)) and not obstacle_of(above, above.agent in held)
        f = f._replace(polled=free and _is_taken_up(above))
    return f


def _trail(kernel: Kernel, row: SessionRow, branch: str) -> Trail | None:
    """Back to where it last wrote something that was not merely another try at the same place."""
    error, last = "", None
    for point in history(kernel, row.id, branch, _SEARCHED, None):
        last = point.envelope
        if is_answer(last.x) or (last.kind not in _TRIES and not last.x.get("error")):
            break
        if not error and last.x.get("error") not in (None, "", PARKED):
            error = f"at step {last.step}: {_error_in(last.x)}"
    return None if last is None else Trail(last.at, last.step, error)


def place_in(book: Mapping[str, Any]) -> int:
    """A number that grows whenever a session gets further: answers, and outcomes of the calls of the last one.

    Its steps do not tell: a call that is tried again and again and kills its worker writes one each time.
    """
    settled = sum(effect["status"] not in OPEN for effect in book.get("effects", {}).values())
    return book.get(AGENT, {}).get("turn", 0) * 10_000 + settled


def failures(row: SessionRow, work: Work) -> int:
    """How often workers have failed at the place where a session stands, or died of it, as far as its row tells."""
    ended = work.tries - (bool(work.worker) and not is_dead(work.worker))
    # Where a worker that died had come to, only the book tells, and the next worker then.
    told = work.worker or row.status == Status.FAILED or (work.due is not None and not work.queued)
    return max(0, ended if told else ended - 1)


def _failures(f: Facts) -> int:
    """How often workers have failed or died since it was last seen to get further."""
    assert f.work is not None
    ended = max(0, f.work.tries - f.at_work)
    # It stands at another place than where it was counted: who has it now got there, or the last one ended there.
    return 0 if not _is_counted(f) and f.at_work and _is_held(f) else ended


def _is_counted(f: Facts) -> bool:
    """Whether what was counted was counted at the place where it stands."""
    return f.work is not None and place_in(f.book) == f.work.step


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
    times = failures(row, work)
    return (
        f"failing, at least {times} times at the same place{': ' + row.error if row.error else ''}" if times > 1 else ""
    )


def _is_left(row: SessionRow, work: Work, fleet: Fleet) -> bool:
    """Whether a session is to be taken up by a worker, and none has it."""
    if row.status in (Status.IN_DOUBT, Status.CLOSED) or not _is_taken_up(work) or is_worked_on(row):
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
            if row is not None and failures(row, work) > 1:
                found[work.agent] += 1
    return dict(found)


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


# -- the decision -------------------------------------------------------------------------------------------------


def told(f: Facts) -> Why:
    """What the facts come to."""
    if f.over:
        return _over(f)
    found = _with_time(f, _with_refused(f, _with_exception(f, _on_board(f) or _by_status(f))))
    label = f.head.more.get("label")
    return found._replace(line=f"{found.line} Its label: {_end(str(label))}") if label else found


def _with_time(f: Facts, found: Why) -> Why:
    """The same, with the call that keeps a session whose time is over: also one that has ended for its agent."""
    if not f.row.over or _is_held(f):
        return found
    begun = [e for e in in_doubt_in(f.book) if e["id"] not in f.done_elsewhere]
    if not begun:
        return found
    what = "that" if f.head.status == Status.IN_DOUBT else f"what became of {call_of(begun[0])}"
    ran_out = f"Its time ran out {_gap(f.row.now - (f.row.expires or 0))} ago: it is kept until {what} is settled."
    found = found._replace(line=f"{found.line} {ran_out}")
    if found.severity != OK:
        return found
    settles = f"Find out, then say: done, try again, or give up.{_left_out(f, begun[0], 'resolve')}"
    if f.head.status == Status.CLOSED:
        return found._replace(next=f"{settles} Open it again for that.", severity=ACT)
    actions = (*_about(f, Do.RESOLVE, begun[0]["id"]), *found.actions)
    return found._replace(next=f"{settles} {found.next}", severity=ACT, actions=actions)


def _with_exception(f: Facts, found: Why) -> Why:
    """The same, with an exception of a tool: whoever looks may have written it."""
    error = found.error
    effects = f.book.get("effects", {}).values()
    lost = next((e for e in effects if e["status"] == "in_doubt" or is_tried_again(e)), None)
    if error is None and lost is not None:
        error = exception_of(lost)
    if not (raised := raised_in(f.book)):
        return found._replace(error=error)
    newest = raised[::-1]
    newest.sort(key=_is_known)
    first, *others = newest
    told = {"class": first.error, "message": first.message, "traceback": first.traceback}
    line = f"{found.line} {one_line(str(first), 200)}. {_became(first)}"
    if others:
        open_ = sum(not _is_known(one) for one in others)
        unknown = f"; what {open_} of them had changed by then is not known, either" if open_ else ""
        which = ", ".join(f"{one.tool} with {one.error}" for one in others[:_OTHERS])
        left_out = ", …" if len(others) > _OTHERS else ""
        line = f"{line} {count(len(others), 'more call')} raised: {which}{left_out}{unknown}."
    return found._replace(line=line, error=error if error is not None else told)


def _is_known(one: Raised) -> bool:
    """Whether it is known what became of a call that raised."""
    return bool(one.again) or one.status not in ("raised", "unknown")


def _became(one: Raised) -> str:
    """What became of a call that raised."""
    match one.status:
        case "raised" if one.again:
            return "The same call was made again since, and was done."
        case "raised":
            return "What it had changed by then is not known."
        case "unknown":
            return "Nobody knows whether it happened."
        case "done":
            return "It had happened."
        case _:
            return "Nothing had happened."


def _with_refused(f: Facts, found: Why) -> Why:
    """The same, with the message that the provider may have refused: it is refused again until somebody sees to it."""
    if not f.refused:
        return found
    last = f.refused[-1]
    words = brief(said_in(last.kind, last.body), _LEFT_OUT)
    others = f", and {len(f.refused) - 1} before it" if len(f.refused) > 1 else ""
    line = f"{found.line} What was refused had message {brief(last.key, _LEFT_OUT)} in it{others}: {_end(words)}"
    if _is_held(f):
        return found._replace(line=line)
    next = f"Withdraw or edit that message, if it is what is refused. {found.next}"
    return found._replace(
        line=line, next=next, severity=ACT, actions=(*_about(f, Do.WITHDRAW, last.key), *found.actions)
    )


def _over(f: Facts) -> Why:
    """It has expired, and is there until somebody begins it anew or a sweep comes by."""
    ran_out, back = f"Its time ran out {_gap(f.row.now - (f.row.expires or 0))} ago", _do(f.row, Do.REVIVE)
    revived = "Reviving it brings it back as it was."
    if what := _to_do(f.inbox, f.now, agent=bool(f.row.agent)):
        found = _waiting_for_somebody(f, f"{ran_out}, it begins anew: {what[0].lower()}{what[1:]}")
        return found._replace(next=f"{found.next} {revived}", actions=(*found.actions, *back))
    return Why(f"{ran_out}.", f"A message to it begins anew. {revived}", OK, (*back, *_do(f.row, Do.MESSAGE)))


def _on_board(f: Facts) -> Why | None:
    """What the fleet says, where that is the reason."""
    settled = (Status.WAITING_APPROVAL, Status.IN_DOUBT, Status.CLOSED, Status.CANCELLED)
    if f.work is None or f.head.status in settled:
        return None
    if obstacle := obstacle_of(f.work, f.held and (_has_more(f) or f.work.paused)):
        stands = f" {_stands(f)}" if f.work.parked else ""
        return Why(f"{obstacle.line}{stands}", obstacle.next, ACT, _ways_past(f, obstacle))
    return _failing(f) if _has_more(f) and _failures(f) else None


def _waits_and_fails(f: Facts) -> Why | None:
    """It waits for something that no run brings, and workers died of looking at it."""
    if f.head.status != Status.WAITING_RESULT or isinstance(waits := _awaited(f), str):
        return None
    times = _failures(f)
    again = times > 1 and waits.severity == WAIT
    return waits._replace(line=f"{waits.line} {_died(f)}", severity=FAILING if again else waits.severity)


def _ways_past(f: Facts, obstacle: Obstacle) -> tuple[Action, ...]:
    """What to do about an obstacle. One that is parked anybody may run himself, and sees what it fails of."""
    by_hand = f.work is not None and f.work.parked and obstacle.action.name == Do.RETRY
    # Who has the lease has it alone.
    runs = (by_hand or obstacle is f.misfit) and not _is_held(f)
    ways = (obstacle.action, *(_do(f.row, Do.RUN) if runs else ()))
    # A retry alone helps nobody where no worker is.
    return ways if f.served or not by_hand else ways[::-1]


def _failing(f: Facts) -> Why | None:
    """It is tried again by itself, and gets no further."""
    if (waits := _waits_and_fails(f)) is not None:
        return waits
    work = f.work
    assert work is not None
    times, lost = _failures(f), _lost(f)
    if lost is not None and _is_run(f) and f.head.status != Status.FAILED and not _has_outcome(f, lost):
        # Who has it keeps to the pauses of the call.
        again = _tried_again(f, lost)
        return again._replace(line=f"{again.line} {_died(f)}", severity=FAILING if times > 1 else WAIT)
    since = f" That was {_gap(f.now - f.trail.since)} ago." if f.trail is not None else ""
    line = _died(f)
    if f.head.status == Status.FAILED:
        line = _end(f"The last run failed: {_error(f)}") + (f" {line}" if times > 1 else "") + f" {_place(f)}{since}"
    else:
        line = f"{line} {_stands(f, since)}"
    if _is_held(f) and not _is_run(f):
        line = f"{line} {has_it_open(f.row.lease.holder).capitalize()}: it has to be let go first."
    if not f.served and not _is_run(f):
        return Why(line, _no_worker(f), ACT, _not_held(f, _do(f.row, Do.WORKER, Do.RUN)))
    if not _is_taken_up(work) and not _is_run(f):
        # It failed, and nobody is to try it again.
        return None
    if _is_run(f):
        again = f"{describe(f.row.lease.holder).capitalize()} tries it now"
    elif _is_held(f):
        again = "Then it is tried again"
    elif (due := max(work.due or 0, lost["retry_at"] if lost is not None else 0)) > f.now:
        again = f"It is tried again in {_ahead(due - f.now)}"
    else:
        again = "It is tried again now"
    if _is_shut_out(f) and not _is_run(f):
        again = f"{_CHANGE_FIRST} {again}"
    if times == 1:
        return Why(line, f"{again}.", WAIT)
    after = f"after {MOST_TRIES} tries, or as many as its workers were started with, no worker takes it any more"
    return Why(line, f"{again}; {after}.", FAILING)


def _died(f: Facts) -> str:
    times = _failures(f)
    if f.head.status == Status.FAILED and times > 1:
        # The last one failed, with the error that is told; those before may have died.
        more = "" if _is_counted(f) else ", the last time or more often"
        return f"It was tried {times} times{more} at the same place."
    if times == 1 or _is_counted(f):
        return f"Its worker died or failed {count(times, 'time')} at the same place."
    return f"Its worker died or failed {times} times, the last time or more often at this place."


def _stands(f: Facts, since: str = "") -> str:
    """Where it stands, and the last error there."""
    if f.trail is None:
        return ""
    error = _end(f"It failed last {f.trail.error}") if f.trail.error else "No error was recorded."
    return f"{_place(f)}{since} {error}"


def _place(f: Facts) -> str:
    """The step since which it only wrote that it was tried again, and which call was under way there."""
    if f.trail is None:
        return ""
    under_way = _open_call(f) or "the model is to be asked next"
    return f"It has got no further since step {f.trail.step}, where {under_way}."


def _open_call(f: Facts) -> str:
    """Which call was under way; "" when none was."""
    every = [_effects(f, status) for status in ("started", "in_doubt", "planned", "waiting")]
    left = [[e for e in some if not _has_outcome(f, e)] for some in every]
    begun = next(filter(None, left), None)
    if begun is None:
        come = next(filter(None, every), None)
        return f"the outcome of {call_of(come[0])} has arrived" if come else ""
    more = f", and {len(begun) - 1} more" if len(begun) > 1 else ""
    return f"{_no_outcome(f, begun[0])}{more}"


def _no_outcome(f: Facts, call: dict[str, Any]) -> str:
    return f"{call_of(call)} {DONE_ELSEWHERE if call['id'] in f.done_elsewhere else 'has no outcome yet'}"


def _under_way(f: Facts) -> str:
    return f": {call}" if (call := _open_call(f)) else ""


def _by_status(f: Facts) -> Why:
    match f.head.status:
        case Status.IN_DOUBT:
            return _in_doubt(f)
        case Status.WAITING_APPROVAL:
            return _approval(f)
        case Status.WAITING_RESULT:
            return _result(f)
        case Status.FAILED:
            return _failed(f)
        case Status.PAUSED:
            return _at_limit(f)
        case Status.CANCELLED:
            if what := _to_do(f.inbox, f.now):
                return _waiting_for_somebody(f, f"It was cancelled, and {what[0].lower()}{what[1:]}")
            note = str(f.head.more.get("note") or "cancelled")
            line = _end(f"It was {note}" if note.startswith("cancelled") else note)
            next, severity, goes_on = _go_on_by_message(f)
            if doubts := _left_in_doubt(f):
                found = _find_out(f, doubts, goes_on)
                ways = found.actions if goes_on[0] in found.actions else (*found.actions, *goes_on)
                next = f"{found.next} {next[:-1]}, and is answered when that is settled."
                return found._replace(line=f"{line} {found.line}", next=next, actions=ways)
            return Why(_with_open_call(f, line), next, severity, goes_on)
        case Status.CLOSED if _is_held(f):
            return _waiting_for_somebody(f, "It was closed")
        case Status.CLOSED:
            waiting = f" {_waits(number)} in its inbox." if (number := _messages(f.inbox)) else ""
            line, next = f"It was closed.{waiting}", "Nothing goes on with it unless somebody opens it again."
            doubts = _left_in_doubt(f)
            if doubts:
                line = f"{line} {_nobody_knows(doubts)}"
                next = "Find out, and open it again to say what became of that: nothing goes on with it before."
            # An agent that opened it would meet calls of the program's own tools.
            opens = Do.REOPEN if f.row.agent else Do.PROGRAM_REOPENS
            severity = ACT if waiting or doubts else OK
            return Why(line if doubts else _with_open_call(f, line), next, severity, _do(f.row, opens))
        case Status.RUNNING:
            return _running(f)
        case _:
            return _resting(f)


def _failed(f: Facts) -> Why:
    """The last run failed, and no worker was told to try it again."""
    what = f"The last run failed: {_error(f)}"
    if _is_held(f) or _goes_on(f):
        found = _waiting_for_somebody(f, what)
        return found._replace(next=_CHANGE_FIRST) if _is_shut_out(f) and found.severity == WAIT else found
    line = _end(what)
    if not f.row.agent:
        return _left_open(f) or Why(line, _PROGRAM, ACT, _about(f, Do.PROGRAM))
    line = f"{line} {_place(f)}"
    if f.served is None:
        again = f"{_CHANGE_FIRST} Then run its agent again."
        other = "Run its agent again, or branch before the failing step."
        return Why(line, again if _is_shut_out(f) else other, ACT, _run(f))
    if f.work is not None and _is_taken_up(f.work):
        return Why(line, _no_worker(f), ACT, _do(f.row, Do.WORKER, Do.RUN))
    does = "retry it" if f.served else "run its agent again, for no worker serves it"
    or_else = f"{does[0].upper()}{does[1:]}, or branch before the failing step."
    again = f"{_CHANGE_FIRST} Then {does}." if _is_shut_out(f) else or_else
    return Why(line, again, ACT, _do(f.row, *((Do.RETRY, Do.RUN) if f.served else (Do.RUN, Do.RETRY))))


def _is_shut_out(f: Facts) -> bool:
    """Whether the provider has refused who asks, or where: it does so until that is changed."""
    return f.head.status == Status.FAILED and f.head.more.get("error") == AccessRefused.__name__


def _at_limit(f: Facts) -> Why:
    if _is_held(f):
        return _waiting_for_somebody(f, "It stopped at a limit")
    line = f"It stopped at a limit: {_end(str(f.head.more.get('note') or 'a limit was reached'))}"
    if not f.row.agent:
        return _left_open(f) or Why(line, _PROGRAM, ACT, _about(f, Do.PROGRAM))
    return Why(line, "Run it again, with a higher limit where one was used up.", ACT, _run(f))


def _effects(f: Facts, status: str) -> list[dict[str, Any]]:
    return [e for e in f.book.get("effects", {}).values() if e["status"] == status]


def _has_outcome(f: Facts, effect: dict[str, Any]) -> bool:
    return any(e.key == f"outcome:{effect['id']}" for e in f.inbox)


def _in_doubt(f: Facts) -> Why:
    doubts = [e for e in _effects(f, "in_doubt") if not _has_outcome(f, e) and e["id"] not in f.done_elsewhere]
    if not doubts:
        settled = _effects(f, "in_doubt")
        if settled and settled[0]["id"] in f.done_elsewhere:
            return _waiting_for_somebody(f, _no_outcome(f, settled[0]))
        what = f"The outcome of {settled[0]['tool']} has arrived" if settled else "A doubt was settled"
        return _waiting_for_somebody(f, what)
    return _find_out(f, doubts, _run(f) if f.row.agent else _do(f.row, Do.PROGRAM))


def _left_in_doubt(f: Facts) -> list[dict[str, Any]]:
    """The calls of a session that was stopped of which nobody knows what became of them.

    Those that were under way then are among them: nobody goes on with them by himself, so nobody finds out.
    """
    begun = [e for status in ("in_doubt", "started") for e in _effects(f, status) if "read" not in e]
    return [e for e in begun if not _has_outcome(f, e) and e["id"] not in f.done_elsewhere]


def _with_open_call(f: Facts, line: str) -> str:
    """What is said of a session that was stopped, with the call that it goes on with when it does."""
    return f"{line} {_end(_begins(call))}" if (call := _open_call(f)) else line


def _nobody_knows(doubts: list[dict[str, Any]]) -> str:
    """That it is not known what became of some calls: the first of them, and what it ended with."""
    first = doubts[0]
    more = f" ({len(doubts) - 1} more in doubt)" if len(doubts) > 1 else ""
    told = exception_of(first)
    ended = f" {_end(f'It ended with {in_short(told)}')}" if told is not None else ""
    if RESTORED in first:
        ended = f" {_end(first['error'][:1].upper() + first['error'][1:])}"
    if failed := looked_up(first):
        ended += f" {_end(failed[:1].upper() + failed[1:])}"
    return f"{call_of(first)} was started and nobody knows whether it happened{more}.{ended}"


def _find_out(f: Facts, doubts: list[dict[str, Any]], goes_on: tuple[Action, ...]) -> Why:
    """A person has to find out what became of calls; ``goes_on`` has it looked up again."""
    first, line = doubts[0], _nobody_knows(doubts)
    by = f", by its id {first['id']} or that time" if RESTORED in first else ""
    if _is_held(f):
        # Only who has the lease may settle it; an outcome can be posted to whoever that is.
        finds = f"{describe(f.row.lease.holder)} has the session and finds" if _is_run(f) else "whoever goes on finds"
        next = f"Find out{by}, then post its outcome: {finds} it there.{_left_out(f, first, 'resolve')}"
        return Why(line, next, ACT, _about(f, Do.OUTCOME, first["id"]))
    next = f"Find out{by}, then say: done, try again, or give up.{_left_out(f, first, 'resolve')}"
    settle = _about(f, Do.RESOLVE, first["id"])
    if looked_up(first):
        return Why(
            line, f"{next} Or mend what failed and go on with it: it is looked up again.", ACT, (*settle, *goes_on)
        )
    return Why(line, next, ACT, settle)


def _approval(f: Facts) -> Why:
    waiting = pending(f.book, f.head.line)
    still = [a for a in waiting if a["id"] not in f.decided]
    if not still:
        planned = sorted(_effects(f, "planned"), key=lambda e: e["id"] in f.done_elsewhere)
        if waiting:
            return _waiting_for_somebody(f, "The decision is in")
        if not planned:
            return _waiting_for_somebody(f, "Nothing is to be decided")
        known = planned[0]["id"] in f.done_elsewhere
        anew = f"{call_of(planned[0])} is asked for anew when it goes on"
        return _waiting_for_somebody(f, _no_outcome(f, planned[0]) if known else anew)
    late = still[0]
    still = [a for a in still if not is_late(a, f.now)]
    if not still:
        return _waiting_for_somebody(f, f"The request to agree to {late['tool']} has expired")
    first = still[0]
    since = times.gap(f.now - first["asked"])
    if first.get("question"):
        asks = f"{first['tool']} asks: {one_line(first['question'], _LEFT_OUT)}{f' ({since})' if since else ''}"
        return Why(asks, f"Answer it.{_left_out(f, first, 'answer')}", ACT, _about(f, Do.ANSWER, first["id"]))
    more = f", and {len(still) - 1} more" if len(still) > 1 else ""
    because = f" Asked because {_end(first['because'])}" if first.get("because") else ""
    waits = f"has waited for agreement for {since}" if since else "waits for agreement"
    line = f"{call_of(first)} {waits}{more}.{because}"
    next = f"Approve it, change it, or reject it.{_left_out(f, first, 'approve')}"
    return Why(line, next, ACT, _about(f, Do.APPROVE, first["id"]))


def _left_out(f: Facts, asked: dict[str, Any], listed_by: str) -> str:
    """Where all of it is told that somebody decides on, when the line leaves something of it out; else ""."""
    question = str(asked.get("question") or "")
    if len(question) <= _LEFT_OUT if question else is_whole(asked):
        return ""
    if door() == "http":
        part = "effects" if listed_by == "resolve" else "approvals"
        return f" Not all of it is told here: GET /api/v1/sessions/{quote(f.row.id, safe='')}/{part} does."
    branch = "" if f.head.branch == MAIN else f" --branch {as_word(f.head.branch)}"
    option = " --list" if listed_by == "approve" else ""
    return f" Not all of it is told here: {typed(f'{listed_by} {as_word(f.row.id)}{option}{branch}')} does."


def _result(f: Facts) -> Why:
    found = _awaited(f)
    return _waiting_for_somebody(f, found) if isinstance(found, str) else found


def _awaited(f: Facts) -> Why | str:
    """What it waits for that no run of it brings; as a string, what there is to be taken up."""
    waiting = _effects(f, "waiting")
    if not waiting and (behind := _behind(f)) is not None:
        return _behind_another(f, call_of(behind), behind[BEHIND]["session"])
    if not waiting:
        return "The result it waited for is there"
    first = waiting[0]
    if _has_outcome(f, first):
        return f"The result of {first['tool']} has arrived"
    if first["id"] in f.done_elsewhere:
        return _no_outcome(f, first)
    if f.child is not None and (child := _child_of(first)):
        worked = f"{call_of(first)} is worked on by session {child['session']}"
        if any(action.name in (Do.REOPEN, Do.PROGRAM_REOPENS) for action in f.child.actions):
            # This one goes on no further than that.
            next = f"Open that session again, or post the outcome of {first['id']}."
            actions = (*f.child.actions, *_about(f, Do.OUTCOME, first["id"]))
            return Why(f"{worked}. {f.child.line}", next, ACT, actions)
        if f.child.severity == OK or any(action.session == f.row.id for action in f.child.actions):
            # It has ended, or waits for this one to take it along.
            return f"{worked}, which goes on when this one does"
        return Why(f"{worked}. {f.child.line}", f.child.next, f.child.severity, f.child.actions, f.child.error)
    line = f"{call_of(first)} was made {_gap(f.now - first['at'])} ago and its result comes later."
    if failed := looked_up(first):
        line = f"{line} {_end(failed[:1].upper() + failed[1:])}"
        post = _about(f, Do.OUTCOME, first["id"])
        if _is_run(f) or (_goes_on(f) and not _obstacle(f) and not _is_held(f)):
            due = f.work.due - f.now if f.work is not None and f.work.due is not None else 0
            again = f"Mend that: it is polled again by itself{f' in {_ahead(due)}' if due > 0 else ''}."
            return Why(line, f"{again} Or post the outcome of {first['id']}.", FAILING, post)
        next = f"Mend that and go on with it: it is polled again. Or post the outcome of {first['id']}."
        goes_on = _run(f) if f.row.agent else _do(f.row, Do.PROGRAM)
        return Why(line, next, ACT, (*post, *goes_on))
    next = f"Nothing to do, unless it never comes: then post the outcome of {first['id']}."
    return Why(line, next, WAIT, _about(f, Do.OUTCOME, first["id"]))


def _behind(f: Facts) -> dict[str, Any] | None:
    """The call that waits for the same call of another session."""
    return next((e for e in _effects(f, "planned") if BEHIND in e), None)


def _behind_another(f: Facts, call: str, other: str) -> Why | str:
    if f.claim is None:
        return f"{call} waited for the same call of session {other}, which has ended"
    line = f"{call} waits for session {f.claim.session}, which has begun the same call: its result is shared."
    then = "" if f.row.agent else f" {_PROGRAM}"
    ends = f"Its claim ends in {_ahead(f.claim.until - f.now)}, if there is no outcome before.{then}"
    if f.claim.session == f.row.id or (f.ahead is not None and f.ahead.severity == OK):
        # Nothing that is open there would bring one: it raised, was reported as unknown, or is on another branch.
        line = f"{line} That call has no outcome, and nobody knows what it did."
        settle = Action(Do.RESOLVE, f.claim.session, f.claim.effect)
        return Why(line, f"Find out, then say what came of it: done, or given up. {ends}", ACT, (settle,))
    if f.ahead is None:
        return Why(line, ends, WAIT)
    said = f.ahead
    return Why(f"{line} {said.line}", f"{said.next}{then}", said.severity, said.actions, said.error)


def _child_of(effect: dict[str, Any]) -> dict[str, Any] | None:
    """Which session works on a call, where an agent does."""
    handle: Any = effect.get("handle")
    return handle if isinstance(handle, dict) and {"session", "effect"} <= set(handle) else None  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _running(f: Facts) -> Why:
    holder = f.row.lease.holder
    if (lost := _lost(f)) is not None:
        return _tried_again(f, lost)
    if not _is_held(f) and not _effects(f, "started") and _behind(f) is not None:
        return _result(f)
    if (ended := _ended_run(f)) is not None:
        return ended
    if not holder or (_is_held(f) and not _is_run(f)):
        return _waiting_for_somebody(f, f"It stands in the middle of its work{_under_way(f)}")
    if is_dead(holder):
        return _waiting_for_somebody(f, f"{describe(holder).capitalize()} died while it worked on it{_under_way(f)}")
    working = _effects(f, "started")
    who = describe(holder)
    if not working:
        return Why(f"{who.capitalize()} works on it{_between_calls(f)}.", "Nothing to do.", WAIT)
    first = working[0]
    again = f", attempt {first['attempt']}" if first["attempt"] > 1 else ""
    progress = f", {brief(first['progress'], _LEFT_OUT)}" if first.get("progress") is not None else ""
    since = times.gap(f.now - first["at"])
    line = f"{who.capitalize()} runs {call_of(first)}{f' for {since}' if since else ''}{again}{progress}."
    return Why(line, "Nothing to do.", WAIT)


def _between_calls(f: Facts) -> str:
    """What is done while no call is under way: only an agent asks a model, and what a program does it knows alone."""
    if f.row.agent:
        return ": the model is being asked"
    runs = [key for key, run in f.book.get("runs", {}).items() if run["status"] == "open"]
    return f": run {one_line(runs[-1], _LEFT_OUT)} is under way" if runs else ""


def _ended_run(f: Facts) -> Why | None:
    """A run has ended with the exception of a call: it is run again, and its tool says what becomes of the call."""
    runs = f.book.get("runs", {})
    ended = [e for e in f.book.get("effects", {}).values() if ENDED_RUN in e and e["status"] in ("failed", "raised")]
    calls = [e for e in ended if LEFT in runs.get(e[ENDED_RUN]["run"], {})]
    if not calls or _is_held(f):
        return None
    # What somebody has to settle first keeps the run from all others.
    call = next((e for e in calls if e[ENDED_RUN]["again"] == "report"), calls[-1])
    run, again = call[ENDED_RUN]["run"], call[ENDED_RUN]["again"]
    more = f", and {len(calls) - 1} more" if len(calls) > 1 else ""
    # An exception of its own is told anyway.
    error = "" if "raised" in call else " " + _end(f"It did not happen: {call['error']}")
    line = f"Run {run} has ended with {call_of(call)}{more}.{error}"
    settle, program = _about(f, Do.RESOLVE, call["id"]), _about(f, Do.PROGRAM)
    if not again:
        then = "Have its function go on after that, then run it again: the call is not made again."
        return Why(line, then, ACT, program)
    if again == "report":
        then = "Find out what became of the call, then say: done, try again, or give up. Then run it again."
        return Why(line, then, ACT, settle)
    then = f"Mend the cause, then run it again: {AGAIN[again]}."
    if again == "failed":
        return Why(line, then, ACT, program)
    return Why(line, f"{then} Or say yourself what became of it.", ACT, (*program, *settle))


def _lost(f: Facts) -> dict[str, Any] | None:
    """The call whose answer is lost and that is made again, one without an outcome first."""
    lost = [e for e in _effects(f, "started") if is_tried_again(e)]
    return next((e for e in lost if not _has_outcome(f, e)), lost[0] if lost else None)


def _tried_again(f: Facts, call: dict[str, Any]) -> Why:
    """The answers to a call are lost, and it is made again under its id."""
    if _has_outcome(f, call):
        return _waiting_for_somebody(f, f"The outcome of {call_of(call)} has arrived")
    told = exception_of(call)
    last = f", the last time with {one_line(in_short(told), 200)}" if told is not None else ""
    since = times.gap(f.now - call["lost_since"])
    what = f"{call_of(call)} has got no answer{f' for {since}' if since else ''}"
    what = f"{what}, in {count(call['attempt'], 'attempt')}{last}"
    if not _is_run(f):
        return _waiting_for_somebody(f, what)
    left = call.get("retry_at", 0) - f.now
    again = f"It is tried again in {_ahead(left)}" if left > 0 else "It is being tried again now"
    return Why(f"{_end(what)} {again}, under the same id.", "Nothing to do: it goes on by itself.", WAIT)


def _left_open(f: Facts) -> Why | None:
    """What the book says, whatever the status does: a program may set that as it likes."""
    if _effects(f, "in_doubt"):
        return _in_doubt(f)
    if pending(f.book, f.head.line):
        return _approval(f)
    if _effects(f, "waiting") or _behind(f) is not None:
        return _result(f)
    if (ended := _ended_run(f)) is not None:
        return ended
    call = _open_call(f)
    return _waiting_for_somebody(f, _begins(call)) if call else None


def _begins(call: str) -> str:
    """What was said of a call, as the beginning of a sentence; the name of a tool stays as it is."""
    return call[0].upper() + call[1:] if call.startswith("the ") else call


def _resting(f: Facts) -> Why:
    if (found := _left_open(f)) is not None:
        return found
    if what := _to_do(f.inbox, f.now, agent=bool(f.row.agent)):
        found = _waiting_for_somebody(f, what)
        if not (f.row.agent and _given_up(f.inbox)):
            return found
        again = "Say again what is to be answered all the same."
        return found._replace(next=f"{found.next} {again}", actions=(*found.actions, *_do(f.row, Do.MESSAGE)))
    if f.unanswered and f.row.agent:
        return _waiting_for_somebody(f, "What was said last on it has no answer yet")
    timers = sorted(e.at for e in f.inbox if e.kind in _TIMERS)
    if timers:
        soon = _ahead(timers[0] - f.now)
        if obstacle := _obstacle(f):
            return Why(f"It sleeps, and is due in {soon}. {obstacle.line}", obstacle.next, ACT, (obstacle.action,))
        if f.served or f.polled:
            return Why(f"It sleeps, and is woken in {soon}.", "Nothing to do.", WAIT)
        line = f"It sleeps, and is due in {soon}."
        if not f.row.agent or f.served is None:
            return Why(line, "Run its agent then." if f.row.agent else _PROGRAM)
        return Why(line, f"By then somebody has to run it. {_no_worker(f)}", ACT, _do(f.row, Do.WORKER))
    if not f.row.agent:
        # Whatever writes it is not an agent: there is no command that could.
        return Why("Nothing in it is open.", "Its program can go on with it at any time.")
    return Why("It has answered everything.", *_go_on_by_message(f))


def _go_on_by_message(f: Facts) -> tuple[str, str, tuple[Action, ...]]:
    """What to do with one that rests."""
    return "A new message makes it go on.", OK, _about(f, Do.MESSAGE)


def _to_do(inbox: list[InboxEntry], now: int, *, agent: bool = True) -> str:
    """What lies in an inbox and is to be taken up now; "" when nothing does. Only an agent hears that it is to stop."""
    given_up = _given_up(inbox) if agent else 0
    if waiting := _messages(inbox) - given_up:
        return f"{_waits(waiting)} in its inbox"
    if agent and any(e.kind == "cancel" for e in inbox):
        left = f": {count(given_up, 'message')} from before that will not be answered" if given_up else ""
        return f"Somebody wants it to stop{left}"
    return "A timer is due" if any(e.kind in _TIMERS and e.at <= now for e in inbox) else ""


_PROGRAM = "Its program takes it up when it calls again."


def _waiting_for_somebody(f: Facts, what: str) -> Why:
    """There is something to do, and somebody has to do it."""
    holder = f.row.lease.holder
    if _is_run(f):
        return Why(f"{what}, and {describe(holder)} is on it.", "Nothing to do.", WAIT)
    if obstacle := _obstacle(f):
        return Why(f"{_end(what)} {obstacle.line}", obstacle.next, ACT, _ways_past(f, obstacle))
    if _goes_on(f) and _is_held(f):
        return Why(f"{what}, and {has_it_open(holder)}.", "Nothing to do: a worker takes it when it is let go.", WAIT)
    if _goes_on(f):
        due = f.work.due if f.work is not None and not (f.work.queued or f.work.worker) else None
        left, next = "", "Nothing to do."
        if f.work is not None and f.work.avoid_version:
            left = f" One of version {f.work.avoid_version} could not go on with it: {MISFITS}."
            next = "Nothing to do, unless workers of no version can: then it is parked in the end."
        if due is not None and due > f.now:
            return Why(f"{what}, and a worker looks at it in {_ahead(due - f.now)}.{left}", next, WAIT)
        return Why(f"{what}, and it waits for a worker.{left}", next, WAIT)
    if _is_held(f):
        next = f"It has to be let go first. {_who_could(f)}"
        return Why(f"{what}, and {has_it_open(holder)}.", next, ACT, _not_held(f, _who(f)))
    return Why(f"{what}, and nobody works on it.", _who_could(f), ACT, _who(f))


def _obstacle(f: Facts) -> Obstacle | None:
    """What keeps workers from it, on the board or not yet."""
    if f.served is None or not f.row.agent:
        return None
    return obstacle_of(f.work if f.work is not None else Work(f.row.id, f.row.agent), f.held) or f.misfit


def _is_held(f: Facts) -> bool:
    """Whether somebody who lives writes it at this moment."""
    return bool(f.row.lease.holder) and not is_dead(f.row.lease.holder)


def _is_run(f: Facts) -> bool:
    """Whether whoever that is goes on with it."""
    return is_worked_on(f.row)


def _goes_on(f: Facts) -> bool:
    """Whether a worker comes for it by itself: it was told to, or finds it."""
    if f.polled:
        return True
    if not f.served:
        return False
    if f.work is not None and _is_taken_up(f.work):
        return True
    # See Board.adopt.
    return f.head.status == Status.RUNNING or (f.work is None and any(_is_due(f, e) for e in f.inbox))


def _is_taken_up(work: Work) -> bool:
    return work.queued or bool(work.worker) or work.due is not None


def _is_due(f: Facts, entry: InboxEntry) -> bool:
    return entry.kind not in _TIMERS or entry.at <= f.now


def _who_could(f: Facts) -> str:
    if f.head.branch != MAIN and f.row.agent:
        return "Run the branch on, so that calls are made." if _effects_to_run(f) == "reuse" else "Run the branch on."
    if f.parent:
        return f"The session it works for takes it along: run the agent of {f.parent}."
    if not f.row.agent:
        return _PROGRAM
    if f.served is False:
        return _no_worker(f)
    return "Hand it to the fleet by a retry, or run its agent." if f.served else "Run its agent again."


def _who(f: Facts) -> tuple[Action, ...]:
    """The same for programs."""
    if f.head.branch != MAIN and f.row.agent:
        return _run(f)
    if f.parent:
        return (Action(Do.RUN, f.parent),)
    if not f.row.agent:
        return _about(f, Do.PROGRAM)
    if f.served is None:
        return _run(f)
    if f.meant:
        return (*_meant(f), *_do(f.row, Do.WORKER))
    return _do(f.row, Do.RETRY if f.served else Do.WORKER, Do.RUN)


def _not_held(f: Facts, actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """Those that can be done now, while somebody has it open; all of them where there are no such."""
    free = tuple(a for a in actions if a.name != Do.RUN or a.session != f.row.id)
    return free if _is_held(f) and free else actions


def _meant(f: Facts) -> tuple[Action, ...]:
    """To give it to the agent that was meant."""
    return (Action(Do.SUBMIT, f.row.id, f.meant),) if f.meant else ()


def _no_worker(f: Facts) -> str:
    if f.misfit is not None:
        return f"{f.misfit.line} {f.misfit.next}"
    starts = Action(Do.WORKER, f.row.id).command
    line = f"No worker serves agent {f.row.agent}{f.others}:"
    if f.meant:
        gives = Action(Do.SUBMIT, f.row.id, f.meant).command
        return f"{line} give it to {f.meant} with {gives}, or start one that has it with {starts}."
    return f"{line} start one with {starts}, or resume it yourself."


def _do(row: SessionRow, *names: Do) -> tuple[Action, ...]:
    return tuple(Action(name, row.id) for name in names)


def _about(f: Facts, name: Do, argument: str = "") -> tuple[Action, ...]:
    """What is done on the branch that is told of."""
    return (Action(name, f.row.id, argument, f.head.branch),)


def _run(f: Facts) -> tuple[Action, ...]:
    return _about(f, Do.RUN, _effects_to_run(f))


def _effects_to_run(f: Facts) -> str:
    """What must become of calls so that a run gets further: a dry one goes no further than an open call."""
    if f.head.branch == MAIN:
        return ""
    calls = [e for e in f.book.get("effects", {}).values() if e["status"] in OPEN and e["id"] not in f.done_elsewhere]
    return "reuse" if calls else "dry"


def _given_up(inbox: list[InboxEntry]) -> int:
    """Messages that somebody wanted it to stop after: they are taken, and not answered."""
    stop = max((e.seq for e in inbox if e.kind == "cancel"), default=0)
    return _messages([e for e in inbox if e.seq < stop])


def _messages(inbox: list[InboxEntry]) -> int:
    return sum(e.kind == "message" for e in inbox)


def _has_more(f: Facts) -> bool:
    return any(_is_due(f, e) for e in f.inbox) or f.head.status in (Status.RUNNING, Status.FAILED)


def _error(f: Facts) -> str:
    return _error_in(f.head.more) or "its error was not recorded"


def _error_in(x: Mapping[str, Any]) -> str:
    return one_line(": ".join(str(x[k]) for k in ("error", "note") if x.get(k)), 200)


def _end(text: str) -> str:
    text = one_line(text, 300)
    return text if text.endswith((".", "…", "!", "?")) else f"{text}."


def _gap(ms: int) -> str:
    return times.gap(ms) or "a moment"


def _ahead(ms: int) -> str:
    return times.ahead(ms) or "a moment"


def _waits(number: int) -> str:
    return "1 message waits" if number == 1 else f"{number} messages wait"
