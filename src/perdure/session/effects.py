"""The effect journal: a call is written down before it is made, and its outcome before anybody is told.

An effect is planned, started, done, failed, raised or in doubt: :class:`Effects` keeps the records, :class:`Calls`
makes the calls, one at a time or those of a model's answer in parallel. Identity of a call: inside a run its place in
the run; with ``options(key=...)`` that key; otherwise tool, version and arguments. A recorded outcome is returned,
never made again. What a tool declares decides what an exception, a lost answer or a kill means; ``tool_exceptions``
tells them apart.

Long because every way to an outcome is a way through the same few states: read apart, none could be checked.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from perdure import errors, telemetry
from perdure.errors import (
    ApprovalNeeded,
    ApprovalRuleFailed,
    CallError,
    Diverged,
    DoneElsewhere,
    EffectFailed,
    EffectRaised,
    InDoubt,
    NotFound,
    NotJson,
    ResultPending,
)
from perdure.history.reader import history
from perdure.model import Kind, Status
from perdure.session.effects_on_other_branches import OPEN, OtherBranches, Outcome, done_elsewhere, made_otherwise
from perdure.session.inbox import posted, seal_entry
from perdure.session.late_returns import Attempt, runs_on, warn
from perdure.session.read_cache import declared
from perdure.session.tool_exceptions import Meaning, described, in_short, is_cancellation, is_own_cancellation, meaning
from perdure.session.tools import (
    Asking,
    Context,
    Done,
    Later,
    ModelRetry,
    NotDone,
    Tool,
    Unknown,
    as_tool,
    call_digest,
    check_depth,
    runnable,
)
from perdure.state.document import plain
from perdure.state.values import refusal
from perdure.system import faults
from perdure.system.commands import quoted
from perdure.system.flow import Do, Flow, Invoke, Wait, drive, entered
from perdure.system.wording import call_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.kernel import Kernel
    from perdure.model import Envelope
    from perdure.session.approvals import Approvals
    from perdure.session.inbox import Inbox
    from perdure.session.journal import Journal
    from perdure.session.read_cache import ReadCache
    from perdure.state.document import TrackedDict

    Carrier = Callable[[], Callable[[Flow[Any]], Any]]

RESTORED = "restored"
"""Marks the record of an effect that only a witness knew of when the store had been put back to an older state."""
ARGS_LOST = "args_lost"
"""Marks such a record where the witness alone knew of the call: it sees digests of arguments, never themselves."""
BEHIND = "behind"
"""Under this a planned call names the effect of another session whose result it waits for."""
DONE_ELSEWHERE = (
    "was done on another branch or before a rewind, and that outcome is taken when it goes on, without a call"
)
"""What is said of an open call whose outcome another line has."""
DRY = "dry run: nothing is called"
"""What is said of a call that a dry run has not made."""
LOOKUP = "lookup_error"
"""In a record: what the function that finds out what became of the call ended with."""
MAX_ERROR = 2000
"""Characters of an error's text that are kept."""
SEARCHED = 1000
"""How many checkpoints are looked through for an effect whose record is forgotten."""
READ_TRIES = 3
"""How often a read is tried whose answer is lost."""
FIRST_PAUSE, LONGEST_PAUSE = 1_000, 60_000
"""Ms before a call is tried again whose answer was lost, at first and at most; doubled each time, and durable."""
RETRY_FOR = 24 * 3600
"""Seconds for which a call whose answers are lost is tried again under its id before a person is asked."""
ASK_AGAIN = 2
"""How often in a row a tool may have the model ask otherwise."""
MAX_REMEMBERED = 300
"""Characters of the exception of a call that is remembered as having raised."""
RAISED_KEPT = 1000
"""Calls that raised, or were made with other arguments than were asked for, and are remembered so that a repetition is
noticed, the newest."""
_UNSET: Any = object()
_under_way: ContextVar[frozenset[tuple[int, str]]] = ContextVar("perdure_under_way", default=frozenset())
"""The calls that the code which runs now is inside of."""


class Observer(Protocol):
    """Who works through a handle and acts on outcomes as they are recorded: an agent's loop."""

    def outcome(self, record: TrackedDict) -> None:
        """An outcome is about to be written: the commit that makes it durable also takes what is edited here."""
        ...

    def may_wait(self, record: TrackedDict) -> bool:
        """Whether an outcome need not be durable before the next commit, whatever that is: of a read, at most."""
        ...


class Effects:
    """The records of a session's effects."""

    def __init__(self, journal: Journal, inbox: Inbox, cache: ReadCache) -> None:
        self._journal = journal
        self._inbox = inbox
        self._cache = cache
        self.observer: Observer | None = None

    def resolve(
        self, effect: str, *, done: Any = _UNSET, retry: bool = False, abort: bool = False, by: str = ""
    ) -> Flow[None]:
        """Settle an effect in doubt: it happened with this result, or may be tried again, or is given up."""
        self._journal.guard.check()
        if (done is not _UNSET) + retry + abort != 1:
            raise CallError("resolve with exactly one of done=result, retry=True, abort=True")
        record = yield from self._open(effect)
        reported = yield from self._inbox.waiting(f"outcome:{effect}")
        if reported and record["status"] in OPEN:
            raise CallError(
                f"the outcome of effect {effect} was reported meanwhile, and waits in the inbox: it is settled by that "
                "as soon as somebody goes on with the session",
                effect,
            )
        # A call that is only planned may be in the way of other sessions, which wait for it.
        claimed = record["status"] == "planned" and claims(record)
        if claimed and not abort:
            raise CallError(
                f"effect {effect} was planned and not made: go on with its session, or abort=True gives it up"
            )
        if not claimed and record["status"] not in ("started", "in_doubt", "unknown", "raised"):
            request = plain(self._journal.book.get("approvals", {}).get(record.get("approval", "")))
            decided = bool(request and (yield from self._inbox.waiting(f"decision:{request['id']}")))
            stands = _standing(plain(record), asked(request, decided, self._journal.kernel.clock.wall()))
            raise CallError(f"effect {effect} is not in doubt: {stands}", effect)
        if record["status"] in OPEN and self._journal.settings.effects != "live":
            journal = self._journal
            known = yield Do(done_elsewhere, (journal.kernel, journal.id, _stands_at(journal), journal.book))
            if effect in known:
                raise CallError(f"effect {effect} is not in doubt: it {DONE_ELSEWHERE}", effect)
        for entry in reported:
            # Nobody would ever ask for it.
            yield from self._inbox.take_by_key(entry.kind, entry.key)
        record["resolved_by"] = by
        if done is not _UNSET:
            yield from self.finish(record, "done", done, None)
        elif abort:
            yield from self.finish(record, "failed", None, "given up")
        else:
            record["status"] = "planned"
            yield from self._journal.write(Kind.PLANNED, x=about(record), status=self.session_status())

    def all(self) -> list[dict[str, Any]]:
        """The effects this branch still holds records of, oldest first."""
        return [plain(r) for r in self._journal.book.get("effects", {}).values()]

    def session_status(self) -> str:
        """Where the session stands once what is being written is written."""
        effects = self._journal.book.get("effects", {}).values()
        if any(r["status"] == "in_doubt" for r in effects):
            return Status.IN_DOUBT
        if any(r["status"] == "pending" for r in self._journal.book.get("approvals", {}).values()):
            return Status.WAITING_APPROVAL
        if any(r["status"] == "waiting" for r in effects):
            return Status.WAITING_RESULT
        if any(r["status"] == "open" for r in self._journal.book.get("runs", {}).values()):
            return Status.RUNNING
        if self._journal.book.get("agent", {}).get("run") is not None:
            return Status.RUNNING
        return Status.IDLE if self._inbox.wakes_at is None else Status.SLEEPING

    def find(self, effect: str) -> TrackedDict:
        # The newest: a call that is repeated after it raised goes on under its id.
        for record in reversed(list(self._journal.book.get("effects", {}).values())):
            if record["id"] == effect:
                return record
        raise NotFound(f"session {self._journal.id!r} has no effect {effect!r} on branch {self._journal.branch!r}")

    def _open(self, effect: str) -> Flow[TrackedDict]:
        """One that may be settled; who names one that is settled is told so, also when its record is long forgotten."""
        try:
            return self.find(effect)
        except NotFound:
            last = yield Do(last_of, (self._journal.kernel, self._journal.id, self._journal.branch, effect))
            if last is None:
                raise
            raise CallError(f"effect {effect} is settled: {_settled(last)}, at step {last.step}", effect) from None

    def new(self, tool: Tool, bound: dict[str, Any], digest: str, slot: str) -> TrackedDict:
        effects = self._journal.book.setdefault("effects", {})
        effects[slot] = {
            "id": new_effect_id(),
            "tool": tool.name,
            "digest": digest,
            "args": bound,
            "status": "planned",
            "attempt": 0,
            "at": self._journal.kernel.clock.wall(),
            "line": self._journal.line,
        }
        if tool.cache is not None:
            effects[slot]["cache"] = declared(tool, digest)
        if tool.read:
            effects[slot]["read"] = True
        else:
            self._journal.calls[effects[slot]["id"]] = (tool.name, slot, digest)
        return effects[slot]

    def take_posted(self, record: TrackedDict) -> Flow[bool]:
        """Take an outcome that was posted under the effect's id; whether there was one."""
        late = yield from self.posted(record)
        if late is not None:
            yield from self.finish(record, *late)
        return late is not None

    def posted(self, record: TrackedDict) -> Flow[tuple[str, Any, str | None] | None]:
        """The outcome that was posted under the effect's id, as it is settled, to be taken by the next commit."""
        key = f"outcome:{record['id']}"
        late = yield from self._inbox.take_by_key("outcome", key)
        if late is not None:
            return "done", late.body, None
        late = yield from self._inbox.take_by_key("failure", key)
        return None if late is None else ("failed", None, str(late.body))

    def finish(self, record: TrackedDict, status: str, result: Any, error: str | None) -> Flow[None]:
        """Make an outcome durable."""
        self.settle(record, status, result, error)
        if (
            status == "done"
            and "at" in record.get("cache", ())
            and record["cache"]["shared"]
            and "reused" not in record
        ):
            # First: whoever dies before the outcome is written finds it there, and no other session pays meanwhile.
            yield from self._cache.keep_shared(
                record["tool"], plain(record["cache"]), plain(record["result"]), record["id"]
            )
        elif status == "failed":
            yield from self.unclaim(plain(record))
        if self.observer is not None and self.observer.may_wait(record):
            return
        kind = Kind(status) if status in ("done", "raised") else Kind.FAILED
        x = about(record) if status == "done" else about(record, error=error)
        faults.point("call.before_outcome")
        yield from self._journal.write(kind, x=x, status=self.session_status, stamp=(record, "where"))
        self._journal.calls.pop(record["id"], None)
        faults.point("call.after_outcome")

    def unclaim(self, record: dict[str, Any]) -> Flow[None]:
        """A call has certainly not happened: another session may make it, should it be a shared one."""
        if claims(record):
            yield from self._cache.give_up(record["tool"], record["cache"], record["id"])

    def settle(self, record: TrackedDict, status: str, result: Any, error: str | None) -> None:
        """Put an outcome into the journal; the next commit makes it durable."""
        if "reused" in record:
            telemetry.replayed(record["tool"], "cache" if record["reused"] == "cache" else "branch")
        if status == "done":
            self._journal.book.get("asked_again", {}).pop(record["tool"], None)
            # It happened: that must be recorded even though what it returned cannot be.
            if problem := refusal(result):
                record["problem"] = problem
            record["result"] = None if problem else result
            self._cache.keep_outcome(record)
        else:
            record["error"] = error
        self._remember(record, status)
        # Last: an interrupt before this leaves a call without an outcome, never one that is done without its result.
        record["status"] = status
        if self.observer is not None:
            self.observer.outcome(record)

    def _remember(self, record: TrackedDict, status: str) -> None:
        """Keep that a call raised, by what it was asked for, until the same has an outcome."""
        if "read" in record:
            return
        self._journal.book.get("raised", {}).pop(record["digest"], None)
        if status == "raised":
            raised = self._journal.book.setdefault("raised", {})
            kept = {name: record[name] for name in ("id", "attempt", "at")}
            raised[record["digest"]] = {**kept, "error": in_short(record["raised"])[:MAX_REMEMBERED]}
            for digest in list(raised)[:-RAISED_KEPT]:
                del raised[digest]

    def asked_again(self, tool: str) -> int:
        """Count that a tool has the model ask otherwise; how often in a row by now."""
        counts = self._journal.book.setdefault("asked_again", {})
        counts[tool] = counts.get(tool, 0) + 1
        return counts[tool]

    def retire(self, prefix: str) -> None:
        """Forget settled calls but for their digests: nobody will ask for them by their place again.

        Of reads nothing is kept: whoever asks again reads again.
        """
        effects = self._journal.book.get("effects", {})
        done = self._journal.book.setdefault("done", {})
        for slot in [s for s in effects if s.startswith(prefix)]:
            record = effects[slot]
            if record["status"] in OPEN:
                continue
            if "read" in record:
                pass
            elif "reused" in record:
                if record["reused"] != "cache":
                    self._journal.book.setdefault("reused", []).append(record["reused"])
            elif record["status"] == "done":
                if changed := made_otherwise(record):
                    edited = self._journal.book.setdefault("edited", {})
                    edited[record["asked"]] = changed
                    for old in list(edited)[:-RAISED_KEPT]:
                        del edited[old]
                # Without a place of its own the outcome came with a sibling's commit: it is at the head, in any case.
                where = record.get("where", [self._journal.line, self._journal.step])
                done.setdefault(record["digest"], []).append([record["id"], *where])
            elif record["status"] in ("unknown", "raised"):
                # Another line that would do it must be told, and there is no outcome to give it.
                done.setdefault(record["digest"], []).append([record["id"], self._journal.line, 0])
            self._journal.calls.pop(record["id"], None)
            del effects[slot]


def about(record: TrackedDict, **more: Any) -> dict[str, Any]:
    """What a checkpoint says in the clear of the call it records."""
    return {"effect": record["id"], "tool": record["tool"], **more}


def _stands_at(journal: Journal) -> tuple[int, int] | None:
    """The line and step that a journal stands at."""
    return None if journal.point is None else (journal.point.envelope.line, journal.point.envelope.step)


def asked(request: dict[str, Any] | None, decided: bool, now: int) -> str:
    """What a person was asked about a call that was not made for that reason; "" when nobody was."""
    if request is None or request["status"] != "pending":
        return ""
    if decided:
        return f"approval {request['id']} was decided on, and that is taken up as soon as somebody goes on"
    if now >= request["expires"]:
        return f"approval {request['id']} has expired, and it is turned down as soon as somebody goes on"
    if request.get("question"):
        return f"its tool has asked a person first, and waits for the answer to {request['id']}"
    return f"it waits for approval {request['id']}"


def _standing(record: dict[str, Any], asked: str) -> str:
    """Where a call stands that no doubt is about."""
    match record["status"]:
        case "done":
            return "it was done"
        case "failed":
            return f"it did not happen ({record['error']:.300})"
        case "waiting":
            return "it was made and its result comes later, so post its outcome"
        case _ if asked:
            return f"it was not made yet: {asked}"
        case _:
            return "it was not made yet, and is as soon as somebody goes on with the session"


def _settled(last: Envelope) -> str:
    """What became of a call whose record is forgotten, by the last checkpoint that tells of it."""
    match last.kind:
        case Kind.DONE:
            return "it was done"
        case Kind.FAILED:
            return f"it did not happen ({last.x.get('error') or 'no reason was given'!s:.300})"
        case Kind.RAISED | Kind.IN_DOUBT:
            return "nobody knows whether it happened, and whoever called was told so"
        case _:
            return "its outcome was recorded with those of other calls"


def last_of(kernel: Kernel, session: str, branch: str, effect: str) -> Envelope | None:
    """The last checkpoint of a branch that tells of an effect, among the newest; None when there is none. Blocks."""
    for point in history(kernel, session, branch, SEARCHED, None):
        x = point.envelope.x
        if x.get("effect") == effect or effect in x.get("effects", ()):
            return point.envelope
    return None


def new_effect_id() -> str:
    """A name for an effect, sent to providers as an idempotency key."""
    return "ef_" + os.urandom(12).hex()


class Call(NamedTuple):
    """One call of an answer: its tool and arguments, its place in the journal, and how the model names it."""

    tool: Tool
    args: dict[str, Any]
    slot: str
    id: str = ""


class Calls:
    """The calls of a handle: one at a time, or those of a model's answer side by side."""

    def __init__(
        self, journal: Journal, inbox: Inbox, effects: Effects, approvals: Approvals, cache: ReadCache, carrier: Carrier
    ) -> None:
        self._journal = journal
        self._inbox = inbox
        self.effects = effects
        self._approvals = approvals
        self._cache = cache
        self._carrier = carrier
        """Carries a flow out for a tool that is running; each kind of handle has its own way."""
        self.number = 0
        """How many calls the run under way has made."""
        self._others: tuple[int, OtherBranches] | None = None
        self._gates: dict[str, list[Any]] = {}
        """Of the calls under way, by their places: the gate, and how many are in it or wait."""
        self._gates_lock = threading.Lock()
        self._unmade: set[str] = set()
        """Effects written as started, to the best of our knowledge, and never made: the write's answer was lost."""

    def call(self, fn: Callable[..., Any] | Tool, /, *args: Any, **kwargs: Any) -> Flow[Any]:
        """Call a tool, journalled: a crash at any moment neither repeats nor forgets it.

        Raises ``InDoubt`` when it was started and nobody knows whether it happened, ``EffectFailed`` when the tool
        said that it did not, ``ApprovalNeeded`` when a person must agree first.
        """
        self._journal.guard.check()
        # What is known here may not be durable yet: the answer to its commit was lost.
        yield from self._journal.resend()
        tool = as_tool(fn)
        check_depth(tool)
        bound = tool.bind(args, kwargs)
        digest = call_digest(tool.name, tool.version, bound)
        if tool.read:
            return (yield from self._read(tool, bound, digest))
        slot = self._slot(tool, digest)
        inside = _under_way.get()
        if (id(self), slot) in inside:
            # A tool that calls itself: it would wait for its own end.
            return (yield from self._call(tool, bound, digest, slot))
        # Whoever asks for the same meanwhile, in another thread or task, waits for its outcome.
        place = self._place(slot)
        try:
            with (yield from entered(place[0])):
                before = _under_way.set(inside | {(id(self), slot)})
                try:
                    return (yield from self._call(tool, bound, digest, slot))
                finally:
                    with suppress(ValueError):  # thrown away somewhere else than it was driven
                        _under_way.reset(before)
        finally:
            with self._gates_lock:
                place[1] -= 1
                if not place[1]:
                    self._gates.pop(slot, None)

    def _place(self, slot: str) -> list[Any]:
        with self._gates_lock:
            place = self._gates.setdefault(slot, [type(self._journal.gate)(), 0])
            place[1] += 1
            return place

    def _call(self, tool: Tool, bound: dict[str, Any], digest: str, slot: str) -> Flow[Any]:
        if self._journal.catching_up is not None:
            yield from self._journal.catching_up.call(slot, tool.name, digest)
        record: TrackedDict | None = self._journal.book.get("effects", {}).get(slot)
        if record is not None and record.get("asked", record["digest"]) != digest:
            msg = f"{slot}: recorded as a call of {record['tool']} with other arguments than this call of {tool.name}"
            raise Diverged(msg)
        if record is not None and (self._is_over(slot, record) or self._is_repeated(slot, record)):
            self.effects.retire(slot)
            record = None
        if record is None:
            record = yield from self._begin(tool, bound, digest, slot)
        elif record["status"] in OPEN:
            yield from self.reconsider(tool, record)
        else:
            telemetry.replayed(tool.name, "journal")
        return (yield from self.go_on(tool, bound, record))

    def _slot(self, tool: Tool, digest: str) -> str:
        if tool.key is not None:
            return f"k:{tool.name}:{tool.key}"
        if self._journal.run is not None:
            self.number += 1
            return f"r:{self._journal.run}:{self.number}"
        return f"c:{digest}"

    def _is_over(self, slot: str, record: TrackedDict) -> bool:
        """Whether a call that is known by its arguments alone returned something whose time is over."""
        kept = record.get("cache", {})
        return slot.startswith("c:") and record["status"] == "done" and "at" in kept and not self._cache.fresh(kept)

    def _is_repeated(self, slot: str, record: TrackedDict) -> bool:
        """Whether a call that raised is asked for again, and not merely caught up with."""
        return not slot.startswith("r:") and record["status"] == "raised"

    def _kept(self, tool: Tool, digest: str) -> Flow[dict[str, Any] | None]:
        """What the same call returned lately: here, on another branch, or in another session of the owner."""
        if tool.cache is None:
            return None
        wanted = declared(tool, digest)
        hit = yield from self._cache.find(wanted)
        if hit is None and (tool.read or self._journal.settings.effects != "live"):
            others = yield from self.other_branches()
            hit = others.kept.get(wanted["name"])
        return plain(hit) if self._cache.fresh(hit) else None

    def _read(self, tool: Tool, bound: dict[str, Any], digest: str) -> Flow[Any]:
        """A read runs whenever asked, unless a recorded answer is still fresh."""
        if (hit := (yield from self._kept(tool, digest))) is not None:
            telemetry.replayed(tool.name, "cache")
            return tool.types.result(hit["result"])
        self._journal.check_open()
        result = yield from self._read_patiently(tool, bound)
        if tool.cache is None:
            return tool.types.as_declared(result)
        result = tool.types.result_as_json(result)
        if self._journal.catching_up is None:
            wanted = declared(tool, digest)
            self._cache.keep(wanted, result)
            # A cached read is one somebody pays for: it is durable before anyone sees it.
            yield from self._journal.write(Kind.DONE, x={"tool": tool.name})
            if wanted["shared"]:
                yield from self._cache.keep_shared(tool.name, wanted, result)
        return tool.types.result(result)

    def _read_patiently(self, tool: Tool, bound: dict[str, Any]) -> Flow[Any]:
        """Make a read; one whose answer is lost is made again, a few times."""
        for attempt in range(1, READ_TRIES + 1):
            try:
                with telemetry.tracing.execute_tool(tool.name, self._journal.id, bound, {}) as span:
                    result = yield Invoke(runnable(tool), (), self._arguments(tool, bound, None))
                    span.returned(result)
                    return result
            except BaseException as e:
                if attempt == READ_TRIES or is_own_cancellation(e) or not _is_lost(tool, e):
                    raise
            yield Wait(self._journal.kernel.clock, pause_after(attempt))
        raise AssertionError

    def _arguments(self, tool: Tool, bound: dict[str, Any], record: TrackedDict | None) -> dict[str, Any]:
        bound = tool.types.arguments(bound)
        if not tool.wants_context:
            return bound
        if record is None:
            return {**bound, "ctx": Context("", self._journal.fence, self._journal.id, 1)}
        carry = self._carrier()

        def write(data: Any) -> Any:
            return carry(self._progress(record, data))

        def wake(at: Any, *, key: str = "", **options: Any) -> Any:
            return carry(self._inbox.wake_later(f"{record['id']}:{key}" if key else record["id"], at=at, **options))

        more: dict[str, Any] = {"write": write, "wake": wake, "last_progress": plain(record.get("progress"))}
        more["answers"] = tuple(plain(record.get("answers", ())))
        return {**bound, "ctx": Context(record["id"], self._journal.fence, self._journal.id, record["attempt"], **more)}

    def _progress(self, record: TrackedDict, data: Any) -> Flow[None]:
        record["progress"] = data
        yield from self._journal.write(Kind.PROGRESS, x=about(record))

    def _begin(self, tool: Tool, bound: dict[str, Any], digest: str, slot: str) -> Flow[TrackedDict]:
        """Plan a call that was never made on this line, unless another line has made it, or its result is kept."""
        if (hit := (yield from self._kept(tool, digest))) is not None:
            record = self.effects.new(tool, bound, digest, slot)
            yield from self._finish_with(record, hit)
            return record
        reused: Any = None
        if self._journal.settings.effects != "live":
            if (record := (yield from self._awaited(tool, bound, digest, slot))) is not None:
                yield from self._write_waiting(record)
                return record
            reused = yield from self._reuse(tool, digest)
            if reused is None and self.is_dry:
                raise CallError(f"dry run: {tool.name} is not called")
        before = plain(self._journal.book.get("raised", {}).get(digest))
        record = self.effects.new(tool, bound, digest, slot)
        if reused is not None:
            _take_over(record, reused)
            yield from self.effects.finish(record, "done", reused.result, None)
        elif before is not None and (refused := self._repeat(tool, record, before)):
            yield from self.effects.finish(record, "failed", None, refused)
        else:
            if self._journal.settings.effects != "live":
                yield from self._say_if_edited(record)
            if claims(record):
                # A claim names it, so it must be known here after a crash.
                yield from self._journal.write(Kind.PLANNED, x=about(record))
        return record

    def _say_if_edited(self, record: TrackedDict) -> Flow[None]:
        """Have somebody agree to a call that a person has had made otherwise on another branch, and tell him so."""
        others = yield from self.other_branches()
        if "because" not in record and record["digest"] in others.edited:
            effect, call = others.edited[record["digest"]]
            record["because"] = f"the same was asked for on another branch, and made there as {call} (effect {effect})"

    def _repeat(self, tool: Tool, record: TrackedDict, before: dict[str, Any]) -> str:
        """A call is asked for again that raised: go on under its id, ask somebody, or say why it is refused."""
        known = f"the same call ended with {before['error']}, and what it had changed by then is not known"
        if callable(tool.if_unsure):
            # What became of it is asked first.
            record.update(id=before["id"], attempt=before["attempt"], at=before["at"], status="in_doubt")
        elif tool.if_unsure == "retry" and self._key_holds(tool, before["at"]):
            record.update(id=before["id"], attempt=before["attempt"], at=before["at"])
        elif tool.if_unsure == "report":
            return f"{known}: it is not made again"
        else:
            record["because"] = known
        return ""

    def _finish_with(self, record: TrackedDict, hit: dict[str, Any]) -> Flow[None]:
        record["reused"] = "cache"
        record["cache"]["at"] = hit["at"]
        yield from self.effects.finish(record, "done", hit["result"], None)

    def other_branches(self) -> Flow[OtherBranches]:
        journal = self._journal
        if self._others is None or self._others[0] != journal.loads:
            found = yield Do(OtherBranches, (journal.kernel, journal.id, _stands_at(journal), journal.book))
            self._others = (journal.loads, found)
        return self._others[1]

    def _where(self, effect: str) -> str:
        """Where an effect was made that is not of this line, for people."""
        restored = self._others is not None and effect in self._others[1].restored
        return "before the store was put back" if restored else "on another branch"

    def _on_another_branch(self, digest: str) -> Flow[tuple[Outcome | None, str]]:
        """The outcome to reuse, or the id of the same effect on another line."""
        others = yield from self.other_branches()
        if self._journal.settings.effects == "live":
            return None, others.report(digest)
        reused = yield Do(others.reuse, (digest,))
        return reused, "" if reused is not None else others.report(digest)

    def _awaited(self, tool: Tool, bound: dict[str, Any], digest: str, slot: str) -> Flow[TrackedDict | None]:
        """The same call on the line we came from, whose result comes later: this line waits for it, too."""
        others = yield from self.other_branches()
        there = others.awaited(digest)
        if there is None:
            return None
        record = self.effects.new(tool, bound, digest, slot)
        self._journal.calls.pop(record["id"], None)
        _wait_too(record, there)
        return record

    def _reuse(self, tool: Tool, digest: str) -> Flow[Outcome | None]:
        """What the same call returned on the line we came from; refuses when any other line has made it."""
        reused, other = yield from self._on_another_branch(digest)
        if other:
            raise _done_elsewhere(tool, other, self._where(other))
        return reused

    def reconsider(self, tool: Tool, record: TrackedDict, *, ask: bool = False) -> Flow[None]:
        """An effect that is open here may have gone further on another line, which knew it when the lines parted.

        Where all calls are made, with ``ask`` somebody has to agree to such a one first.
        """
        planned = record["status"] == "planned"
        if planned and record["line"] == self._journal.line and (yield from self._reported(record)):
            return
        # Somebody may have paid since it was planned.
        look = planned and "cache" in record and "approval" not in record
        hit = (yield from self._kept(tool, record["digest"])) if look else None
        if hit is not None:
            yield from self._finish_with(record, hit)
            return
        if tool.read:
            return
        reused = there = None
        if self._journal.settings.effects == "live":
            planned = (yield from self._planned_anew(record)) if ask else planned
        else:
            elsewhere = yield from self.other_branches()
            further, reused = yield Do(elsewhere.twin, (record["id"], record["attempt"]))
            there = elsewhere.waiting(record["id"]) if record["status"] != "waiting" else None
            if planned and reused is None and there is None:
                if further:
                    raise _done_elsewhere(tool, record["id"], self._where(record["id"]))
                reused = yield from self._reuse(tool, record["digest"])
        if planned and (reused is not None or there is not None or record["line"] != self._journal.line):
            request = self._journal.book.get("approvals", {}).get(record.pop("approval", ""))
            if request is not None and request["status"] in ("pending", "approved"):
                if record["line"] == self._journal.line:
                    yield from self._approvals.outdate(request)
                request["status"] = "stale"
        if reused is not None:
            _take_over(record, reused)
            yield from self.effects.finish(record, "done", reused.result, None)
        elif there is not None:
            _wait_too(record, there)
            yield from self._write_waiting(record)
        elif planned and record["line"] != self._journal.line:
            # Not made anywhere yet, and both lines may: each does it under an id, and with an approval, of its own.
            record["was"] = [*record.get("was", ()), record["id"]]
            record.update(id=new_effect_id(), line=self._journal.line, attempt=0, at=self._journal.kernel.clock.wall())

    def _planned_anew(self, record: TrackedDict) -> Flow[bool]:
        """Whether a call is only planned here; one that another line has made since is, and somebody has to agree."""
        elsewhere = yield from self.other_branches()
        further, _ = yield Do(elsewhere.twin, (record["id"], record["attempt"]))
        made = record["id"] if further else elsewhere.report(record["digest"]) if record["status"] == "planned" else ""
        if made and (further or record["line"] != self._journal.line):
            record["because"] = f"the same was done {self._where(made)} (effect {made})"
        if further:
            # Another call than that one, also for whoever knows calls by their ids: of no line yet, it gets its own.
            for name in ("error", "lost", "lost_since", "retry_at", "handle", "progress", "question"):
                record.pop(name, None)
            record.update(status="planned", line=-1)
        return record["status"] == "planned"

    def _reported(self, record: TrackedDict) -> Flow[bool]:
        """Whether somebody has reported the outcome of a call that is to be made: it is not, and nobody is asked."""
        if not (yield from self._inbox.waiting(f"outcome:{record['id']}")):
            return False
        request = self._approvals.of_call(record)
        if request is not None and request["status"] in ("pending", "approved"):
            yield from self._approvals.outdate(request)
        record.pop("question", None)
        return (yield from self.effects.take_posted(record))

    def go_on(self, tool: Tool, bound: dict[str, Any], record: TrackedDict, *, fresh: bool = False) -> Flow[Any]:
        """Take a recorded call from where it stands to its outcome; a ``fresh`` one was written as started just now."""
        if not tool.read and record["status"] in OPEN:
            if self.is_dry and not (yield from self._known_of(record)):
                raise CallError(left_open(plain(record)), record["id"])
            # Planned by another handle: where it has its place is not known here.
            self._journal.calls.setdefault(record["id"], (tool.name, "", record["digest"]))
        raised: BaseException | None = None
        if record["status"] == "started" and (fresh or record["id"] in self._unmade):
            self._unmade.discard(record["id"])
            raised = yield from self._make(tool, bound, record)
        while True:
            status = record["status"]
            if status == "done":
                if "problem" in record:
                    raise no_json(tool.name, record["id"], record["problem"])
                return tool.types.result(plain(record["result"]))
            if status == "failed":
                raise EffectFailed(f"{tool.name} did not happen: {record['error']}", record["id"])
            if status == "raised":
                raise _raised(tool, record) from raised
            if status == "unknown":
                return Unknown(record["id"])
            if status == "waiting":
                yield from self._late(tool, record)
                continue
            if status in ("started", "in_doubt") and not (yield from self._unsure(tool, bound, record)):
                continue
            if (yield from self._approvals.gate(tool, bound, record)):
                # A decision may have come with other arguments.
                bound = plain(record["args"]) if "edited" in record else bound
                raised = yield from self._attempt(tool, bound, record)

    @property
    def is_dry(self) -> bool:
        """Whether nothing outside may be touched: no call but a read is made, polled or looked up."""
        return self._journal.settings.effects == "dry"

    def _known_of(self, record: TrackedDict) -> Flow[bool]:
        """Settle an open call by what is written down of it, without asking anybody outside; whether it is settled."""
        if record["status"] == "planned":
            yield from self._approvals.settle_refusal(record)
        elif not (yield from self.effects.take_posted(record)):
            yield from self._take_shared(record)
        return record["status"] not in OPEN

    def _take_shared(self, record: TrackedDict) -> Flow[bool]:
        """Take what a call has returned and shared before its process died; whether it had."""
        if (cache := record.get("cache")) is None or not cache["shared"]:
            return False
        hit = yield Do(self._cache.shared, (cache["name"],))
        if hit is None or hit.get("effect") != record["id"]:
            return False
        yield from self.effects.finish(record, "done", hit["result"], None)
        return True

    def _attempt(self, tool: Tool, bound: dict[str, Any], record: TrackedDict) -> Flow[BaseException | None]:
        """Write down that the call starts, make it, write its outcome down; what it raised, if it did."""
        if runs_on(record["id"]):
            yield from self._park(record)
        if claims(record) and (yield from self._behind(tool, record)):
            return None
        tried = record["attempt"]
        faults.point("call.before_started")
        try:
            # Marked inside the commit: one of a sibling that is written first must not call it started.
            yield from self._journal.write(
                Kind.STARTED, x=about(record), status=Status.RUNNING, edit=lambda: self._mark_started(record)
            )
        except BaseException:
            # It was not made, and this process knows, while another one that finds it started is rightly in doubt.
            if not self._journal.guard.closed and self._journal.stale is None and record["attempt"] > tried:
                if self._journal.pending is not None and "approval" not in record:
                    self._unmade.add(record["id"])
                else:
                    # Not on its way to the store; or what somebody agreed to must be looked at again first.
                    self._unmark_started(record)
            raise
        faults.point("call.after_started")
        return (yield from self._make(tool, bound, record))

    def _behind(self, tool: Tool, record: TrackedDict) -> Flow[bool]:
        """Claim a call whose result is shared; whether another session was faster, and its result is taken.

        ``ResultPending`` while there is none: that one may have paid, and nobody pays twice unasked.
        """
        other = yield from self._cache.claim(tool.name, plain(record["cache"]), record["id"])
        faults.point("call.after_claimed")
        if other is None or "result" in other:
            record.pop(BEHIND, None)
        if other is None:
            return False
        if "result" in other:
            if "approval" not in record:
                yield from self._finish_with(record, other)
            return "approval" not in record
        waits_for = {"session": other["session"], "effect": other["effect"]}
        if plain(record.get(BEHIND)) != waits_for:
            # Whoever asks why it stands still is told whom it waits for.
            record[BEHIND] = waits_for
            yield from self._journal.write(Kind.PLANNED, x=about(record))
        give_up = errors.suggested(f"resolve {quoted(other['session'])} {other['effect']} --abort")
        raise ResultPending(
            f"session {other['session']!r} was first with the same call of {tool.name} (effect {other['effect']}), and "
            "there is no outcome yet. Its result is shared, so it is not made twice: call again once it is there. If "
            f"that session stands still, go on with it, or settle the call there ({give_up} gives it up)",
            other["effect"],
        )

    def _mark_started(self, record: TrackedDict) -> None:
        record["status"] = "started"
        record["attempt"] += 1
        self._approvals.use(record)

    def _unmark_started(self, record: TrackedDict) -> None:
        record["status"] = "planned"
        record["attempt"] -= 1
        self._approvals.unuse(record)

    def _make(self, tool: Tool, bound: dict[str, Any], record: TrackedDict) -> Flow[BaseException | None]:
        """Make a call that is written down as started, and write its outcome down; what it raised, if it did."""
        attempt = Attempt(record["id"], partial(self._returned_late, tool, record["id"]))
        try:
            with telemetry.tracing.execute_tool(tool.name, self._journal.id, bound, record, (Asking,)) as span:
                call = runnable(tool, attempt.watched)
                result = yield Invoke(call, (), self._arguments(tool, bound, record))
                span.returned(result)
        except Asking as e:
            yield from self._approvals.ask_person(tool, bound, record, e)
        except BaseException as e:
            late = attempt.abandon()
            if not _is_of_the_call(e):
                # A kill that left us time to see it: nothing is written, and whoever resumes finds a lost answer.
                raise
            if late is not None:
                yield from self._returned(tool, record, late[0])
            else:
                raised = attempt.as_raised(e)
                yield from self._ended(tool, bound, record, raised)
                return raised
        else:
            yield from self._returned(tool, record, result)
        return None

    def _returned(self, tool: Tool, record: TrackedDict, result: Any) -> Flow[None]:
        if not isinstance(result, Later):
            yield from self.effects.finish(record, "done", tool.types.result_as_json(result), None)
            return
        record["status"] = "waiting"
        record["handle"] = tool.poll_types.result_as_json(result.handle)
        yield from self._write_waiting(record)

    def _write_waiting(self, record: TrackedDict) -> Flow[None]:
        yield from self._journal.write(Kind.WAITING, x=about(record), status=self.effects.session_status())

    def _returned_late(self, tool: Tool, effect: str, result: Any) -> None:
        """In the thread of a tool that nobody waits for any more: post what it returned."""
        kernel, session = self._journal.kernel, self._journal.id
        result = tool.types.result_as_json(result)
        drive(kernel.store, posted(kernel, seal_entry(kernel, session, f"outcome:{effect}", "outcome", result)))

    def _ended(self, tool: Tool, bound: dict[str, Any], record: TrackedDict, error: BaseException) -> Flow[None]:
        """A call has ended with an exception: what that means is what its tool declares."""
        found = meaning(error, tool.lost)
        if found is Meaning.OURS:
            raise error
        if found is Meaning.NOT_DONE:
            yield from self.effects.finish(record, "failed", None, self._said(tool, error))
            return
        told = described(error)
        again = tool.read or tool.if_unsure == "retry"
        if found is Meaning.LOST or (found is Meaning.UNREACHED and again):
            yield from self._lost(tool, record, told)
            return
        record["raised"] = told
        if tool.read:
            # Nothing can have happened: its error is its answer.
            yield from self.effects.finish(record, "failed", None, in_short(told)[:MAX_ERROR])
            return
        verdict = (yield from self._reconciled(tool, bound, record)) if callable(tool.if_unsure) else None
        if isinstance(verdict, Done):
            yield from self.effects.finish(record, "done", tool.types.result_as_json(verdict.result), None)
        elif isinstance(verdict, NotDone):
            yield from self.effects.finish(record, "failed", None, in_short(told)[:MAX_ERROR])
        else:
            yield from self.effects.finish(record, "raised", None, told["class"])

    def _said(self, tool: Tool, error: BaseException) -> str:
        """What a tool says that has done nothing; one that has the model ask otherwise is not asked for ever."""
        said = str(error) or "the tool said so"
        if isinstance(error, ModelRetry) and self.effects.asked_again(tool.name) > ASK_AGAIN:
            said += f" ({tool.name} has said so {ASK_AGAIN} times before: do not call it again for this)"
        return said

    def _lost(self, tool: Tool, record: TrackedDict, told: dict[str, str]) -> Flow[None]:
        """The answer of a call did not come: a read is made again, the rest as its tool declares for a doubt."""
        record["error"] = told["class"]
        record["lost"] = told
        if tool.read:
            if record["attempt"] >= READ_TRIES:
                yield from self.effects.finish(record, "failed", None, in_short(told)[:MAX_ERROR])
            else:
                yield Wait(self._journal.kernel.clock, pause_after(record["attempt"]))
            return
        telemetry.doubted(tool.name)
        if tool.if_unsure == "retry":
            # Durable, so that whoever resumes does not begin with the shortest pause again.
            now = self._journal.kernel.clock.wall()
            record.setdefault("lost_since", now)
            record["retry_at"] = now + pause_after(record["attempt"])
            warn(
                "%s (effect %s) got no answer and is called again in %d s: %s",
                tool.name, record["id"], pause_after(record["attempt"]) // 1000, _in_full(told),
            )  # fmt: skip
            yield from self._journal.write(Kind.RETRYING, x=about(record, error=told["class"]))
        else:
            record["status"] = "in_doubt"
            yield from self._journal.write(Kind.IN_DOUBT, x=about(record, error=told["class"]))

    def _reconciled(self, tool: Tool, bound: dict[str, Any], record: TrackedDict) -> Flow[Done | NotDone | Unknown]:
        """What a tool's own function finds out about a call; one that fails has found out nothing."""
        assert callable(tool.if_unsure)
        try:
            verdict = yield Invoke(tool.if_unsure, (), tool.types.arguments(bound))
        except Exception as e:
            told = described(e)
            warn("nobody could be asked about %s: %s", tool.name, _in_full(told))
            record[LOOKUP] = in_short(told)[:MAX_ERROR]
            return Unknown()
        record.pop(LOOKUP, None)
        if verdict is NotDone:
            return NotDone()
        return verdict if isinstance(verdict, Done | NotDone) else Unknown()

    def _may_be_retried(self, tool: Tool, record: TrackedDict) -> bool:
        """Whether a call whose answer was lost may be made now, under its id, without a person."""
        now = self._journal.kernel.clock.wall()
        return self._key_holds(tool, record["at"]) and now - record.get("lost_since", now) < RETRY_FOR * 1000

    def _key_holds(self, tool: Tool, began: int) -> bool:
        """Whether the other side still knows a call by its id."""
        valid = tool.key_valid_for
        # A clock that was set back, or was fast when it began, tells no age: the key may be long forgotten.
        return valid is None or 0 <= self._journal.kernel.clock.wall() - began < valid * 1000

    def _late(self, tool: Tool, record: TrackedDict) -> Flow[None]:
        """Look whether the result of a call that said "later" has come; ``ResultPending`` while it has not."""
        if not (yield from self.effects.take_posted(record)) and tool.poll is not None:
            verdict = yield Invoke(tool.poll, (tool.poll_types.first_argument(plain(record["handle"])),))
            if isinstance(verdict, Done):
                yield from self.effects.finish(record, "done", tool.types.result_as_json(verdict.result), None)
            elif verdict is NotDone or isinstance(verdict, NotDone):
                yield from self.effects.finish(
                    record, "failed", None, str(verdict) if verdict is not NotDone else "not done"
                )
        if record["status"] == "waiting":
            msg = (
                f"{tool.name} (effect {record['id']}) was made and its result comes later: call again once it is there"
            )
            raise ResultPending(msg, record["id"])

    def _unsure(self, tool: Tool, bound: dict[str, Any], record: TrackedDict) -> Flow[bool]:
        """An effect was started and its outcome is unknown: True when it may be made (again)."""
        if tool.read:
            return not (yield from self.effects.take_posted(record))
        if record["status"] == "started":
            telemetry.doubted(tool.name)
        if (yield from self.effects.take_posted(record)):
            return False
        if (yield from self._take_shared(record)):
            return False
        policy, failed_before = tool.if_unsure, record.get(LOOKUP)
        if callable(policy):
            verdict = yield from self._reconciled(tool, bound, record)
            if isinstance(verdict, Done):
                yield from self.effects.finish(record, "done", tool.types.result_as_json(verdict.result), None)
                return False
            if isinstance(verdict, NotDone) and not runs_on(record["id"]):
                return True
        elif policy == "retry":
            clock = self._journal.kernel.clock
            while self._may_be_retried(tool, record):
                left = record.get("retry_at", 0) - clock.wall()
                # No second attempt is made while one lives.
                if left <= 0 and not runs_on(record["id"]):
                    return True
                # A clock that was set back makes nobody wait for longer than was meant.
                yield Wait(clock, min(max(left, FIRST_PAUSE), LONGEST_PAUSE))
                record.pop("retry_at", None)
                if (yield from self.effects.take_posted(record)):
                    return False
        elif policy == "report":
            self.effects.settle(record, "unknown", None, record.get("error"))
            yield from self._journal.write(Kind.IN_DOUBT, x=about(record), status=self.effects.session_status)
            return False
        yield from self._park(record, anew=record.get(LOOKUP) != failed_before)
        return False

    def _park(self, record: TrackedDict, *, anew: bool = False) -> Flow[None]:
        """Leave an effect in doubt to a human; ``anew`` when there is something else to be told of it."""
        if anew or record["status"] != "in_doubt" or self._journal.status != Status.IN_DOUBT:
            record["status"] = "in_doubt"
            x = about(record, error=record.get("error", ""))
            yield from self._journal.write(Kind.IN_DOUBT, x=x, status=Status.IN_DOUBT)
        mend = f"{looked_up(failed)}. Mend that and call again, or " if (failed := lookup_error(plain(record))) else ""
        msg = (
            f"{record['tool']} (effect {record['id']}) was started and nobody knows whether it happened: "
            f"{mend}find out, then session.resolve(effect, done=result | retry=True | abort=True)"
        )
        raise InDoubt(msg, record["id"])

    # -- several at once, as an answer of a model makes them ----------------------------------------------------------

    def begin(self, calls: list[Call]) -> Flow[list[TrackedDict]]:
        """Put calls into the journal, unwritten: started, planned when somebody must agree, done when known already.

        The commit of the answer writes them, so a call that starts at once costs no extra write.
        """
        records: list[TrackedDict] = []
        for call in calls:
            records.append((yield from self._begin_of_answer(call, records)))
        return records

    def _begin_of_answer(self, call: Call, before: list[TrackedDict]) -> Flow[TrackedDict]:
        tool, bound = call.tool, call.args
        digest = call_digest(tool.name, tool.version, bound)
        again, asks = None, ""
        hit = yield from self._kept(tool, digest)
        if hit is None and not tool.read:
            if self._journal.settings.effects != "live":
                awaited = yield from self._awaited(tool, bound, digest, call.slot)
                if awaited is not None:
                    awaited["call"] = call.id
                    return awaited
            again, asks = yield from self._on_another_branch(digest)
        earlier = None if tool.read else plain(self._journal.book.get("raised", {}).get(digest))
        record = self.effects.new(tool, bound, digest, call.slot)
        record["call"] = call.id
        if hit is not None:
            record["reused"] = "cache"
            self.effects.settle(record, "done", hit["result"], None)
        elif again is not None:
            _take_over(record, again)
            self.effects.settle(record, "done", again.result, None)
        elif not tool.read and self.is_dry:
            self.effects.settle(record, "failed", None, DRY)
        elif asks and self._journal.settings.effects != "live":
            said = f'was done {self._where(asks)} already (effect {asks}): run with effects="live" to do it again'
            self.effects.settle(record, "failed", None, said)
        elif earlier is not None and (refused := self._repeat(tool, record, earlier)):
            self.effects.settle(record, "failed", None, refused)
        elif record["status"] != "in_doubt":
            if asks:
                record["because"] = f"the same was done {self._where(asks)} (effect {asks})"
            elif not tool.read:
                yield from self._say_if_edited(record)
            # One whose rules for agreement fail is only planned: they are asked again, and told of, once it is written.
            with suppress(ApprovalRuleFailed):
                yield from self._ask_or_start(tool, bound, record, before)
        return record

    def _ask_or_start(
        self, tool: Tool, bound: dict[str, Any], record: TrackedDict, before: list[TrackedDict]
    ) -> Flow[None]:
        if "because" in record or (not record["attempt"] and tool.needs_approval(bound)):
            facts = yield from self._approvals.facts_of(tool, bound)
            self._approvals.request(tool, bound, record, facts, record.pop("because", ""))
        elif tool.limit is None and not claims(record) and not any(twins(record, other) for other in before):
            # One that must wait for a place, its twin or its claim is only planned: whoever dies before has not
            # started it.
            record["status"] = "started"
            record["attempt"] += 1

    def spare(self, tool: Tool, record: TrackedDict) -> Flow[None]:
        """Take an open call as far as it goes in a dry run: it is not made.

        One that nobody was asked about, and that was never begun, is refused as a new one is; any other stays open.
        """
        yield from self._journal.resend()
        # That another branch has made it needs no words: here it is not.
        with suppress(DoneElsewhere):
            yield from self.reconsider(tool, record)
        if record["status"] not in OPEN or (yield from self._known_of(record)):
            return
        if record["status"] == "planned" and not record["attempt"] and "approval" not in record:
            yield from self.effects.finish(record, "failed", None, DRY)

    def carry_on(self, tool: Tool, record: TrackedDict, *, fresh: bool = False) -> Flow[str]:
        """Take a call as far as it goes now; answers where it stands. What it waits for is no error here."""
        with suppress(EffectFailed, EffectRaised, NotJson, InDoubt, ApprovalNeeded, ResultPending):
            yield from self._journal.resend()
            if not fresh and record["status"] in OPEN:
                yield from self.reconsider(tool, record, ask=True)
            yield from self.go_on(tool, plain(record["args"]), record, fresh=fresh)
        if (told := exception_of(plain(record))) is not None:
            # The model is told, or a person asked; whoever wrote the tool reads logs.
            said = "raised" if "raised" in record else "got no answer:"
            warn("%s (effect %s) %s %s", tool.name, record["id"], said, _in_full(told))
        if record["status"] == "done" and "problem" in record:
            warn("%s", no_json(tool.name, record["id"], record["problem"]))
        return record["status"]


def pause_after(attempt: int) -> int:
    """Ms before a call is tried again whose answer was lost.

    >>> [pause_after(n) for n in (1, 2, 3, 20)]
    [1000, 2000, 4000, 60000]
    """
    return min(LONGEST_PAUSE, FIRST_PAUSE << min(attempt - 1, 16))


def _is_lost(tool: Tool, error: BaseException) -> bool:
    return _is_of_the_call(error) and meaning(error, tool.lost) in (Meaning.LOST, Meaning.UNREACHED)


def _is_of_the_call(error: BaseException) -> bool:
    """Whether an exception is the call's own, and no sign that we are to end: Ctrl-C, the end of our own task."""
    return isinstance(error, Exception) or (is_cancellation(error) and not is_own_cancellation(error))


def _in_full(told: dict[str, str]) -> str:
    return f"{in_short(told)}\n{told['traceback']}"


def exception_of(record: dict[str, Any]) -> dict[str, str] | None:
    """The exception that a call ended with, or that its answer was lost with last; None when it has answered."""
    if "raised" in record:
        return record["raised"]
    return record.get("lost") if record["status"] not in ("done", "planned") else None


def lookup_error(record: dict[str, Any]) -> str:
    """What the function ended with that its tool has as ``if_unsure``, while that leaves the call in doubt; else ""."""
    return record.get(LOOKUP, "") if record["status"] == "in_doubt" else ""


def looked_up(error: str) -> str:
    """The same in words."""
    return f"what its tool has as if_unsure could not find out, it failed with {error}"


def call_of(record: dict[str, Any], limit: int = 90, each: int = 40) -> str:
    """A recorded call as people write one."""
    return f"{record['tool']}(…)" if record.get(ARGS_LOST) else call_words(record["tool"], record["args"], limit, each)


def is_tried_again(record: dict[str, Any]) -> bool:
    """Whether the answer to a call was lost, and it is made again by itself under its id."""
    return record["status"] == "started" and "lost_since" in record


def left_open(record: dict[str, Any]) -> str:
    """What is said of an open call that a dry run does not go on with."""
    match record["status"]:
        case "planned" if "approval" in record:
            stands = "it was not made yet, and somebody was asked to decide on it"
        case "planned":
            stands = "it was not made yet"
        case "waiting":
            stands = "it was made before, and its result comes later"
        case _:
            stands = "it was started before, and nobody knows whether it happened"
    return (
        f"dry run: {record['tool']} (effect {record['id']}) is not called, and stays open: {stands}. "
        'Go on with --effects reuse (effects="reuse") to have it settled'
    )


def _take_over(record: TrackedDict, found: Outcome) -> None:
    """Note whose outcome a call gets; the model must know where that was made otherwise than it had asked."""
    record["reused"] = found.effect
    if found.edited:
        record.update(args=found.args, edited=True)


def _raised(tool: Tool, record: TrackedDict) -> EffectRaised:
    told = plain(record["raised"])
    msg = f"{tool.name} raised {in_short(told)} (effect {record['id']}). What it had changed by then is not known"
    return EffectRaised(msg, record["id"], told)


def no_json(tool: str, effect: str, problem: str) -> NotJson:
    """A call was made, and what it returned cannot be kept."""
    hint = (
        f"{tool} was done (effect {effect}) and its result is lost. Have it return JSON, or a value of the type "
        "that its return annotation declares"
    )
    return NotJson(("result",), problem, hint)


def claims(record: TrackedDict | dict[str, Any]) -> bool:
    """Whether a call must be claimed before it is made: its result is shared with other sessions, which may ask now."""
    return "cache" in record and record["cache"]["shared"] and "read" not in record


def _wait_too(record: TrackedDict, there: dict[str, Any]) -> None:
    """A call was made on another line, and its result comes later: here it is waited for as well."""
    record.update({name: there[name] for name in ("id", "attempt", "at", "status", "handle")})


def twins(one: TrackedDict, other: TrackedDict) -> bool:
    """Whether two calls of an answer share a result that is kept: one of them pays, the other one waits for it."""
    return "cache" in one and "cache" in other and one["cache"]["name"] == other["cache"]["name"]


def _done_elsewhere(tool: Tool, effect: str, where: str) -> DoneElsewhere:
    msg = (
        f"{tool.name} was already called with these arguments {where} (effect {effect}): "
        'open the session with effects="live" to do it again'
    )
    return DoneElsewhere(msg, effect)
