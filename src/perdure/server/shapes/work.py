"""Work: messages, runs, many sessions at once, the fleet, the store and events."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from perdure.model import MAIN
from perdure.server.shapes.basics import (
    MAX_PAGE,
    Asked,
    By,
    Cursor,
    Limit,
    Ms,
    Name,
    Reason,
    SessionId,
    Shape,
    StatusName,
    Text,
)

# -- messages and work -----------------------------------------------------------------------------------------------


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
    """Makes it safe to repeat: the message is put into the inbox of main once."""
    effects: Literal["reuse", "dry", "live"] = "reuse"
    """reuse: what was done is not done again, new calls are made; dry: nothing outside changes; live: all are made."""
    instructions: Annotated[str, Meta(max_length=200_000)] | None = None
    """Other instructions than the agent's own, for this run; a branch remembers them."""
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


# -- many at once ----------------------------------------------------------------------------------------------------


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
    verdict: Literal["done", "retry", "abort"] | None = None
    """For resolve: what became of every call in doubt."""
    result: Any = None
    """For resolve with the verdict done: the result of each of them."""
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


# -- the fleet and the store -----------------------------------------------------------------------------------------


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


# -- events ----------------------------------------------------------------------------------------------------------


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
