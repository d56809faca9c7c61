"""Sessions in JSON: the row of one, what it holds, and why it is where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from perdure.agent.run_result import misfits_in
from perdure.model import MAIN, TAG_PREFIX, Status
from perdure.shapes.approvals import Effect, Interrupt, RaisedCall, ToolException, tool_exception, waiting
from perdure.shapes.basics import Id, Shape, Time, shaped
from perdure.shapes.history import Value, whole_state
from perdure.state.document import plain
from perdure.system.lease_holders import describe
from perdure.system.times import timestamp
from perdure.system.wording import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.fleet import inputs as of_inbox
    from perdure.fleet.why import answer as library
    from perdure.history.checkpoint import Reading
    from perdure.model import SessionRow


class Tip(Shape):
    """Where a branch ends; of a tag, the step that it names."""

    step: int
    id: Id
    """Of the newest checkpoint; of a tag, the one that records it."""


class Session(Shape):
    """A session as the store knows it without opening it."""

    id: str
    owner: str
    agent: str
    status: Status
    error: str
    """The class of the error that its newest checkpoint records; empty when it records none."""
    label: str
    """Where it stands in the words of its own program; empty when that says nothing."""
    created_at: Time
    updated_at: Time
    expires_at: Time | None
    """Null: never."""
    step: int
    """Of its main branch; 0 before the first commit."""
    branches: dict[str, Tip]
    tags: dict[str, Tip]
    inbox: int
    """Entries that wait in its inbox."""
    writer: str | None
    """Who writes it at the moment, for people to read."""


def session_row(row: SessionRow) -> Session:
    """A row of the store."""
    tips = {h.branch: Tip(step=h.step, id=h.id.hex()) for h in row.heads if not h.branch.startswith(TAG_PREFIX)}
    tags = {
        h.branch.removeprefix(TAG_PREFIX): Tip(step=h.step - 1, id=h.id.hex())
        for h in row.heads
        if h.branch not in tips
    }
    return shaped(
        Session, row, created_at=row.created, updated_at=row.updated, expires_at=row.expires, step=step_of(row),
        branches=tips, tags=tags, inbox=row.pending, writer=describe(row.lease.holder) or None,
    )  # fmt: skip


def step_of(row: SessionRow) -> int:
    """The newest step of main, or of whatever there is; 0 before the first commit."""
    heads = {h.branch: h.step for h in row.heads}
    return heads.get(MAIN, max(heads.values(), default=0))


class SessionState(Shape):
    """A session, its state at a checkpoint, and what waits for somebody there."""

    session: Session
    state: Value
    approvals: list[Interrupt]
    effects: list[Effect]
    """Calls that were started and have no outcome, or that ended with an exception."""
    raised: list[RaisedCall]
    """Calls of the last run, or that the journal holds, whose tools ended with exceptions."""
    misfits: list[str]
    """Of results, kept as they are, that do not fit what their tools declare to return."""


def session_state(row: SessionRow, reading: Reading, branch: str, undecided: list[Any]) -> SessionState:
    """All there is to see of a session at a checkpoint, with nothing left out."""
    open_ = waiting(reading, row.id, branch, undecided)
    return SessionState(
        session=session_row(row), state=whole_state(reading), approvals=open_.approvals, effects=open_.effects,
        raised=open_.raised, misfits=misfits_in(plain(reading.book)),
    )  # fmt: skip


class Action(Shape):
    """One thing that can be done about a session."""

    name: str
    """approve, answer, resolve, retry, unpause, unhold, worker, run, start, message, withdraw, submit, outcome, reopen,
    revive, program or program_reopens."""
    session: str
    """Which one it is done to: perhaps one that works for the session that was asked about."""
    argument: str
    """The approval, effect, message or agent that it is about, or what becomes of calls where a branch is run on (dry
    or reuse); empty when it is about the session."""
    branch: str
    command: str
    """What to type; empty when that is nothing. Words in capitals are to be filled in."""
    others: list[str]
    """What to type instead, where there is a choice."""
    http: str
    """The call of this API; empty when it has none."""
    body: dict[str, Any] | None
    """What is sent with that call, as an example; null when that is nothing. Words in capitals are to be filled in."""
    library: str
    """The call of the library, for people to read."""


class Input(Shape):
    """Something that was posted to a session and that it has not taken yet."""

    kind: str
    """message, wake, cron, decision, outcome, returned, failure or cancel."""
    key: str
    at: Time
    """When it was posted; of a timer, when it is due."""
    text: str
    """What it says, as far as people read it."""


def waiting_input(one: of_inbox.Input) -> Input:
    """What the library read of an inbox."""
    return shaped(Input, one, text=one_line(one.text, 2000))


class Objective(Shape):
    """What a session is to achieve."""

    text: str
    status: Literal["open", "reached", "given_up"]
    note: str
    """How it was reached, or why it was given up."""
    time: Time
    """Since when its status is so."""


def objective(found: Mapping[str, Any] | None) -> Objective | None:
    """What a state says of it."""
    return None if found is None else shaped(Objective, None, **{**found, "time": timestamp(found["time"])})


class Why(Shape):
    """Why a session is where it is, and what to do next."""

    session: str
    branch: str
    summary: str
    next_step: str
    """What happens next, or what a person has to do, in words."""
    severity: Literal["ok", "wait", "failing", "act"]
    """wait: it goes on by itself; failing: it is tried again by itself and gets no further; act: a person has to do
    something."""
    action: str
    """The first of the actions, by name; empty when there is none."""
    command: str
    """What to type for it; empty when that is nothing."""
    actions: list[Action]
    """What can be done, the first thing to try first; each alone is enough."""
    inputs: list[Input]
    """What was posted to it and waits, oldest first: the first 20."""
    exception: ToolException | None
    """Of the tool that the summary speaks of; null when it speaks of none."""
    objective: Objective | None
    """What the session is to achieve; null when none is set."""


def why(found: library.Why, session: str, branch: str, inputs: list[of_inbox.Input]) -> Why:
    """What the library found out about a session."""
    actions = [
        shaped(
            Action,
            one,
            command=one.command,
            others=list(one.others),
            http=one.http,
            body=one.body,
            library=one.library,
        )
        for one in found.actions
    ]
    return shaped(
        Why, found, session=session, branch=branch, summary=found.line, next_step=found.next, action=found.do,
        command=actions[0].command if actions else "", actions=actions,
        inputs=[waiting_input(one) for one in inputs],
        exception=tool_exception(found.error) if found.error is not None else None,
        objective=objective(found.objective),
    )  # fmt: skip
