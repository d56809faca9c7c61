"""What goes over the wire, in one place: the bodies, parameters and answers of the API. Times are ms since 1970."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from perdure.holders import describe
from perdure.model import MAIN, TAG_PREFIX, Status

if TYPE_CHECKING:
    from perdure.checkpoint import Checkpoint
    from perdure.model import Head, SessionRow

MAX_PAGE = 1000
MAX_MS = 1 << 53

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Text = Annotated[str, Meta(max_length=200)]
Reason = Annotated[str, Meta(max_length=2000)]
SessionId = Annotated[str, Meta(min_length=1, max_length=512)]
Ms = Annotated[int, Meta(ge=0, le=MAX_MS)]
Step = Annotated[int, Meta(ge=1, le=MAX_MS)]
Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]
Cursor = Annotated[str, Meta(min_length=1, max_length=4000)]
Place = Annotated[
    str, Meta(min_length=1, max_length=200, description="A step, a tag, a branch, or (the beginning of) an id.")
]
StatusName = Literal[
    "idle", "running", "sleeping", "waiting_approval", "waiting_result", "in_doubt", "paused", "cancelled", "failed",
    "closed", "expired",
]  # fmt: skip
By = Annotated[str, Meta(min_length=1, max_length=200, description="Who decides; it is recorded.")]

assert set(StatusName.__args__) == set(Status)  # pyright: ignore


class Shape(msgspec.Struct, kw_only=True):
    """What is answered."""


class Asked(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is asked for: names that nobody knows are refused."""


# -- sessions -----------------------------------------------------------------------------------------------------


class Tip(Shape):
    """Where a branch ends, or what a tag names."""

    step: int
    id: str


class Session(Shape):
    """A session as the store knows it without opening it."""

    id: str
    owner: str
    agent: str
    status: StatusName
    error: str
    """The class of the error that its newest checkpoint records; "" when it records none."""
    created: int
    updated: int
    expires: int | None
    step: int
    """Of its main branch."""
    branches: dict[str, Tip]
    tags: dict[str, Tip]
    inbox: int
    """Entries that wait in its inbox."""
    writer: str | None
    """Who writes it at the moment, for people to read."""


class SessionPage(Shape):
    """Some sessions; ``next`` is the cursor for those after them."""

    sessions: list[Session]
    next: str | None


class Listing(Asked):
    """Which sessions are meant."""

    status: StatusName | None = None
    owner: Text | None = None
    agent: Text | None = None
    error: Text | None = None
    search: (
        Annotated[str, Meta(min_length=1, max_length=200, description="A part of the id or of the owner.")] | None
    ) = None
    since: Ms | None = None
    before: Ms | None = None
    newest: bool = False
    after: Cursor | None = None
    limit: Limit = 100


def session_of(row: SessionRow) -> Session:
    """A row of the store as it is shown."""
    heads = {h.branch: h for h in row.heads}
    newest = heads.get(MAIN) or max(row.heads, key=lambda h: h.step, default=None)
    return Session(
        id=row.id,
        owner=row.owner,
        agent=row.agent,
        status=row.status,  # pyright: ignore[reportArgumentType]
        error=row.error,
        created=row.created,
        updated=row.updated,
        expires=row.expires,
        step=newest.step if newest is not None else 0,
        branches={name: _tip(h) for name, h in heads.items() if not name.startswith(TAG_PREFIX)},
        tags={
            name.removeprefix(TAG_PREFIX): Tip(step=h.step - 1, id=h.id.hex())
            for name, h in heads.items()
            if name.startswith(TAG_PREFIX)
        },
        inbox=row.pending,
        writer=describe(row.lease.holder) if row.lease.holder else None,
    )


def _tip(head: Head) -> Tip:
    return Tip(step=head.step, id=head.id.hex())


# -- checkpoints --------------------------------------------------------------------------------------------------


class Point(Shape):
    """One checkpoint."""

    session: str
    branch: str
    line: int
    """The line it stands on: forks and rewinds begin new ones."""
    step: int
    id: str
    parent: str | None
    kind: str
    status: str
    at: int
    owner: str
    schema: str
    digest: str
    more: dict[str, Any]
    """What only some have: run, effect, tool, error, takes, note, model, usage, agent, ..."""


def point_of(c: Checkpoint) -> Point:
    """A checkpoint as it is shown."""
    return Point(**c.as_dict())


class Ok(Shape):
    """It was done."""

    ok: bool = True


class History(Shape):
    """Checkpoints of a branch, newest first; ``next`` is what to pass as ``before`` for those before them."""

    checkpoints: list[Point]
    next: int | None


class HistoryAsked(Asked):
    """Which checkpoints."""

    branch: Name = MAIN
    before: Step | None = None
    limit: Limit = 100


# -- states -------------------------------------------------------------------------------------------------------


class Cut(Shape):
    """A place where something was left out."""

    path: str
    kind: Literal["text", "list", "object", "bytes", "value"]
    size: int
    """Characters, items, names or bytes the whole has."""


Pointer = Annotated[str, Meta(max_length=4000, description="A JSON pointer (RFC 6901), such as /messages/3/content.")]
Offset = Annotated[int, Meta(ge=0, le=MAX_MS)]
Window = Annotated[int, Meta(ge=1, le=250_000, description="Items of a list or characters of a text.")]


class At(Asked):
    """A place in a session's past."""

    at: Place | None = None
    branch: Name = MAIN


class PartAsked(At):
    """A part of a value at a place."""

    path: Pointer = ""
    offset: Offset = 0
    limit: Window | None = None


class State(Shape):
    """A state, or a part of it, at a checkpoint. What ``cut`` names is not there as a whole: ask for it by its path."""

    checkpoint: Point
    path: str
    kind: Literal["text", "list", "object", "bytes", "value"]
    size: int
    offset: int
    value: Any
    cut: list[Cut]


class DiffAsked(Asked):
    """Two places to compare."""

    a: Place
    b: Place
    branch: Name = MAIN
    other: SessionId | None = None
    """The session of b, when it is another one."""


class Difference(Shape):
    """One place where two states differ."""

    path: str
    kind: Literal["added", "removed", "changed"]
    before: Any
    after: Any


class Diff(Shape):
    """Where two states differ, in reading order; ``more`` is how many differences were left out."""

    a: Point
    b: Point
    differences: list[Difference]
    more: int
    cut: list[Cut]


class Request(Shape):
    """The exact request whose answer a checkpoint holds, or a part of it; long texts are cut, as in a state."""

    step: int
    path: str
    kind: Literal["text", "list", "object", "bytes", "value"]
    size: int
    offset: int
    value: Any
    """As a whole: model, messages, tools and params."""
    cut: list[Cut]


class RequestAsked(Asked):
    """Which request, or which part of it."""

    at: Place
    branch: Name = MAIN
    path: Pointer = ""
    offset: Offset = 0
    limit: Window | None = None


# -- branches -----------------------------------------------------------------------------------------------------


class Edit(Asked):
    """One edit of a state, as in JSON Patch (RFC 6902)."""

    op: Literal["add", "replace", "remove"]
    path: Annotated[str, Meta(min_length=1, max_length=4000)]
    value: Any = None


class ForkAsked(Asked):
    """A new branch, perhaps with other contents."""

    name: Name
    at: Place | None = None
    branch: Name = MAIN
    edits: Annotated[list[Edit], Meta(max_length=100)] = []
    note: Reason = ""


class RewindAsked(Asked):
    """Where a branch goes back to."""

    at: Place
    branch: Name = MAIN


class TagAsked(Asked):
    """A name for a checkpoint."""

    name: Name
    at: Place | None = None
    branch: Name = MAIN


# -- messages and work --------------------------------------------------------------------------------------------


class NewSession(Asked):
    """A session for an agent to work on."""

    agent: Name
    id: SessionId | None = None
    """Made up when there is none."""
    owner: Text = ""
    message: Any = None
    key: Name | None = None
    """Makes it safe to repeat: the message is put there once."""
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    ttl: Annotated[int, Meta(ge=1, le=3_153_600_000)] | None = None
    """Seconds it lives after its last commit; a week if not said."""


class Submitted(Shape):
    """What became of it."""

    session: str
    new: bool
    """False when it, or the message's key, was there already."""
    queued: bool
    """Whether a fleet has it on its board."""


class MessageAsked(Asked):
    """A message for a session's inbox."""

    message: Any
    key: Name | None = None


class Posted(Shape):
    """Whether it was new: False when its key was there already."""

    new: bool


class RunAsked(Asked):
    """A run of an agent inside the server."""

    branch: Name = MAIN
    agent: Name | None = None
    """The session's own if not said."""
    message: Any = None
    key: Name | None = None
    effects: Literal["reuse", "dry", "live"] = "reuse"
    instructions: Annotated[str, Meta(max_length=200_000)] | None = None
    """Other instructions than the agent's own, for this run."""
    max_turns: Annotated[int, Meta(ge=1, le=1000)] | None = None


class Started(Shape):
    """Whether it was started: False when that branch is being run here already."""

    started: bool


class CancelAsked(Asked):
    """Who stops it, and why."""

    by: By = "api"
    reason: Reason = ""


class Changed(Shape):
    """How many sessions were changed."""

    changed: int


# -- people -------------------------------------------------------------------------------------------------------


class About(Shape):
    """What an interrupt is about."""

    session: str
    branch: str
    effect: str
    tool: str
    args: Any
    facts: Any
    because: str
    asked: int
    question: bool


class Interrupt(Shape, rename="camel"):
    """A request for a person's agreement or answer, in the shape of AG-UI 1.0."""

    id: str
    reason: Literal["tool_call", "input_required"]
    message: str
    tool_call_id: str
    response_schema: dict[str, Any]
    expires_at: str
    metadata: About


class Interrupts(Shape):
    """What waits for people; ``next`` is the cursor for those after them."""

    interrupts: list[Interrupt]
    next: str | None


class Decision(Asked, rename="camel"):
    """What a person says to an interrupt."""

    status: Literal["resolved", "cancelled"]
    payload: Any = None
    """``{"approved": true}`` agrees, with ``editedArgs`` to other arguments; ``{"approved": false}`` refuses;
    ``{"answer": ...}`` answers a question."""
    by: By = "api"
    reason: Reason = ""


class Resume(Decision, rename="camel", kw_only=True):
    """A decision that names its interrupt."""

    interrupt_id: Annotated[str, Meta(min_length=1, max_length=100)]


class ResumeAsked(Asked):
    """The decisions on everything that is open in a session."""

    resume: Annotated[list[Resume], Meta(min_length=1, max_length=100)]


class Effect(Shape):
    """A call with the outside world, as the journal has it."""

    session: str
    branch: str
    id: str
    tool: str
    status: str
    attempt: int
    at: int
    args: Any
    result: Any
    error: str


class Effects(Shape):
    """Effects; ``next`` is the cursor for those after them."""

    effects: list[Effect]
    next: str | None


class EffectsAsked(At):
    """Which effects of a session."""

    status: Text | None = None
    after: Cursor | None = None
    limit: Limit = 100


class ResolveAsked(Asked):
    """What became of a call in doubt: exactly one of done, retry and abort."""

    verdict: Literal["done", "retry", "abort"]
    result: Any = None
    """What it returned, when it was done."""
    branch: Name = MAIN
    by: By = "api"


class WaitingAsked(Asked):
    """A page of what waits in all sessions."""

    after: Cursor | None = None
    limit: Annotated[int, Meta(ge=1, le=100, description="How many sessions are looked into.")] = 25


# -- many at once -------------------------------------------------------------------------------------------------


class Which(Asked):
    """Sessions by their properties, or by name. Saying nothing is refused: that would be all of them."""

    sessions: Annotated[list[SessionId], Meta(max_length=MAX_PAGE)] | None = None
    status: StatusName | None = None
    owner: Text | None = None
    agent: Text | None = None
    error: Text | None = None
    search: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    since: Ms | None = None
    before: Ms | None = None


class BulkAsked(Asked):
    """One thing done to many sessions."""

    action: Literal["cancel", "retry", "pause", "unpause", "resolve"]
    filter: Which
    dry_run: bool = False
    verdict: Literal["retry", "abort"] | None = None
    """For resolve: what becomes of every call in doubt."""
    by: By = "api"
    reason: Reason = ""
    after: Cursor | None = None
    limit: Limit = 500


class Failed(Shape):
    """One that it could not be done to."""

    session: str
    type: str
    detail: str


class Bulk(Shape):
    """What was done, or would be; ``next`` is what to pass as ``after`` for those that follow."""

    action: str
    dry_run: bool
    sessions: list[str]
    changed: int
    failed: list[Failed]
    next: str | None


# -- the fleet and the store --------------------------------------------------------------------------------------


class Worker(Shape):
    """One worker."""

    id: str
    host: str
    pid: int
    version: str
    agents: list[str]
    concurrency: int
    busy: int
    started: int
    age: int
    """Milliseconds since it was last heard of."""
    wish: str
    done: int
    recovered: int


class Fleet(Shape):
    """A fleet at one moment; ``board`` is false where the store cannot have one."""

    board: bool
    workers: list[Worker]
    agents: dict[str, dict[str, int]]
    unserved: list[str]
    held: list[str]


class Work(Shape):
    """A session as the fleet sees it."""

    session: str
    agent: str
    owner: str
    priority: int
    queued: bool
    due: int | None
    worker: str
    since: int
    tries: int
    step: int
    parked: str
    paused: bool


class Queue(Shape):
    """Sessions on the board; ``next`` is what to pass as ``after``."""

    work: list[Work]
    next: str | None


class QueueAsked(Asked):
    """Which sessions of the board."""

    state: Literal["queued", "working", "waiting", "parked", "paused"] | None = None
    agent: Text | None = None
    owner: Text | None = None
    after: SessionId | None = None
    limit: Limit = 100


class DrainAsked(Asked):
    """Which worker is to go; all if not said."""

    worker: Name | None = None


class Count(Shape):
    """How many sessions there are of a kind."""

    status: str
    agent: str
    error: str
    sessions: int


class StoreStats(Shape):
    """What the store holds and promises."""

    url: str
    promise: str
    process_crash: bool
    power_loss: bool
    sessions: int
    checkpoints: int
    bytes: int
    counts: list[Count]


# -- events -------------------------------------------------------------------------------------------------------


class Change(Shape):
    """A commit, in the list of all sessions' changes."""

    session: str
    branch: str
    line: int
    step: int
    id: str
    kind: str
    status: str
    at: int


class Changes(Shape):
    """The data of an event of the list of changes."""

    changes: list[Change]


class EventsAsked(Asked):
    """Where to begin: a cursor (the id of an event), "beginning", or now if not said. Last-Event-ID goes first."""

    after: Cursor | None = None


class SessionEventsAsked(Asked):
    """Where to begin: the id of an event, "beginning", or now if not said. Last-Event-ID goes first."""

    branch: Name = MAIN
    after: Cursor | None = None
