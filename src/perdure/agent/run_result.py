"""What a run of an agent ended with, kept apart from where the session stands; and what it waits for.

What waits for a person is written as AG-UI 1.0 writes an interrupt, for webhooks, HTTP and the command line alike. The
names of the object's own fields are the protocol's; what we add is in ``metadata``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.agent.requests import AGENT
from perdure.session.calls.records import MISFIT, OPEN, RECORD, exception_of, unfit
from perdure.state.document import plain
from perdure.system.times import timestamp
from perdure.system.wording import call_words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.history.origin import Origin
    from perdure.session.calls.approvals import Approval

DONE = "done"
WAITING_APPROVAL = "waiting_approval"
WAITING_RESULT = "waiting_result"
SLEEPING = "sleeping"
IN_DOUBT = "in_doubt"
MAX_TURNS = "max_turns"
BUDGET = "budget"
DEADLINE = "deadline"
CANCELLED = "cancelled"
INCOMPATIBLE = "incompatible"
FAILED = "failed"
STOPPED = "stopped"
"""Put down between two steps because its process is to end, and another one goes on; or a dry run came upon a call that
it must not go on with."""


class Doubt(NamedTuple):
    """An effect that was started and nobody knows whether it happened, as a person must be asked about it."""

    effect: str
    tool: str
    args: dict[str, Any]
    attempt: int
    question: str


class Raised(NamedTuple):
    """A call whose tool ended with an exception, of which the model was told; for whoever wrote the tool."""

    effect: str
    tool: str
    call: str
    """Tool and arguments in words, shortened."""
    status: str
    """raised: what it had changed by then is not known; failed: nothing; done: it had happened; unknown: the answer was
    lost, and nobody will find out"""
    error: str
    """The class of the exception; "" when its process ended before there was one."""
    message: str
    traceback: str
    """Where it came from, the innermost place last; without secrets, and no longer than is of use."""
    again: str = ""
    """The effect under which the same call was made again since, and was done."""

    def __str__(self) -> str:
        if not self.error:
            return f"{self.call} got no answer"
        return f"{self.call} raised {self.error}{': ' + self.message if self.message else ''}"


class Child(NamedTuple):
    """An agent that works for another one in a session of its own."""

    effect: str
    """The call of the parent that waits for it."""
    tool: str
    session: str
    status: str
    """Where its session stands."""


class Spent(NamedTuple):
    """Tokens and money."""

    input: int = 0
    output: int = 0
    cached: int = 0
    cost: float = 0.0
    """In the currency of the price table; 0 when the model's price is not known."""

    def plus(self, other: Spent) -> Spent:
        """Both together."""
        return Spent(
            self.input + other.input, self.output + other.output, self.cached + other.cached, self.cost + other.cost
        )


class RunResult(NamedTuple):
    """How a run ended, and what to do next."""

    status: str
    session: str
    text: str = ""
    """The last thing the agent said."""
    output: Any = None
    """The structured output, when one was asked for."""
    step: int = 0
    turns: int = 0
    spent: Spent = Spent()
    """By this run, over all its attempts."""
    approvals: tuple[Approval, ...] = ()
    in_doubt: tuple[Doubt, ...] = ()
    reason: str = ""
    """Why it ended as it did, in words, where that is not plain."""
    origin: Origin | None = None
    """Whether the session was created, resumed or restarted, and why."""
    notes: tuple[str, ...] = ()
    total: Spent = Spent()
    """By the whole session, over all its runs."""
    until: int | None = None
    """When the session is to be woken next, in ms since 1970."""
    children: tuple[Child, ...] = ()
    """Agents that were given work by this one and have not ended."""
    agent: str = ""
    """Who has the conversation: the agent that was run, or whom it was handed to."""
    raised: tuple[Raised, ...] = ()
    """Calls of this run whose tools ended with exceptions, the newest 20."""
    message_key: str = ""
    """The key of the message that was given: said again with it, it is answered with the same."""
    repeated: bool = False
    """Whether the message had been answered before, and this is that answer."""

    @property
    def ok(self) -> bool:
        """Whether the agent finished what it was asked."""
        return self.status == DONE


MOST_RAISED = 20
"""Calls with exceptions that are kept of a run, the newest."""
_RAISED = "raised"
_MISFITS = "misfits"
_WORDS = 200
"""Characters of such a call's arguments that are kept with its exception."""


def note_raised(notes: Any, record: dict[str, Any]) -> None:
    """Keep the exception of a call that has an outcome now among the notes of the run that is under way."""
    noted: list[dict[str, str]] = plain(notes.get(_RAISED, []))
    if record["status"] == "done" and any(_is_same(r, record) for r in noted):
        notes[_RAISED] = noted = [{**r, "again": record["id"]} if _is_same(r, record) else r for r in noted]
    if (told := exception_of(record)) is None:
        return
    notes[_RAISED] = [*noted, {**_about(record), "digest": record["digest"], **told}][-MOST_RAISED:]


def _is_same(noted: Mapping[str, str], record: Mapping[str, Any]) -> bool:
    return noted.get("digest") == record["digest"] and noted["status"] == "raised"


def note_misfit(notes: Any, record: dict[str, Any]) -> str:
    """Keep that a result is not what its tool declares among the notes of the run that is under way; it in words."""
    if record["status"] != "done" or MISFIT not in record:
        return ""
    noted: dict[str, str] = {**plain(notes.get(_MISFITS, {})), record["id"]: unfit(record)}
    notes[_MISFITS] = dict(list(noted.items())[-MOST_RAISED:])
    return noted[record["id"]]


def forget_noted(notes: Any) -> None:
    """Another run begins."""
    notes.pop(_RAISED, None)
    notes.pop(_MISFITS, None)


def misfits_in(book: Mapping[str, Any]) -> list[str]:
    """What is said of results that are not what their tools declare: of the last run, and of calls still held."""
    notes: dict[str, Any] = book.get(AGENT) or {}
    done = [r for r in book.get("effects", {}).values() if r["status"] == "done" and MISFIT in r]
    return list({**notes.get(_MISFITS, {}), **{r["id"]: unfit(r) for r in done}}.values())


def raised_in(book: Mapping[str, Any]) -> list[Raised]:
    """Calls whose tools ended with exceptions, and others of which nobody knows what they did: those of the last run,
    those that the journal still holds, and those that are remembered until somebody has said what became of them."""
    notes: dict[str, Any] = book.get(AGENT) or {}
    noted = [_raised(r) for r in notes.get(_RAISED, ())]
    seen = {one.effect for one in noted}
    done = {r["digest"]: r["id"] for r in book.get("effects", {}).values() if r["status"] == "done"}
    records = list(book.get("effects", {}).values())
    # The model was told long ago, and is refused the same call until a person says what became of this one.
    kept = [one[RECORD] for one in book.get("raised", {}).values() if RECORD in one]
    records = [*(r for r in kept if all(r["id"] != held["id"] for held in records)), *records]
    held = [
        _raised({**_about(r), **told, "again": done.get(r["digest"], "") if r["status"] == "raised" else ""})
        for r in records
        if r["id"] not in seen and r["status"] not in OPEN and (told := _ended_with(r)) is not None
    ]
    return [*noted, *held]


def _ended_with(record: dict[str, Any]) -> dict[str, str] | None:
    """The exception of a call; nothing in its fields where nobody knows what became of it and there was none."""
    if (told := exception_of(record)) is not None or record["status"] != "unknown":
        return told
    return {"class": "", "message": "", "traceback": ""}


def _about(record: Mapping[str, Any]) -> dict[str, str]:
    call = call_words(record["tool"], record["args"], _WORDS, 40)
    return {"effect": record["id"], "tool": record["tool"], "call": call, "status": record["status"]}


def _raised(r: Mapping[str, str]) -> Raised:
    again = r.get("again", "")
    return Raised(r["effect"], r["tool"], r["call"], r["status"], r["class"], r["message"], r["traceback"], again)


def approval_interrupt(a: Approval, session: str, branch: str, tool_call_id: str = "") -> dict[str, Any]:
    """A request for agreement or an answer; the call is known by its effect where the model gave it no id."""
    wanted: dict[str, Any] = (
        {"answer": a.schema or {}}
        if a.question
        else {"approved": {"type": "boolean"}, "editedArgs": {"type": "object"}}
    )
    wanted["reason"] = {"type": "string"}
    reason = "input_required" if a.question else "tool_call"
    message = a.question or f"May {a.tool} be called?{' ' + a.because if a.because else ''}"
    about = {"facts": a.facts, "because": a.because, "asked_at": timestamp(a.asked)}
    interrupt = _interrupt(a.id, reason, message, wanted, a, session, branch, about)
    return {**interrupt, "toolCallId": tool_call_id or a.effect, "expiresAt": timestamp(a.expires)}


def doubt_interrupt(d: Doubt, session: str, branch: str) -> dict[str, Any]:
    """A call in doubt: somebody has to say what became of it."""
    wanted = {"verdict": {"enum": ["done", "retry", "abort"]}, "result": {}}
    about = {"facts": None, "because": "", "attempt": d.attempt}
    return _interrupt(d.effect, "in_doubt", d.question, wanted, d, session, branch, about)


def _interrupt(
    id: str, reason: str, message: str, wanted: dict[str, Any], of: Approval | Doubt, session: str, branch: str,
    about: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    # A doubt is settled by a call that takes more than this.
    closed = {} if reason == "in_doubt" else {"additionalProperties": False}
    call = {"session": session, "branch": branch, "effect": of.effect, "tool": of.tool, "args": of.args}
    return {
        "id": id,
        "reason": reason,
        "message": message,
        "toolCallId": of.effect,
        "responseSchema": {"type": "object", "properties": wanted, "required": [next(iter(wanted))], **closed},
        "expiresAt": None,
        "metadata": {**call, **about, "truncated": []},
    }
