"""What happens, in JSON, as it happens: commits of all sessions, and what can be read along in one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, UnsetType

from perdure import model
from perdure.model import MAIN, Kind, Status
from perdure.shapes.basics import Id, Shape, Time, shaped

if TYPE_CHECKING:
    from perdure.agent.session_stream import Event as RunEvent


class Change(Shape):
    """One commit of any session."""

    session: str
    branch: str
    line: int
    step: int
    id: Id
    kind: Kind
    status: Status
    at: Time
    cursor: str | None
    """If not null, where to go on after this one: `--since`, or the id of an event."""


def changes(page: model.ChangePage) -> list[Change]:
    """A page of the list of changes. Whoever goes on after its cursor has had them all, so the last one has it."""
    found = [shaped(Change, c, id=c.id.hex(), cursor=None) for c in page.items]
    if found:
        found[-1].cursor = page.cursor
    return found


class Event(Shape):
    """One thing that happened on a branch: a commit, or a piece of an answer that is on its way.

    A delta is provisional until its step is committed, with the whole text, or its attempt retracted; step is a commit
    that holds no answer.
    """

    event: Literal["delta", "committed", "retracted", "step", "ended", "rescan"]
    session: str
    branch: str
    step: int
    position: str | UnsetType = UNSET
    """Where to go on after it."""
    reason: str | UnsetType = UNSET
    """Why everything must be read again, of a rescan; or why a run has ended."""
    text: str | UnsetType | None = UNSET
    """Of a delta, or the whole answer; null when that is too long to be told."""
    size: int | UnsetType = UNSET
    """Characters of an answer that is too long to be told."""
    attempt: int | UnsetType = UNSET
    worker: int | UnsetType = UNSET
    """Tells workers apart that have tried this step."""
    offset: int | UnsetType = UNSET
    """Where in the answer a delta begins."""
    line: int | UnsetType = UNSET
    id: Id | UnsetType = UNSET
    kind: Kind | UnsetType = UNSET
    status: Status | UnsetType = UNSET
    at: Time | UnsetType = UNSET
    tool: str | UnsetType = UNSET
    effect: str | UnsetType = UNSET
    approval: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    note: str | UnsetType = UNSET
    agent: str | UnsetType = UNSET


def run_event(e: RunEvent, longest: int | None = None) -> Event:
    """An event of a run; the answer of a commit is left out when it is longer than this."""
    # A piece of an answer names the step it will be, not the last one there is.
    fields: dict[str, Any] = {"session": e.session, "branch": MAIN, "step": e.step, "position": e.position, **e.data}
    fields["event"] = e.kind
    if longest is not None and len(fields.get("text") or "") > longest:
        fields |= {"text": None, "size": len(fields["text"])}
    # Only what is listed: the kind of an event is not that of a commit.
    return shaped(Event, None, **{name: value for name, value in fields.items() if name in Event.__struct_fields__})


class Rescan(Shape):
    """What came after the place that was named cannot be told any more: read everything again."""

    reason: str
