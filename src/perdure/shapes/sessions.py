"""Sessions in JSON: the row of one, what it holds, and why it is where it is."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Literal

from perdure.model import MAIN, TAG_PREFIX, Status
from perdure.shapes.approvals import Effect, Interrupt, waiting
from perdure.shapes.basics import Id, Shape, Time, shaped
from perdure.shapes.history import Value, whole_state
from perdure.system.lease_holders import describe

if TYPE_CHECKING:
    from perdure.fleet import why as library
    from perdure.history.checkpoint import Reading
    from perdure.model import SessionRow

_COMMANDS = {
    "approve": "approve {session}",
    "answer": "answer {session}",
    "resolve": "resolve {session}",
    "retry": "retry {session}",
    "unpause": "unpause {session}",
    "unhold": "unpause --agent {agent}",
    "worker": "worker APP",
    "run": "resume APP {session}",
    "message": "run APP {session} MESSAGE",
    "outcome": "outcome {session} EFFECT RESULT",
}
"""What to type for each thing that can be done; the rest is done by the program itself."""


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
    """Calls that were started and have no outcome."""


def session_state(row: SessionRow, reading: Reading, branch: str) -> SessionState:
    """All there is to see of a session at a checkpoint, with nothing left out."""
    open_ = waiting(reading, row.id, branch)
    return SessionState(
        session=session_row(row), state=whole_state(reading), approvals=open_.approvals, effects=open_.effects
    )


class Why(Shape):
    """Why a session is where it is, and what to do next."""

    session: str
    branch: str
    summary: str
    next_step: str
    """What happens next, or what a person has to do, in words."""
    severity: Literal["ok", "wait", "act"]
    """wait: it goes on by itself; act: a person has to do something."""
    action: str
    """The one thing to do, for programs: approve, answer, resolve, retry, unpause, unhold, worker, run, message,
    outcome, reopen; empty when there is none."""
    command: str
    """What to type for it; empty when that is nothing."""


def why(found: library.Why, session: str, branch: str, agent: str) -> Why:
    """What the library found out about a session."""
    return shaped(
        Why, found, session=session, branch=branch, summary=found.line, next_step=found.next, action=found.do,
        command=command_for(found.do, session, agent, branch),
    )  # fmt: skip


def command_for(action: str, session: str, agent: str = "", branch: str = MAIN) -> str:
    """What to type for it; "" when it is nothing to type.

    >>> command_for("approve", "my trip"), command_for("run", "t", branch="b"), command_for("", "t")
    ("perdure approve 'my trip'", 'perdure resume APP t --branch b', '')
    """
    known = _COMMANDS.get(action)
    if known is None:
        return ""
    words = known.format(session=shlex.quote(session), agent=shlex.quote(agent))
    return f"perdure {words}" + (f" --branch {shlex.quote(branch)}" if branch != MAIN and action == "run" else "")
