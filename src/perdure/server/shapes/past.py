"""Sessions and their past: rows, checkpoints, states, differences, branches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, field

from perdure.model import MAIN, TAG_PREFIX
from perdure.server.shapes.basics import (
    MAX_MS,
    Asked,
    Cursor,
    Limit,
    Ms,
    Name,
    Place,
    Reason,
    SessionId,
    Shape,
    StatusName,
    Step,
    Text,
)
from perdure.system.lease_holders import describe

if TYPE_CHECKING:
    from perdure.history.checkpoint import Checkpoint
    from perdure.model import Head, SessionRow


# -- sessions --------------------------------------------------------------------------------------------------------


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


# -- checkpoints -----------------------------------------------------------------------------------------------------


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


class History(Shape):
    """Checkpoints of a branch, newest first; ``next`` is what to pass as ``before`` for those before them."""

    checkpoints: list[Point]
    next: int | None


class HistoryAsked(Asked):
    """Which checkpoints."""

    branch: Name = MAIN
    before: Step | None = None
    limit: Limit = 100


# -- states ----------------------------------------------------------------------------------------------------------


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


# -- branches --------------------------------------------------------------------------------------------------------


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
    edits: Annotated[list[Edit], Meta(max_length=100)] = field(default_factory=list[Edit])
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
