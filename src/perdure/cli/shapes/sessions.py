"""What commands print as JSON about sessions: rows, checkpoints, states, branches, what waits for people, runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from perdure.model import Kind, Status

Ms = Annotated[int, Meta(description="Milliseconds since 1970.")]
Id = Annotated[str, Meta(pattern="^[0-9a-f]{32}$", description="Of a checkpoint.")]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Shape(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is printed: all of these fields, and no others."""


class Tip(Shape):
    """Where a branch ends, or what a tag (`tags/NAME`) names."""

    step: int
    id: Id


class Row(Shape):
    """A session as the store knows it without opening it."""

    id: str
    owner: str
    status: Status
    created: Ms
    updated: Ms
    expires: Annotated[int | None, Meta(description="Null: never.")]
    step: Annotated[int | None, Meta(description="Of main; null before the first commit.")]
    branches: dict[str, Tip]
    inbox: Annotated[int, Meta(description="Entries that wait in its inbox.")]
    writer: Annotated[str | None, Meta(description="Who writes it at the moment.")]
    agent: str
    error: Annotated[str, Meta(description="The class of the error it stands at; empty when it stands at none.")]


class Sessions(Shape):
    """Sessions, as `ls` lists them."""

    sessions: list[Row]
    next: Annotated[str | None, Meta(description="What to give to --after; null when there are no more.")]


class Checkpoint(Shape):
    """One saved step of a session."""

    session: str
    branch: str
    step: int
    id: Id
    parent: Id | None
    kind: Kind
    at: Ms
    owner: str
    status: Status
    schema: str
    digest: Digest
    line: Annotated[int, Meta(description="Forks and rewinds begin new lines of checkpoints.")]
    more: Annotated[
        dict[str, Any], Meta(description="What only some have: run, effect, tool, error, takes, note, model, usage.")
    ]


class Effect(Shape):
    """A call with the outside world that has no outcome yet."""

    id: str
    tool: str
    digest: Annotated[str | dict[str, str], Meta(description="Of tool, version and arguments.")]
    args: Any
    status: Literal["started", "in_doubt", "unknown"]
    attempt: int
    at: Ms
    line: int
    error: str | UnsetType = UNSET
    call: Annotated[str, Meta(description="The id the model gave it.")] | UnsetType = UNSET
    approval: str | UnsetType = UNSET
    progress: Annotated[Any, Meta(description="What the tool said last of how far it is.")] | UnsetType = UNSET
    resolved_by: str | UnsetType = UNSET
    edited: bool | UnsetType = UNSET
    handle: Any | UnsetType = UNSET
    answers: list[Any] | UnsetType = UNSET
    was: Annotated[list[str], Meta(description="Its ids on the lines it came from.")] | UnsetType = UNSET


class Approval(Shape):
    """A request for a person's agreement, or answer, that waits."""

    id: str
    effect: str
    tool: str
    args: Any
    facts: Any
    asked: Ms
    expires: Ms
    status: Literal["pending"]
    by: str
    reason: str
    decided: int
    because: Annotated[str, Meta(description="Why somebody is asked, when it is not the tool's own rule.")]
    question: Annotated[str, Meta(description="What the tool wants to know; empty when it asks for agreement.")]
    schema: Annotated[dict[str, Any] | None, Meta(description="JSON Schema of the answer.")]


class State(Checkpoint):
    """A checkpoint with the state there, and what waits for somebody."""

    state: Annotated[dict[str, Any], Meta(description="messages, vars, facts, todos, summary and your own.")]
    effects: Annotated[list[Effect], Meta(description="Those without an outcome.")]
    approvals: Annotated[list[Approval], Meta(description="Those without a decision.")]


class History(Shape):
    """Checkpoints, newest first."""

    session: str
    branches: dict[str, Tip]
    checkpoints: list[Checkpoint]
    next: Annotated[int | None, Meta(description="What to give to --before; null when there are no more.")]


class Place(Shape):
    """One of two places that are compared."""

    session: str
    step: int
    id: Id


class Difference(Shape):
    """One place at which two states differ."""

    path: Annotated[list[str | int], Meta(description="Keys and positions from the root of the state.")]
    kind: Literal["added", "removed", "changed"]
    before: Any
    after: Any


class Differences(Shape):
    """What differs between two states."""

    a: Place
    b: Place
    differences: list[Difference]


class Merged(Shape):
    """The checkpoint of a merge, or the paths that both sides have changed."""

    merged: Checkpoint | None
    conflicts: list[str]


class Why(Shape):
    """Why a session is where it is, and what to do next."""

    session: str
    branch: str
    line: str
    next: str
    severity: Annotated[Literal["ok", "wait", "act"], Meta(description="wait: it goes on by itself.")]
    do: Annotated[str, Meta(description="The one thing to do, for programs; empty when there is none.")]
    command: Annotated[str, Meta(description="What to type for it; empty when that is nothing.")]


class Change(Shape):
    """One commit of any session."""

    session: str
    branch: str
    line: int
    step: int
    id: Id
    kind: Kind
    status: Status
    at: Ms
    cursor: Annotated[str | None, Meta(description="If not null, what to give to --since.")]


class Event(Shape):
    """One thing that happened in a session."""

    kind: Annotated[
        Literal["delta", "committed", "retracted", "step", "ended", "rescan"],
        Meta(description="delta is a piece of an answer: provisional until it is committed or retracted."),
    ]
    session: str
    step: int
    data: dict[str, Any]
    position: Annotated[str, Meta(description="Where to go on after it: --after.")]


class Waiting(Shape):
    """What waits for somebody in a session."""

    session: str
    approvals: list[Approval]
    effects: list[Effect]


class Decided(Shape):
    """What was decided."""

    session: str
    id: Annotated[str, Meta(description="Of the approval or effect.")]
    decision: Literal["approved", "rejected", "answered", "done", "given up", "to be made again"]


class Posted(Shape):
    """What was put into a session's inbox."""

    session: str
    new: Annotated[bool, Meta(description="False when it was there already.")]


class NotDone(Shape):
    """A session that it could not be done to, and why."""

    session: str
    reason: str


class Many(Shape):
    """What was done to several sessions, or with --dry-run would be."""

    action: Literal["cancel", "pause", "unpause", "retry", "resolve"]
    dry_run: bool
    sessions: list[str]
    changed: Annotated[int, Meta(description="How many were not so before.")]
    failed: list[NotDone]


class Spent(Shape):
    """Tokens and money."""

    input: int
    output: int
    cached: int
    cost: Annotated[float, Meta(description="In the currency of the price table; 0 when no price is known.")]


class Ended(Shape):
    """How a run ended."""

    session: str
    branch: str
    status: Literal[
        "done", "sleeping", "waiting_approval", "waiting_result", "in_doubt", "max_turns", "budget", "deadline",
        "cancelled", "incompatible", "failed",
    ]  # fmt: skip
    step: int
    text: str
    reason: str
    turns: int
    spent: Spent
    total: Annotated[Spent, Meta(description="Of the whole session.")]
    approvals: Annotated[list[str], Meta(description="Ids of what a person must agree to.")]
    in_doubt: Annotated[list[str], Meta(description="Ids of calls whose outcome nobody knows.")]
    until: Annotated[int | None, Meta(description="When there is something to do again.")]
    notes: list[str]


class Replayed(Shape):
    """What a replay found."""

    session: str
    branch: str
    turns: Annotated[int, Meta(description="Answers that were given again.")]
    step: Annotated[int | None, Meta(description="The first recorded step that differs.")]
    what: str
    identical: bool


class Rerun(Shape):
    """How a live replay ended, on its new branch."""

    session: str
    branch: str
    status: str
    step: int
    text: str
    reason: str
    approvals: list[str]
    notes: list[str]
