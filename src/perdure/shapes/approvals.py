"""What waits for people in JSON: approvals as interrupts of AG-UI 1.0, calls with the outside world, and decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec
from msgspec import UNSET, UnsetType

from perdure.agent.run_result import approval_interrupt, raised_in
from perdure.session.calls.approvals import Approval
from perdure.session.calls.records import MISFIT, exception_of, is_tried_again, lookup_error
from perdure.shapes.basics import Page, Shape, Time, shaped
from perdure.shapes.truncation import Truncation, bounded
from perdure.state.document import plain
from perdure.system.times import timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.history.checkpoint import Reading
    from perdure.session.handover import Handover

IN_LIST = 64 << 10
"""Bytes of arguments, facts or a result that are shown in a list."""
OPEN = ("started", "in_doubt", "unknown", "raised")
"""Effects whose outcome somebody may have to find out."""


class ToolException(Shape):
    """The exception that a tool ended with, as it is kept: bounded, and without secrets."""

    error: str
    """Its class."""
    message: str
    traceback: str
    """Where it came from, the innermost place last."""


def tool_exception(told: Mapping[str, str]) -> ToolException:
    """What the journal keeps of an exception."""
    return ToolException(error=told["class"], message=told["message"], traceback=told["traceback"])


class InterruptMetadata(Shape):
    """What an interrupt is about; unlike the interrupt itself, this is ours and in snake_case."""

    session: str
    branch: str
    effect: str
    """The id of the call."""
    tool: str
    args: Any
    facts: Any
    """What the request rests on: it is void when they change."""
    because: str
    """Why somebody is asked, when it is not the tool's own rule."""
    truncated: list[Truncation]
    """Where args and facts are too long to be shown whole; what is agreed to with `editedArgs` must be whole."""
    asked_at: Time | UnsetType = UNSET
    attempt: int | UnsetType = UNSET
    """Of a call in doubt: how often it was made."""


class Interrupt(Shape, rename="camel"):
    """A request for a person's agreement or answer, exactly as the protocol AG-UI 1.0 writes it: in camelCase."""

    id: str
    reason: Literal["tool_call", "input_required", "in_doubt"]
    """in_doubt only in notifications: a call whose outcome somebody has to say."""
    message: str
    """The question, when a tool asks for an answer."""
    tool_call_id: str
    """The id that the model gave the call, else that of the effect."""
    response_schema: dict[str, Any]
    """JSON Schema of the `payload` of a decision."""
    expires_at: Time | None
    metadata: InterruptMetadata


def interrupts(
    book: Mapping[str, Any], session: str, branch: str, undecided: list[Any], limit: int | None = None
) -> list[Interrupt]:
    """The requests without a decision in the book of a branch; long arguments are cut at so many bytes."""
    effects: dict[str, Any] = book.get("effects", {})
    loop: dict[str, Any] = book.get("agent") or {}
    listed: list[dict[str, Any]] = loop.get("calls") or []
    # The model's own ids of the calls that an agent has open, by effect.
    calls = {effects[c["slot"]]["id"]: str(c["id"]) for c in listed if c.get("slot") in effects}
    found: list[Interrupt] = []
    for record in undecided:
        a = Approval(**plain(record))
        args, cut_args = bounded(a.args, limit, "/args")
        facts, cut_facts = bounded(a.facts, limit, "/facts")
        told = approval_interrupt(a._replace(args=args, facts=facts), session, branch, calls.get(a.effect, ""))
        one = msgspec.convert(told, Interrupt)
        one.metadata.truncated = [*cut_args, *cut_facts]
        found.append(one)
    return found


class Effect(Shape):
    """A call with the outside world, as the journal has it."""

    session: str
    branch: str
    id: str
    tool: str
    status: Literal["planned", "started", "waiting", "done", "failed", "raised", "in_doubt", "unknown"]
    """raised: its tool ended with an exception, and what it had changed by then is not known."""
    attempt: int
    """How often it was made."""
    at: Time
    line: int
    """The line of checkpoints it was planned on."""
    digest: str
    """Of tool, version and arguments."""
    args: Any
    result: Any
    error: str
    truncated: list[Truncation]
    """Where args and result are too long to be shown whole."""
    exception: ToolException | UnsetType = UNSET
    """That its tool ended with, or that its answer was last lost with."""
    misfit: str | UnsetType = UNSET
    """What of its result does not fit the type that its tool declares; the result is kept as it is."""
    lookup_error: str | UnsetType = UNSET
    """What the function ended with that its tool has to find out what became of the call, or whether its result is
    there."""
    lost_since_at: Time | UnsetType = UNSET
    """Since when its answers are lost and it is made again, by whoever works on its session."""
    retry_at: Time | UnsetType = UNSET
    """From when on whoever works on its session makes it again."""
    tool_call_id: str | UnsetType = UNSET
    """The id that the model gave it."""
    approval: str | UnsetType = UNSET
    progress: Any | UnsetType = UNSET
    """What the tool said last of how far it is."""
    resolved_by: str | UnsetType = UNSET
    edited: bool | UnsetType = UNSET
    """Whether a person changed its arguments."""
    handle: Any | UnsetType = UNSET
    """By which the tool is asked for a result that comes later."""
    answers: list[Any] | UnsetType = UNSET
    """Of people to what the tool asked."""
    previous_ids: list[str] | UnsetType = UNSET
    """On the lines it came from."""


def effect(record: Mapping[str, Any], session: str, branch: str, limit: int | None = None) -> Effect:
    """A call of the journal; arguments and result are cut at so many bytes."""
    args, cut_args = bounded(record["args"], limit, "/args")
    result, cut_result = bounded(record.get("result"), limit, "/result")
    names = ("approval", "progress", "resolved_by", "edited", "handle", "answers", MISFIT)
    more = {name: bounded(record[name], limit)[0] for name in names if name in record}
    if "call" in record:
        more["tool_call_id"] = record["call"]
    if "was" in record:
        more["previous_ids"] = record["was"]
    if (told := exception_of(plain(record))) is not None:
        more["exception"] = tool_exception(told)
    if failed := lookup_error(plain(record)):
        more["lookup_error"] = failed
    if is_tried_again(plain(record)):
        more["lost_since_at"] = timestamp(record["lost_since"])
        if "retry_at" in record:
            more["retry_at"] = timestamp(record["retry_at"])
    return Effect(
        session=session, branch=branch, id=record["id"], tool=record["tool"], status=record["status"],
        attempt=record["attempt"], at=timestamp(record["at"]), line=record["line"], digest=record["digest"], args=args,
        result=result, error=str(record.get("error") or ""), truncated=[*cut_args, *cut_result], **more,
    )  # fmt: skip


class RaisedCall(Shape):
    """A call whose tool ended with an exception."""

    effect: str
    tool: str
    call: str
    """Tool and arguments in words, shortened."""
    status: Literal["raised", "failed", "done", "unknown"]
    """raised: what it had changed by then is not known; failed: nothing; done: it had happened; unknown: the answer was
    lost."""
    error: str
    """The class of the exception; empty when its process ended before there was one."""
    message: str
    traceback: str
    """Where it came from, the innermost place last."""
    again: str
    """The effect under which the same call was made again since, and was done; else empty."""


def raised_calls(book: Mapping[str, Any]) -> list[RaisedCall]:
    """Those of the last run, those that the journal still holds, and those of which nobody has said what they did."""
    return [shaped(RaisedCall, one) for one in raised_in(book)]


class Effects(Page[Effect]):
    """Calls of a journal, and what is kept of calls that it holds no more."""

    raised: list[RaisedCall]
    """Calls of the last run, or that the journal holds, whose tools ended with exceptions; whatever page this is."""
    misfits: list[str]
    """Of results, kept as they are, that do not fit what their tools declare to return; whatever page this is."""


class Waiting(Shape):
    """What waits for somebody on a branch."""

    session: str
    branch: str
    approvals: list[Interrupt]
    effects: list[Effect]
    """Calls that were started and have no outcome, or that ended with an exception."""
    raised: list[RaisedCall]
    """Calls of the last run, or that the journal holds, whose tools ended with exceptions."""


def waiting(reading: Reading, session: str, branch: str, undecided: list[Any]) -> Waiting:
    """What waits for somebody at a checkpoint, with nothing left out."""
    book = plain(reading.book)
    effects = [effect(e, session, branch) for e in book.get("effects", {}).values() if e["status"] in OPEN]
    asks = interrupts(book, session, branch, undecided)
    return Waiting(session=session, branch=branch, approvals=asks, effects=effects, raised=raised_calls(book))


class Decided(Shape):
    """What was decided on an approval."""

    session: str
    id: str
    """Of the approval."""
    decision: Literal["approved", "rejected", "answered"]
    woken: Literal["worker", "holder", "nobody"]
    """Who goes on with the session: a worker of the fleet, at once; whoever has its lease; or nobody by itself."""
    next: str
    """The same as a sentence; where nobody goes on by itself, with what to do."""


def decided(session: str, id: str, decision: Literal["approved", "rejected", "answered"], handed: Handover) -> Decided:
    """What was decided, and who goes on."""
    return Decided(session=session, id=id, decision=decision, woken=cast("Any", handed.to), next=handed.words)
