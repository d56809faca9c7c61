"""Work in JSON: runs and replays, messages, what is done to many sessions, workers and their queue."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, cast

from perdure.fleet import status
from perdure.fleet.inputs import said_in
from perdure.protocols import Boarded
from perdure.shapes.approvals import RaisedCall
from perdure.shapes.basics import Failure, Shape, Time, shaped
from perdure.shapes.history import ModelChange, model_changes
from perdure.system.lease_holders import is_dead
from perdure.system.wording import one_line

if TYPE_CHECKING:
    from perdure import protocols
    from perdure.agent.replay.replay import Replayed
    from perdure.agent.run_result import RunResult
    from perdure.database import DatabaseHandle
    from perdure.fleet.board import Submission
    from perdure.session import waiting_messages as library

# -- runs ------------------------------------------------------------------------------------------------------------


class Spent(Shape):
    """Tokens and money."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    """Of the input: read from the provider's cache."""
    cost: float
    """In the currency of the price table; 0 when no price is known."""


class Run(Shape):
    """How a run of an agent ended."""

    session: str
    branch: str
    agent: str
    """Who has the conversation: the agent that was run, or whom it was handed to."""
    status: Literal[
        "done", "sleeping", "waiting_approval", "waiting_result", "in_doubt", "max_turns", "budget", "deadline",
        "cancelled", "incompatible", "failed", "stopped",
    ]  # fmt: skip
    step: int
    began_anew: str
    """Why an earlier session of this name is gone, such as expired, when this run began it anew; else empty."""
    text: str
    """The last thing the agent said."""
    reason: str
    """Why it ended so, where that is not plain."""
    turns: int
    """Answers of the model."""
    spent: Spent
    """By this run."""
    total: Spent
    """By the whole session."""
    approval_ids: list[str]
    """What a person must agree to, or answer."""
    in_doubt_ids: list[str]
    """Calls whose outcome nobody knows."""
    wakes_at: Time | None
    """When there is something to do again."""
    notes: list[str]
    raised: list[RaisedCall]
    """Calls whose tools ended with exceptions, the newest 20."""
    message_key: str
    """The key of the message that was said: said again with it, it is answered with the same. Empty when none was."""
    repeated: bool
    """Whether the message had been answered before, and this is that answer."""


def run(result: RunResult, branch: str) -> Run:
    """The result of a run."""
    spent, total = (
        Spent(input_tokens=s.input, output_tokens=s.output, cached_tokens=s.cached, cost=s.cost)
        for s in (result.spent, result.total)
    )
    began = result.origin.reason if result.origin is not None else ""
    return shaped(
        Run, result, branch=branch, began_anew=began, spent=spent, total=total,
        approval_ids=[a.id for a in result.approvals], in_doubt_ids=[d.effect for d in result.in_doubt],
        wakes_at=result.until, raised=[shaped(RaisedCall, one) for one in result.raised],
    )  # fmt: skip


class Replay(Shape):
    """What a replay of the record found."""

    session: str
    branch: str
    identical: bool
    turns: int
    """Answers that were given again."""
    differing_step: int | None
    """The first recorded step that differs."""
    difference: str
    model_changes: list[ModelChange]
    """Where a provider's model became another one while the session was recorded."""


def replay(found: Replayed) -> Replay:
    """What the library found when it replayed a session."""
    return shaped(
        Replay, found, differing_step=found.step, difference=found.what, model_changes=model_changes(found.versions)
    )


class Started(Shape):
    """Whether a run was started inside the server."""

    session: str
    branch: str
    started: bool
    """False when the session is being run there already, or its message was answered."""
    message_key: str
    """The key of the message: said again with it, it is said once. Empty when none was said to main."""
    kept: bool
    """Whether the message is durable: whoever runs the session answers it."""
    answer: Run | None
    """What a message that is said again was answered with."""


# -- messages and steering -------------------------------------------------------------------------------------------


class Posted(Shape):
    """What was put into a session's inbox."""

    session: str
    message_key: str
    """Its key: said again with it, it is said once. Empty for what is no message."""
    kept: bool
    """That it is durable: whoever runs the session finds it."""
    answer: Run | None
    """What a message that is said again was answered with; null while it was not."""
    new: bool
    """False when its key was there already; of an outcome also when the call has one."""
    begins_anew: bool
    """Whether the session was gone or had expired: whoever takes this up begins it anew."""


class Submitted(Shape):
    """A session that an agent is to work on."""

    session: str
    agent: str
    new: bool
    """False when it, or the message's key, was there already."""
    instead_of: str
    """The agent that had it, and that no worker has, when it was given to this one; else empty."""
    message_key: str
    """The key of the message: said again with it, it is said once. Empty when none was said."""
    answer: Run | None
    """What a message that is said again was answered with; null while it was not."""
    queued: bool
    """Whether a fleet has it on its board for that; false when the message was answered."""
    unserved: bool
    """Whether that waits because no worker has its agent."""
    next: str
    """The same as a sentence: who goes on with it, or what to do."""


def submitted(
    session: str, agent: str, given: Submission, key: str, answer: Run | None, *, queued: bool = True
) -> Submitted:
    """What came of giving a session to a fleet."""
    handed = given.handover
    return Submitted(
        session=session, agent=agent, new=given.new, queued=queued and answer is None, message_key=key, answer=answer,
        unserved=handed.unserved, next=handed.words, instead_of=given.instead_of,
    )  # fmt: skip


class InboxMessage(Shape):
    """Something that was posted to a session and that waits, or that an unfinished run has taken."""

    key: str
    kind: str
    """message, wake, cron, decision, outcome, returned, failure or cancel."""
    at: Time
    """When it was posted; of a timer, when it is due; of one that was taken, when."""
    role: str
    """Who said it, of a message: user, unless whoever put it there said otherwise."""
    size_bytes: int
    text: str
    """What it says, as far as people read it, shortened."""
    taken_at_step: int | None
    """The step at which a run took it that has not answered it yet; null while it waits."""
    edited_by: str
    """Who changed it last; empty when nobody did."""


def inbox_message(m: library.InboxMessage) -> InboxMessage:
    """What the library found in an inbox."""
    text = m.problem or one_line(said_in(m.kind, m.body), 2000)
    body: dict[str, Any] = cast("Any", m.body) if isinstance(m.body, dict) else {}
    role = str(body.get("role", "user"))
    return shaped(
        InboxMessage, m, size_bytes=m.size, text=text, taken_at_step=m.taken_at,
        role=role[:80] if m.kind == "message" else "",
    )  # fmt: skip


class Amended(Shape):
    """What came of withdrawing or editing a message."""

    session: str
    key: str
    did: Literal["withdrawn", "edited"]
    new: bool
    """False when it had been done before."""
    woken: Literal["worker", "holder", "server", "caller", "nobody"]
    """Who goes on with the session, as for decisions."""
    next: str
    """The same as a sentence; where nobody does, with what to do about it."""


def amended(session: str, key: str, did: Literal["withdrawn", "edited"], found: library.Amended) -> Amended:
    """What the library did."""
    to, words = found.handover.to, found.handover.words
    return Amended(session=session, key=key, did=did, new=found.new, woken=to, next=words)


class Bulk(Shape):
    """What was done to one or many sessions, or with dry_run would be."""

    action: Literal["cancel", "pause", "unpause", "retry", "resolve"]
    dry_run: bool
    sessions: list[str]
    changed: int
    """How many were not so before."""
    failed: list[Failure]
    next: str | None
    """What to pass as `after` for those that follow; null when there are no more."""


# -- the fleet -------------------------------------------------------------------------------------------------------


class Worker(Shape):
    """A process that runs sessions."""

    id: str
    host: str
    pid: int
    version: str
    """Of the program it runs, as whoever started it says."""
    agents: list[str]
    """Those it serves."""
    concurrency: int
    """Sessions it can have at once."""
    busy: int
    """Sessions it has."""
    started_at: Time | None
    silent_seconds: float
    """Since it was last heard of."""
    has_died: bool
    """Whether its process is known to have ended: its row is there until another worker comes."""
    draining: bool
    """Whether it was told to finish and go."""
    done: int
    """Runs that it has ended so far, those that failed included."""
    recovered: int
    """Sessions it took over from dead workers."""


def worker(w: protocols.WorkerRow) -> Worker:
    """A row of the fleet's board."""
    return shaped(
        Worker, w, started_at=w.started, silent_seconds=w.age / 1000, has_died=is_dead(w.id), draining=w.wish == "drain"
    )


class Fleet(Shape):
    """Workers, and how the sessions on their board stand."""

    supported: bool
    """False where the store cannot have a fleet: then all of this is empty."""
    workers: list[Worker]
    busy: int
    concurrency: int
    states: dict[str, int]
    """How many sessions are queued, working, waiting, parked or paused."""
    agents: dict[str, dict[str, int]]
    """The same by agent."""
    unserved_agents: list[str]
    """Those with work that no worker serves."""
    held_agents: list[str]
    """Those whose sessions no worker takes."""


def fleet(db: DatabaseHandle) -> Fleet:
    """The fleet of a store at this moment. Blocks while it reads."""
    supported = isinstance(db.kernel.store, Boarded)
    found = status.fleet_of(db) if supported else status.Fleet([], {}, [], [])
    states: Counter[str] = Counter()
    for counted in found.agents.values():
        states.update(counted)
    workers = [worker(w) for w in found.workers]
    return shaped(
        Fleet, found, supported=supported, workers=workers, busy=sum(w.busy for w in workers), states=states,
        concurrency=sum(w.concurrency for w in workers if not w.has_died), unserved_agents=found.unserved,
        held_agents=found.held,
    )  # fmt: skip


class QueuedSession(Shape):
    """A session on the fleet's board."""

    session: str
    agent: str
    owner: str
    priority: int
    """Larger goes first."""
    queued: bool
    """Whether it has something to do now and waits for a worker."""
    due_at: Time | None
    """When it is looked at again by itself: a timer, or a retry."""
    worker: str
    """Who has claimed it; empty when nobody has. What one had that died is taken off by the next worker."""
    claimed_at: Time | None
    """When that worker took it."""
    tries: int
    """How often it was taken at the place where it was last seen to fail or to be taken over."""
    step: int
    """That place, as a number that is no step of the session: another one, another place."""
    parked_reason: str
    """Why no worker takes it any more; empty when they do."""
    paused: bool
    """Whether a person has stopped it."""


def queued_session(w: protocols.Work) -> QueuedSession:
    """A row of the fleet's board."""
    return shaped(QueuedSession, w, due_at=w.due, claimed_at=w.since, parked_reason=w.parked)


class Drained(Shape):
    """Workers that were told to go."""

    told: int
    left: int
    """Those that were still there after the wait."""
