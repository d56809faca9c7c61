"""What waits for people: interrupts in the shape of AG-UI 1.0, effects, and what is said to them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from perdure.model import MAIN
from perdure.server.shapes.basics import Asked, By, Cursor, Limit, Name, Reason, Shape, Text
from perdure.server.shapes.past import At, Cut

# -- people ----------------------------------------------------------------------------------------------------------


class About(Shape):
    """What an interrupt is about."""

    session: str
    branch: str
    effect: str
    tool: str
    args: Any
    facts: Any
    cut: list[Cut]
    """Where args and facts are too long to be shown whole; what is agreed to with ``editedArgs`` must be whole."""
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
    aside: Annotated[
        bool, Meta(description="Also what waits on other branches of sessions that do not wait; goes through them all.")
    ] = False
