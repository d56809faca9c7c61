"""What requests say: query parameters and bodies, and how long each may be. Names that nobody knows are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType, field

from perdure.model import MAIN, Status
from perdure.shapes.basics import Documented

MAX_PAGE = 1000
_MOST = 1 << 53

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Text = Annotated[str, Meta(max_length=200)]
Reason = Annotated[str, Meta(max_length=2000)]
SessionId = Annotated[str, Meta(min_length=1, max_length=512)]
Moment = Annotated[str, Meta(max_length=60, extra_json_schema={"format": "date-time"})]
Step = Annotated[int, Meta(ge=1, le=_MOST)]
Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]
Cursor = Annotated[str, Meta(min_length=1, max_length=4000)]
Place = Annotated[
    str, Meta(min_length=1, max_length=200, description="A step, a tag, a branch, or (the beginning of) an id.")
]
By = Annotated[str, Meta(min_length=1, max_length=200, description="Who decides; it is recorded.")]
Search = Annotated[str, Meta(min_length=1, max_length=200, description="A part of the id or of the owner.")]
Pointer = Annotated[str, Meta(max_length=4000, description="A JSON pointer (RFC 6901), such as /messages/3/content.")]
Window = Annotated[int, Meta(ge=1, le=250_000, description="Items of a list or characters of a text.")]
Verdict = Literal["done", "retry", "abort"]


class Input(Documented, kw_only=True, forbid_unknown_fields=True):
    """What is asked for."""


# -- sessions and their past -----------------------------------------------------------------------------------------


class Properties(Input):
    """Properties of sessions."""

    status: Status | None = None
    owner: Text | None = None
    agent: Text | None = None
    error: Text | None = None
    label: Text | None = None
    search: Search | None = None
    since: Moment | None = None
    before: Moment | None = None


class SessionsQuery(Properties):
    """Which sessions are meant."""

    newest: bool = False
    after: Cursor | None = None
    limit: Limit = 100


class BranchQuery(Input):
    """Which branch."""

    branch: Name = MAIN


class HistoryQuery(Input):
    """Which checkpoints."""

    branch: Name = MAIN
    before: Step | None = None
    limit: Limit = 100


class ValueQuery(Input):
    """A part of a value at a place."""

    at: Place | None = None
    branch: Name = MAIN
    path: Pointer = ""
    offset: Annotated[int, Meta(ge=0, le=_MOST)] = 0
    limit: Window | None = None


class RequestQuery(ValueQuery, kw_only=True):
    """Which request, or which part of it."""

    at: Place  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]


class DiffQuery(Input):
    """Two places to compare."""

    a: Place
    b: Place
    branch: Name = MAIN
    other: SessionId | None = None
    """The session of b, when it is another one."""


# -- branches --------------------------------------------------------------------------------------------------------


class Edit(Input):
    """One edit of a state, as in JSON Patch (RFC 6902)."""

    op: Literal["add", "replace", "remove"]
    path: Annotated[str, Meta(min_length=1, max_length=4000)]
    value: Any = None


class NewBranch(Input):
    """A new branch, perhaps with other contents."""

    name: Name
    at: Place | None = None
    branch: Name = MAIN
    edits: Annotated[list[Edit], Meta(max_length=100)] = field(default_factory=list[Edit])
    note: Reason = ""


class Rewind(Input):
    """Where a branch goes back to."""

    at: Place
    branch: Name = MAIN


class NewTag(Input):
    """A name for a checkpoint."""

    name: Name
    at: Place | None = None
    branch: Name = MAIN


# -- people ----------------------------------------------------------------------------------------------------------


class WaitingQuery(Input):
    """A page of what waits in all sessions."""

    after: Cursor | None = None
    limit: Annotated[int, Meta(ge=1, le=100, description="How many sessions are looked into.")] = 25
    all_branches: Annotated[
        bool, Meta(description="Also what waits on other branches of sessions that do not wait; goes through them all.")
    ] = False


class Answer(Input, rename="camel"):
    """What is said to an interrupt: as its `responseSchema` says, and perhaps a `reason`."""

    approved: bool | UnsetType = UNSET
    """true agrees, false refuses."""
    edited_args: dict[str, Any] | UnsetType | None = UNSET
    """With `approved`: agrees to the call with these arguments instead, all of them."""
    answer: Any | UnsetType = UNSET
    """To a question."""
    reason: Reason | UnsetType | None = UNSET


class Decision(Input):
    """What a person says to an interrupt."""

    status: Literal["resolved", "cancelled"]
    payload: Answer | None = None
    """``{"approved": true}`` agrees, with ``editedArgs`` to other arguments; ``{"approved": false}`` refuses;
    ``{"answer": ...}`` answers a question."""
    by: By = "api"
    reason: Reason = ""


class NamedDecision(Decision, rename="camel", kw_only=True):
    """A decision that names its interrupt, as AG-UI writes it: in camelCase."""

    interrupt_id: Annotated[str, Meta(min_length=1, max_length=100)]


class Resume(Input):
    """The decisions on everything that is open in a session."""

    resume: Annotated[list[NamedDecision], Meta(min_length=1, max_length=100)]


class EffectsQuery(Input):
    """Which effects of a session."""

    at: Place | None = None
    branch: Name = MAIN
    status: Text | None = None
    after: Cursor | None = None
    limit: Limit = 100


class Resolution(Input):
    """What became of a call in doubt."""

    verdict: Verdict
    result: Any = None
    """What it returned, when it was done."""
    branch: Name = MAIN
    by: By = "api"


class Outcome(Input):
    """What became of a call whose result comes later, or whose worker lost its lease: one of the two."""

    result: Any | UnsetType = UNSET
    failed: Reason | None = None
    """It certainly did not happen, and why."""


# -- work ------------------------------------------------------------------------------------------------------------


class NewSession(Input):
    """A session for an agent to work on."""

    agent: Name
    id: SessionId | None = None
    """Made up when there is none."""
    owner: Text = ""
    message: Any = None
    key: Name | None = None
    """Makes it safe to repeat: the message is put there once, and without an `id` the session is the same one."""
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None
    """Larger goes first; if not said, as it is, and 0 at first."""
    ttl_seconds: Annotated[int, Meta(ge=1, le=3_153_600_000)] | None = None
    """How long it lives after its last commit; a week if not said."""


class NewMessage(Input):
    """A message for a session's inbox."""

    message: Any
    key: Name | None = None


class InboxQuery(Input):
    """How many are told at most."""

    limit: Limit = 100


class Withdrawal(Input):
    """Who takes a message back, and why."""

    by: By = "api"
    reason: Reason = ""


class EditedMessage(Withdrawal, kw_only=True):
    """What a message is to say instead."""

    message: Any


class NewRun(Input):
    """A run of an agent inside the server."""

    branch: Name = MAIN
    agent: Name | None = None
    """The session's own if not said."""
    message: Any = None
    key: Name | None = None
    """Makes it safe to repeat: the message is put into the inbox of main once."""
    effects: Literal["reuse", "dry", "live"] | None = None
    """reuse: what was done is not done again, new calls are made; dry: nothing outside changes; live: all are made,
    those of another branch once somebody has agreed. If not said: reuse on main, dry on any other branch."""
    instructions: Annotated[str, Meta(max_length=200_000)] | None = None
    """Other instructions than the agent's own, for this run; a branch remembers them."""
    max_turns: Annotated[int, Meta(ge=1, le=1000)] | None = None
    objective: Reason | None = None
    """What the session is to achieve, on main; it is told to the agent."""
    reopen: bool = False
    """Go on with a session that was closed, on main; its history says by whom."""
    by: By = "api"


class Cancellation(Input):
    """Who stops it, and why."""

    by: By = "api"
    reason: Reason = ""


class SessionFilter(Properties):
    """Sessions by their properties, or by name. Saying nothing is refused: that would be all of them."""

    sessions: Annotated[list[SessionId], Meta(max_length=MAX_PAGE)] | None = None


class BulkAction(Input):
    """One thing done to many sessions."""

    action: Literal["cancel", "retry", "pause", "unpause", "resolve"]
    filter: SessionFilter
    dry_run: bool = False
    verdict: Verdict | None = None
    """For resolve: what became of every call in doubt."""
    result: Any = None
    """For resolve with the verdict done: the result of each of them."""
    by: By = "api"
    reason: Reason = ""
    after: Cursor | None = None
    limit: Limit = 500


class QueueQuery(Input):
    """Which sessions of the board."""

    state: Literal["queued", "working", "waiting", "parked", "paused"] | None = None
    agent: Text | None = None
    owner: Text | None = None
    after: SessionId | None = None
    limit: Limit = 100


class Drain(Input):
    """Which worker is to go; all if not said."""

    worker: Name | None = None


class Hold(Input):
    """Whether workers take sessions of an agent."""

    agent: Name
    on: bool
    """True: no worker takes any more of them, new ones neither."""


class EventsQuery(Input):
    """Where to begin: a cursor (the id of an event), "beginning", or now if not said. Last-Event-ID goes first."""

    after: Cursor | None = None


class SessionEventsQuery(EventsQuery):
    """Which branch, and where to begin."""

    branch: Name = MAIN
