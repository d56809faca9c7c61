"""All that is known of a session at one moment, and what follows from it without a word being said.

``reading`` gathers the facts; sentences are in ``decision``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.agent.requests import AGENT
from perdure.errors import AccessRefused
from perdure.fleet.why.answer import Why
from perdure.history.checkpoint import Checkpoint
from perdure.model import Status
from perdure.protocols import Work
from perdure.session.calls.read_cache import Claim
from perdure.session.calls.records import BEHIND, OPEN, call_of, is_tried_again
from perdure.session.handover import MISFITS, is_worked_on, obstacle_of
from perdure.session.waiting_messages import InboxMessage
from perdure.system.lease_holders import is_dead

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from perdure.model import InboxEntry, SessionRow
    from perdure.session.handover import Obstacle

TIMERS = ("wake", "cron")
"""Kinds of inputs that are given at a time of their own."""


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
    begun: int | None = None
    """When the attempt at the call began that is under way: it may have been asked for long before."""
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


def calls_at(f: Facts, status: str) -> list[dict[str, Any]]:
    """Its calls that stand there."""
    return [e for e in f.book.get("effects", {}).values() if e["status"] == status]


def has_outcome(f: Facts, effect: dict[str, Any]) -> bool:
    """Whether the outcome of a call lies in the inbox."""
    return any(e.key == f"outcome:{effect['id']}" for e in f.inbox)


def call_behind(f: Facts) -> dict[str, Any] | None:
    """The call that waits for the same call of another session."""
    return next((e for e in calls_at(f, "planned") if BEHIND in e), None)


def child_of(effect: dict[str, Any]) -> dict[str, Any] | None:
    """Which session works on a call, where an agent does."""
    handle: Any = effect.get("handle")
    return handle if isinstance(handle, dict) and {"session", "effect"} <= set(handle) else None  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def lost_call(f: Facts) -> dict[str, Any] | None:
    """The call whose answer is lost and that is made again, one without an outcome first."""
    lost = [e for e in calls_at(f, "started") if is_tried_again(e)]
    return next((e for e in lost if not has_outcome(f, e)), lost[0] if lost else None)


def is_held(f: Facts) -> bool:
    """Whether somebody who lives writes it at this moment."""
    return bool(f.row.lease.holder) and not is_dead(f.row.lease.holder)


def is_run(f: Facts) -> bool:
    """Whether whoever that is goes on with it."""
    return is_worked_on(f.row)


def goes_on_by_itself(f: Facts) -> bool:
    """Whether a worker comes for it by itself: it was told to, or finds it."""
    if f.polled:
        return True
    if not f.served:
        return False
    if f.work is not None and is_taken_up(f.work):
        return True
    # See Board.adopt.
    return f.head.status == Status.RUNNING or (f.work is None and any(is_due(f, e) for e in f.inbox))


def is_taken_up(work: Work) -> bool:
    """Whether a worker has it, or comes for it."""
    return work.queued or bool(work.worker) or work.due is not None


def is_due(f: Facts, entry: InboxEntry) -> bool:
    """Whether an input is to be taken now."""
    return entry.kind not in TIMERS or entry.at <= f.now


def obstacle_in(f: Facts) -> Obstacle | None:
    """What keeps workers from it, on the board or not yet."""
    if f.served is None or not f.row.agent:
        return None
    return obstacle_of(f.work if f.work is not None else Work(f.row.id, f.row.agent), f.held) or f.misfit


def unfit_in(f: Facts) -> str:
    """What of a session the program of a worker may not fit that has left it to others, as its book tells."""
    notes: dict[str, Any] = f.book.get(AGENT) or {}
    setup: dict[str, Any] = notes.get("setup") or {}
    left_by = setup.get("version")
    if left_by is None:
        return MISFITS
    version = f"version {left_by!r:.80} of agent {setup.get('agent', f.row.agent)}, which has left the session"
    if call := next((e for status in OPEN for e in calls_at(f, status)), None):
        return (
            f"its program does not go on from {version}, from its schema, or with a call that is open: {call_of(call)}"
        )
    return f"no call is open in it, and its program does not go on from {version}, or from its schema"


def has_more(f: Facts) -> bool:
    """Whether there is something to do."""
    return any(is_due(f, e) for e in f.inbox) or f.head.status in (Status.RUNNING, Status.FAILED)


def is_shut_out(f: Facts) -> bool:
    """Whether the provider has refused who asks, or where: it does so until that is changed."""
    return f.head.status == Status.FAILED and f.head.more.get("error") == AccessRefused.__name__


def failures_here(f: Facts) -> int:
    """How often workers have failed or died since it was last seen to get further."""
    assert f.work is not None
    ended = max(0, f.work.tries - f.at_work)
    # It stands at another place than where it was counted: who has it now got there, or the last one ended there.
    return 0 if not is_counted(f) and f.at_work and is_held(f) else ended


def is_counted(f: Facts) -> bool:
    """Whether what was counted was counted at the place where it stands."""
    return f.work is not None and place_in(f.book) == f.work.step


def place_in(book: Mapping[str, Any]) -> int:
    """A number that grows whenever a session gets further: answers, and outcomes of the calls of the last one.

    Its steps do not tell: a call that is tried again and again and kills its worker writes one each time.
    """
    settled = sum(effect["status"] not in OPEN for effect in book.get("effects", {}).values())
    return book.get(AGENT, {}).get("turn", 0) * 10_000 + settled


def given_up_in(inbox: list[InboxEntry]) -> int:
    """Messages that somebody wanted it to stop after: they are taken, and not answered."""
    stop = max((e.seq for e in inbox if e.kind == "cancel"), default=0)
    return messages_in([e for e in inbox if e.seq < stop])


def messages_in(inbox: list[InboxEntry]) -> int:
    """How many messages lie there."""
    return sum(e.kind == "message" for e in inbox)
