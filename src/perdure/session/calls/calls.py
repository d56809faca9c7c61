"""Making calls of tools: each is written down before it is made, and its outcome before anybody is told.

Identity of a call: with ``options(key=...)`` that key; inside a run its place in the run; otherwise tool, version and
arguments. A recorded outcome is returned, never made again. What a tool declares decides what an exception, a lost
answer or a kill means; ``tool_exceptions`` tells them apart, ``effects`` keeps the records.

Long because every way to an outcome is a way through the same few states: read apart, none could be checked.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

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
    InvalidInput,
    Misuse,
    NotJson,
    PerdureError,
    ResultPending,
    StateNotKept,
)
from perdure.history.hydrate import find, load_head
from perdure.history.reported_outcomes import too_late
from perdure.model import Kind, Status
from perdure.session.actions import Action
from perdure.session.actions import Do as ToDo
from perdure.session.calls.calls_of_run import CallsOfRun
from perdure.session.calls.effects import stands_at
from perdure.session.calls.late_returns import Attempt, give_up, has_outcome, runs_on, warn
from perdure.session.calls.other_branches import OtherBranches, Outcome, is_same_call
from perdure.session.calls.read_cache import declared
from perdure.session.calls.records import (
    AGAIN,
    BEHIND,
    ENDED_RUN,
    GIVEN_UP,
    LOOKUP,
    MAX_ERROR,
    MISFIT,
    OPEN,
    REPEATS,
    UNSETTLED,
    about,
    claims,
    exception_of,
    is_asked_again,
    is_begun,
    is_by_itself,
    kept_as,
    left_open,
    looked_up,
    new_effect_id,
    no_json,
    unkept,
)
from perdure.session.inbox import MAX_MESSAGE, posted, seal_entry
from perdure.session.journal import Called
from perdure.session.strands import Got, under_way
from perdure.session.tools import Done, Later, ModelRetry, NotDone, Unknown
from perdure.session.tools.call_state import OUTCOME, UNKEPT, WRITES, CallState
from perdure.session.tools.context import Asking
from perdure.session.tools.declaration import Tool, as_tool, call_digest
from perdure.session.tools.exceptions import (
    Meaning,
    described,
    in_short,
    is_of_the_call,
    meaning,
    words_of,
)
from perdure.session.tools.running import check_depth, runnable
from perdure.state.document import BOOK, plain
from perdure.state.values import refusal
from perdure.system import faults
from perdure.system.commands import quoted
from perdure.system.flow import Do, Flow, Invoke, Wait, drive, entered, is_blocking
from perdure.system.secrets import scrubbed
from perdure.system.wording import brief, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from traceback import FrameSummary

    from perdure.kernel import Kernel
    from perdure.session.calls.approvals import Approvals
    from perdure.session.calls.effects import Effects
    from perdure.session.calls.read_cache import ReadCache
    from perdure.session.inbox import Inbox
    from perdure.session.journal import Journal
    from perdure.session.tools.context import Contexts
    from perdure.state.delta import Op
    from perdure.state.document import TrackedDict

    Carrier = Callable[[], Callable[[Flow[Any]], Any]]

DRY = "dry run: nothing is called"
"""What is said of a call that a dry run has not made."""
MAX_TOLD = 300
"""Characters of a result that a log is told."""
READ_TRIES = 3
"""How often a read is tried whose answer is lost."""
FIRST_PAUSE, LONGEST_PAUSE = 1_000, 60_000
"""Ms before a call whose answer was lost is tried, or looked up, again, at first and at most; doubled, and durable."""
RETRY_FOR = 24 * 3600
"""Seconds for which a call whose answers are lost is tried again under its id before a person is asked."""
ASK_AGAIN = 2
"""How often in a row a tool may have the model ask otherwise."""


class Call(NamedTuple):
    """One call of an answer: its tool and arguments, its place in the journal, and how the model names it."""

    tool: Tool
    args: dict[str, Any]
    slot: str
    id: str = ""


class Calls:
    """The calls of a handle: one at a time, or those of a model's answer side by side."""

    def __init__(
        self, journal: Journal, inbox: Inbox, effects: Effects, approvals: Approvals, cache: ReadCache,
        contexts: Contexts, carrier: Carrier,
    ) -> None:  # fmt: skip
        self._journal = journal
        self._inbox = inbox
        self.effects = effects
        self._approvals = approvals
        self._cache = cache
        self._contexts = contexts
        self._carrier = carrier
        """Carries a flow out for a tool that is running; each kind of handle has its own way."""
        self.of_run = CallsOfRun(journal)
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
        tool = as_tool(fn)
        if self._journal.run is not None:
            self._journal.strands.is_beside()
        check_depth(tool)
        if tool.needs_deps and self._contexts.deps is None:
            raise Misuse(
                f"{tool.name} was not called: it needs what its ctx: Context[...] declares. Open that in your program "
                "and set it before: s.deps = ..."
            )
        bound = tool.bind(args, kwargs)
        digest = call_digest(tool.name, tool.version, bound)
        if not tool.read or tool.cache is not None:
            self._journal.strands.go_on()
        # Its number first: whoever waits here must not be overtaken by a call that was asked for later.
        slot = "" if tool.read else self._slot(tool, digest)
        # What is known here may not be durable yet: the answer to its commit was lost.
        yield from self._journal.resend()
        if tool.read:
            return (yield from self._read(tool, bound, digest))
        # What is kept is the same call wherever it is asked for.
        gate = slot if tool.cache is None or tool.key is not None else f"c:{digest}"
        inside = under_way.get()
        if (id(self), gate) in inside:
            # A tool that calls itself: it would wait for its own end.
            return (yield from self._call(tool, bound, digest, slot))
        # Whoever asks for the same meanwhile, in another thread or task, waits for its outcome.
        place = self._place(gate)
        try:
            with (yield from entered(place[0])):
                before = under_way.set(inside | {(id(self), gate)})
                try:
                    return (yield from self._call(tool, bound, digest, slot))
                finally:
                    with suppress(ValueError):  # thrown away somewhere else than it was driven
                        under_way.reset(before)
        finally:
            with self._gates_lock:
                place[1] -= 1
                if not place[1]:
                    self._gates.pop(gate, None)

    def _place(self, gate: str) -> list[Any]:
        with self._gates_lock:
            place = self._gates.setdefault(gate, [type(self._journal.gate)(), 0])
            place[1] += 1
            return place

    def _call(self, tool: Tool, bound: dict[str, Any], digest: str, slot: str) -> Flow[Any]:
        replayed = False
        if self._journal.catching_up is not None:
            replayed = yield from self._journal.catching_up.call(slot, tool, digest)
        record: TrackedDict | None = self._journal.book.get("effects", {}).get(slot)
        if record is not None and record.get("asked", record["digest"]) != digest:
            msg = f"{slot}: recorded as a call of {record['tool']} with other arguments than this call of {tool.name}"
            raise Diverged(msg)
        if record is not None and is_asked_again(record, tool):
            record = yield from self._ask_again(tool, bound, record, digest, slot)
        elif record is not None and (self._is_over(slot, record) or (not replayed and self._is_repeated(slot, record))):
            self.effects.retire(slot.__eq__)
            record = None
        if record is None:
            record = yield from self._begin(tool, bound, digest, slot)
        elif record["status"] in OPEN:
            yield from self.reconsider(tool, record)
        else:
            telemetry.replayed(tool.name, "journal")
        try:
            return (yield from self.go_on(tool, bound, record))
        except (EffectFailed, EffectRaised):
            if self._journal.run is not None:
                self._journal.strands.get(Got(slot, record["id"], self._again(tool, record)))
            raise

    def _ask_again(
        self, tool: Tool, bound: dict[str, Any], record: TrackedDict, digest: str, slot: str
    ) -> Flow[TrackedDict]:
        """Begin a call again that has ended its run; the run goes on from it as if it had never been made."""
        id = record["id"]
        if record["status"] == "raised" and self._journal.settings.effects != "live":
            elsewhere = yield from self.other_branches()
            further, known = yield Do(elsewhere.twin, (id, record["attempt"]))
            if further and known is None:
                raise _done_elsewhere(tool, id, self._where(id))
            if known is not None:
                del record[ENDED_RUN]
                record["status"] = "in_doubt"
                yield from self.reconsider(tool, record)
                return record
        self.effects.recall(record)
        record = yield from self._begin(tool, bound, digest, slot)
        if record["id"] == id:
            record["was"] = [other for other in record.get("was", ()) if other != id]
            if not record["was"]:
                del record["was"]
        return record

    def _again(self, tool: Tool, record: TrackedDict) -> str:
        """What is done when a call is asked for again that failed or raised, in a word; "" for nothing."""
        if not is_by_itself(record, self._journal.book.get("approvals", {})):
            return ""
        if record["status"] == "failed":
            return "failed"
        return "function" if callable(tool.if_unsure) else tool.if_unsure

    def _slot(self, tool: Tool, digest: str) -> str:
        if tool.key is not None:
            return f"k:{tool.name}:{tool.key}"
        if self._journal.run is not None:
            return f"r:{self._journal.run}:{self.of_run.number(digest)}"
        return f"c:{digest}"

    def _if_it_ends_the_run(self, tool: Tool, record: TrackedDict) -> str:
        """What helps when the exception of a call leaves its run, as the end of a sentence; "" outside of runs."""
        if (run := self._journal.run) is None:
            return ""
        again = self._again(tool, record)
        if not again:
            return f". Run again, run {run!r} gets this again: have its function go on after it"
        if again == "report":
            return (
                f". If it ends run {run!r}, find out, say so with session.resolve(effect, done=result | retry=True | "
                "abort=True), and run it again: until then the call is refused"
            )
        return f". If it ends run {run!r}, mend the cause and run it again: {AGAIN[again]}"

    def _is_over(self, slot: str, record: TrackedDict) -> bool:
        """Whether a call that is known by its arguments alone returned something whose time is over."""
        kept = record.get("cache", {})
        return slot.startswith("c:") and record["status"] == "done" and "at" in kept and not self._cache.fresh(kept)

    def _is_repeated(self, slot: str, record: TrackedDict) -> bool:
        """Whether a call that raised is asked for again, if it is not merely caught up with."""
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
        if tool.cache is not None and self._journal.catching_up is not None:
            yield from self._journal.catching_up.read(tool.name)
        if (hit := (yield from self._kept(tool, digest))) is not None:
            telemetry.replayed(tool.name, "cache")
            return tool.types.result(hit["result"])
        self._journal.check_open()
        self._check_awaited(tool)
        result = yield from self._read_patiently(tool, bound)
        if tool.cache is None:
            result, wrong = tool.types.as_declared(result)
            _warn_of_misfit(tool, wrong)
            return result
        result, wrong = tool.types.fitting_result(tool.types.result_as_json(result))
        _warn_of_misfit(tool, wrong)
        if self._journal.catching_up is None:
            wanted = declared(tool, digest)
            self._cache.keep(wanted, result)
            # A cached read is one somebody pays for: it is durable before anyone sees it.
            x = {"tool": tool.name, **({MISFIT: wrong} if wrong else {})}
            yield from self._journal.write(Kind.DONE, x=x)
            if wanted["shared"]:
                yield from self._cache.keep_shared(tool.name, wanted, result)
        return tool.types.result(result)

    def _read_patiently(self, tool: Tool, bound: dict[str, Any]) -> Flow[Any]:
        """Make a read; one whose answer is lost is made again, a few times, but not while an attempt at it lives."""
        id = new_effect_id()
        late: list[Any] = []
        for attempt in range(1, READ_TRIES + 1):
            living = Attempt(id, late.append, str)
            try:
                with telemetry.tracing.execute_tool(tool.name, self._journal.id, bound, {}) as span:
                    given = {"ctx": self._contexts.make()} if tool.wants_context else {}
                    result = yield Invoke(runnable(tool, living.watched), (), {**tool.types.arguments(bound), **given})
                    span.returned(result)
                    return result
            except BaseException as e:
                if attempt == READ_TRIES or not _is_lost(tool, e):
                    raise
                late.extend(living.abandon() or ())
                yield Wait(self._journal.kernel.clock, pause_after(attempt))
                over = yield from self._is_left(id)
                if late:
                    return late[0]
                if not over:
                    raise
        raise AssertionError

    def _is_left(self, effect: str) -> Flow[bool]:
        """Wait a while for an earlier attempt at a read that is still under way; whether it has come to its end."""
        for pause in range(1, READ_TRIES + 1):
            if not runs_on(effect):
                return True
            yield Wait(self._journal.kernel.clock, pause_after(pause))
        return not runs_on(effect)

    def _arguments(self, tool: Tool, bound: dict[str, Any], record: TrackedDict, draft: CallState) -> dict[str, Any]:
        bound = tool.types.arguments(bound)
        if not tool.wants_context:
            return bound
        carry = self._carrier()

        def write(data: Any) -> Any:
            return carry(self._progress(record, data))

        def wake(at: Any, *, key: str = "", **options: Any) -> Any:
            return carry(self._inbox.wake_later(f"{record['id']}:{key}" if key else record["id"], at=at, **options))

        more: dict[str, Any] = {"write": write, "wake": wake, "last_progress": plain(record.get("progress"))}
        more["answers"] = tuple(plain(record.get("answers", ())))
        # A read of an agent has a record, too, and changes nothing all the same.
        return {**bound, "ctx": self._contexts.make(record, None if tool.read else draft, **more)}

    def _progress(self, record: TrackedDict, data: Any) -> Flow[None]:
        record["progress"] = data
        yield from self._journal.write(Kind.PROGRESS, x=about(record))

    def _begin(self, tool: Tool, bound: dict[str, Any], digest: str, slot: str) -> Flow[TrackedDict]:
        """Plan a call that was never made on this line, unless another line has made it, or its result is kept."""
        if (hit := (yield from self._kept(tool, digest))) is not None:
            record = self.effects.new(tool, bound, digest, slot)
            yield from self._finish_with(tool, record, hit)
            return record
        if (known := (yield from self.effects.take_settled(tool, digest, slot))) is not None:
            record = self.effects.new(tool, bound, digest, slot)
            record["reused"] = known["id"]
            yield from self.effects.done(tool, record, known["result"])
            return record
        self._check_awaited(tool)
        if tool.cache is not None:
            # Before there is a record: who is held back has not called.
            self._hold_back(declared(tool, digest)["name"])
        reused: Any = None
        if self._journal.settings.effects != "live":
            if (record := (yield from self._awaited(tool, bound, digest, slot))) is not None:
                if record["status"] == "waiting":
                    yield from self._write_waiting(record)
                return record
            reused = yield from self._reuse(tool, digest, slot)
            if reused is None and self.is_dry:
                raise CallError(f"dry run: {tool.name} is not called")
        before = self.effects.raised_before(digest, slot)
        record = self.effects.new(tool, bound, digest, slot)
        if reused is not None:
            yield from self.effects.done(tool, record, reused.result, self._taken_over(record, reused))
        elif before is not None and (refused := self._repeat(tool, record, *before)):
            yield from self.effects.finish(record, "failed", None, refused)
        else:
            if self._journal.settings.effects != "live":
                yield from self._say_if_edited(record, slot)
            if claims(record):
                # A claim names it, so it must be known here after a crash.
                yield from self._journal.write(Kind.PLANNED, x=about(record))
        return record

    def _first_of(self, name: str, record: TrackedDict | None = None) -> tuple[str, TrackedDict] | None:
        """The call of this session whose result is kept under a name, while it has been made, or may have been, and
        has no outcome: with its place. Of several the one that was begun first is behind none."""
        for slot, other in self._journal.book.get("effects", {}).items():
            if other is record:
                break
            if "cache" in other and other["cache"]["name"] == name and "read" not in other and is_begun(other):
                return slot, other
        return None

    def _hold_back(self, name: str, record: TrackedDict | None = None) -> None:
        """Raise while the same call of this session has no outcome: its result is kept, so nobody pays twice."""
        if (first := self._first_of(name, record)) is None:
            return
        slot, other = first
        run = slot[2:].rpartition(":")[0] if slot.startswith("r:") else ""
        where = f" in run {run!r}" if run else ""
        what = f"the same call of {other['tool']} (effect {other['id']}) was begun before{where}"
        if other["status"] in ("waiting", "planned"):
            comes = "its result comes later" if other["status"] == "waiting" else "it is to be made again"
            raise ResultPending(
                f"{what}, and {comes}. Its result is kept, so it is not made twice: "
                f"{f'go on with run {run!r}' if run else 'go on with that one'}, and call again once it has an outcome",
                other["id"],
            )
        raise InDoubt(
            f"{what}, and nobody knows whether it happened. Its result is kept, so it is not made twice: find out, "
            "then session.resolve(effect, done=result | retry=True | abort=True)",
            other["id"],
        )

    def _say_if_edited(self, record: TrackedDict, slot: str) -> Flow[None]:
        """Have somebody agree to a call that a person has had made otherwise on another branch, and tell him so."""
        others = yield from self.other_branches()
        if "because" not in record and record["digest"] in others.edited:
            effect, call, there = others.edited[record["digest"]]
            if is_same_call(slot, there) is not False:
                said = f"the same was asked for on another branch, and made there as {call} (effect {effect})"
                record["because"] = said

    def _repeat(self, tool: Tool, record: TrackedDict, before: dict[str, Any], is_taken: bool) -> str:
        """A call is asked for again of which nobody knows what it did: go on under its id, ask somebody, or say why it
        is refused. Under its id only one goes on: for whoever asks for another one meanwhile, somebody is asked."""
        known = "the answer to the same call was lost, and nobody knows whether it was done"
        if before["error"]:
            known = f"the same call ended with {before['error']}, and what it had changed by then is not known"
        if callable(tool.if_unsure) and not is_taken:
            # What became of it is asked first.
            record.update(id=before["id"], attempt=before["attempt"], at=before["at"], status="in_doubt")
        elif tool.if_unsure == "retry" and not is_taken and self._key_holds(tool, before["at"]):
            record.update(id=before["id"], attempt=before["attempt"], at=before["at"])
            record[UNSETTLED] = True
        elif tool.if_unsure == "report":
            record[REPEATS] = before["id"]
            return f"{known}: it is refused until a person has said what became of that one (effect {before['id']})"
        else:
            record[REPEATS] = before["id"]
            record["because"] = known
        return ""

    def _finish_with(self, tool: Tool, record: TrackedDict, hit: dict[str, Any]) -> Flow[None]:
        record["reused"] = "cache"
        record["cache"]["at"] = hit["at"]
        # Nothing was made: what a witness saw of it would be asked about after a restore.
        self._journal.calls.pop(record["id"], None)
        yield from self.effects.done(tool, record, hit["result"])

    def other_branches(self) -> Flow[OtherBranches]:
        journal = self._journal
        if self._others is None or self._others[0] != journal.loads:
            found = yield Do(OtherBranches, (journal.kernel, journal.id, stands_at(journal), journal.book))
            self._others = (journal.loads, found)
        return self._others[1]

    def _where(self, effect: str) -> str:
        """Where an effect was made that is not of this line, for people."""
        restored = self._others is not None and effect in self._others[1].restored
        return "before the store was put back" if restored else "on another branch"

    def _on_another_branch(self, digest: str, slot: str) -> Flow[tuple[Outcome | None, str]]:
        """The outcome to reuse, or the id of the same effect on another line."""
        others = yield from self.other_branches()
        if self._journal.settings.effects == "live":
            return None, (yield Do(others.report, (digest, slot)))
        reused = yield Do(others.reuse, (digest, slot))
        return reused, "" if reused is not None else (yield Do(others.report, (digest, slot)))

    def _awaited(self, tool: Tool, bound: dict[str, Any], digest: str, slot: str) -> Flow[TrackedDict | None]:
        """The same call on the line we came from, whose result comes later: this line waits for it, too.

        So it does for one that nobody knew the outcome of, once that is reported.
        """
        others = yield from self.other_branches()
        there = yield Do(others.begun, (digest, slot))
        if there is None:
            return None
        if there["status"] != "waiting" and not (yield from self._inbox.waiting(f"outcome:{there['id']}")):
            return None
        others.use(there["id"])
        record = self.effects.new(tool, bound, digest, slot)
        self._journal.calls.pop(record["id"], None)
        _become(record, there)
        return record

    def _taken_over(self, record: TrackedDict, found: Outcome) -> CallState | None:
        """Note whose outcome a call gets, and write what it had written into the state.

        The model must know where that was made otherwise than it had asked.
        """
        record["reused"] = found.effect
        if found.edited:
            record.update(args=found.args, edited=True)
        return self._redone(found.writes)

    def _redone(self, writes: Sequence[Op]) -> CallState | None:
        if not writes:
            return None
        draft = CallState(self._journal)
        draft.redo(writes)
        return draft

    def _reuse(self, tool: Tool, digest: str, slot: str) -> Flow[Outcome | None]:
        """What the same call returned on the line we came from; refuses when any other line has made it."""
        reused, other = yield from self._on_another_branch(digest, slot)
        if other:
            raise _done_elsewhere(tool, other, self._where(other))
        return reused

    def reconsider(self, tool: Tool, record: TrackedDict, *, ask: bool = False) -> Flow[None]:
        """An effect that is open here may have gone further on another line, which knew it when the lines parted.

        Where all calls are made, with ``ask`` somebody has to agree to such a one first.
        """
        planned = record["status"] == "planned"
        ours = record["line"] == self._journal.line or record["attempt"] > 0
        if planned and ours and (yield from self._reported(tool, record)):
            return
        # Somebody may have paid since it was planned.
        look = planned and "cache" in record and "approval" not in record
        hit = (yield from self._kept(tool, record["digest"])) if look else None
        if hit is not None:
            yield from self._finish_with(tool, record, hit)
            return
        if tool.read:
            return
        reused = there = None
        if self._journal.settings.effects == "live":
            planned = yield from self._planned_anew(record, ask=ask)
        else:
            elsewhere = yield from self.other_branches()
            further, reused = yield Do(elsewhere.twin, (record["id"], record["attempt"]))
            there = elsewhere.waiting(record["id"]) if record["status"] != "waiting" else None
            if planned and reused is None and there is None:
                if further:
                    raise _done_elsewhere(tool, record["id"], self._where(record["id"]))
                reused = yield from self._reuse(tool, record["digest"], self.effects.place(record))
        was_asked = planned and "approval" in record
        if planned and (reused is not None or there is not None or record["line"] != self._journal.line):
            yield from self._approvals.let_go(record, ours=record["line"] == self._journal.line)
        if reused is not None and reused.given_up:
            record[GIVEN_UP] = True
        if reused is not None and reused.error is not None:
            record["reported"] = True
            self.effects.did_not_happen(record)
            yield from self.effects.finish(record, "failed", None, reused.error)
        elif reused is not None:
            yield from self.effects.done(tool, record, reused.result, self._taken_over(record, reused))
        elif there is not None:
            _become(record, there)
            yield from self._write_waiting(record)
        elif planned and record["line"] != self._journal.line:
            record["line"] = self._journal.line
            if not record["attempt"]:
                # Not made anywhere yet, and both lines may: each does it under an id, and with an approval, of its own.
                # One that was made before, and is to be made again, is still that one: its provider knows it by its id.
                self._rename(record)
                if was_asked:
                    # On this line nobody has agreed, whatever the reason was.
                    record["approval"] = ""

    def _rename(self, record: TrackedDict) -> None:
        """Have a call be another one than that which was planned before the lines parted."""
        record["was"] = [*record.get("was", ()), record["id"]]
        record.update(id=new_effect_id(), at=self._journal.kernel.clock.wall())

    def _planned_anew(self, record: TrackedDict, *, ask: bool) -> Flow[bool]:
        """Whether a call is only planned here; one that another line has made since is, and somebody has to agree."""
        planned = record["status"] == "planned"
        if not ask and not (planned and record["attempt"] and record["line"] != self._journal.line):
            return planned
        elsewhere = yield from self.other_branches()
        further, _ = yield Do(elsewhere.twin, (record["id"], record["attempt"]))
        made = record["id"] if further else ""
        if planned and not further:
            made = yield Do(elsewhere.report, (record["digest"], self.effects.place(record)))
        if ask and made:
            yield from self._have_agreed(record, f"the same was done {self._where(made)} (effect {made})")
        if further:
            # Another call than that one, also for whoever knows calls by their ids: of no line yet, it gets its own.
            _forget_attempts(record)
            record.update(status="planned", line=-1)
        return record["status"] == "planned"

    def _have_agreed(self, record: TrackedDict, because: str) -> Flow[None]:
        """Have somebody agree to a call for this reason; who was asked without knowing it is asked anew."""
        request = self._approvals.of_call(record)
        if request is not None and record["line"] == self._journal.line:
            if because in (record.get("because"), request.get("because")):
                return
            if not record["attempt"]:
                yield from self._approvals.let_go(record, ours=True)
        record["because"] = because

    def _reported(self, tool: Tool, record: TrackedDict) -> Flow[bool]:
        """Whether somebody has reported the outcome of a call that is to be made: it is not, and nobody is asked."""
        if not (yield from self._inbox.waiting(f"outcome:{record['id']}")):
            return False
        request = self._approvals.of_call(record)
        if request is not None and request["status"] in ("pending", "approved"):
            yield from self._approvals.outdate(request)
        record.pop("question", None)
        return (yield from self.effects.take_posted(tool, record))

    def go_on(self, tool: Tool, bound: dict[str, Any], record: TrackedDict, *, fresh: bool = False) -> Flow[Any]:
        """Take a recorded call from where it stands to its outcome; a ``fresh`` one was written as started just now."""
        if not tool.read and record["status"] in OPEN:
            if self._is_awaited_elsewhere(tool) and not (yield from self._known_of(tool, record)):
                self._check_awaited(tool)
            if self.is_dry and not (yield from self._known_of(tool, record)):
                raise CallError(left_open(plain(record)), record["id"])
            # Planned by another handle: where it has its place is not known here.
            self._journal.calls.setdefault(record["id"], Called(tool.name, "", record["digest"], kept_as(record)))
        raised: BaseException | None = None
        if record["status"] == "started" and (fresh or record["id"] in self._unmade):
            self._unmade.discard(record["id"])
            raised = yield from self._make(tool, bound, record)
        while True:
            status = record["status"]
            if status == "done":
                if "problem" in record:
                    raise no_json(tool.name, record["id"], record["problem"])
                if UNKEPT in record:
                    raise StateNotKept(unkept(record), record["id"], tool.types.result(plain(record["result"])))
                return tool.types.result(plain(record["result"]))
            if status == "failed":
                # Of the one that is repeated nobody knows whether it happened.
                said = "was not made again" if REPEATS in record and not record["attempt"] else "did not happen"
                msg = f"{tool.name} {said}: {record['error']}{self._if_it_ends_the_run(tool, record)}"
                raise EffectFailed(msg, record["id"])
            if status == "raised":
                told = plain(record["raised"])
                ended = f"{tool.name} raised {in_short(told)} (effect {record['id']})"
                msg = f"{ended}. What it had changed by then is not known{self._if_it_ends_the_run(tool, record)}"
                raise EffectRaised(msg, record["id"], told) from raised
            if status == "unknown":
                # A run gets again what it has been told.
                if self._journal.run is None and (yield from self.effects.take_posted(tool, record)):
                    continue
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

    def _is_awaited_elsewhere(self, tool: Tool) -> bool:
        """Whether a call needs functions awaited, which only the handle of an event loop can do."""
        return bool(tool.asynchronous) and is_blocking(self._journal.gate)

    def _check_awaited(self, tool: Tool) -> None:
        """Refuse such a call while nothing has happened."""
        if self._is_awaited_elsewhere(tool):
            raise Misuse(
                f"{tool.name} was not called: {tool.asynchronous} is asynchronous, and this session blocks: use it "
                "through perdure.open_async(...), or an agent"
            )

    @property
    def is_dry(self) -> bool:
        """Whether nothing outside may be touched: no call but a read is made, polled or looked up."""
        return self._journal.settings.effects == "dry"

    def _known_of(self, tool: Tool, record: TrackedDict) -> Flow[bool]:
        """Settle an open call by what is written down of it, without asking anybody outside; whether it is settled."""
        if record["status"] == "planned":
            yield from self._approvals.settle_refusal(record)
        elif not (yield from self.effects.take_posted(tool, record)):
            yield from self._take_shared(tool, record)
        return record["status"] not in OPEN

    def _take_shared(self, tool: Tool, record: TrackedDict) -> Flow[bool]:
        """Take what a call has returned and shared before its process died; whether it had."""
        if (cache := record.get("cache")) is None or not cache["shared"]:
            return False
        hit = yield Do(self._cache.shared, (cache["name"],))
        if hit is None or hit.get("effect") != record["id"]:
            return False
        yield from self.effects.done(tool, record, hit["result"], self._redone(hit.get(WRITES, ())))
        return True

    def _attempt(self, tool: Tool, bound: dict[str, Any], record: TrackedDict) -> Flow[BaseException | None]:
        """Write down that the call starts, make it, write its outcome down; what it raised, if it did."""
        if runs_on(record["id"]):
            yield from self._park(record)
        if "cache" in record and "read" not in record:
            self._hold_back(record["cache"]["name"], record)
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
        earlier = (record.get(REPEATS, ""), *record.get("was", ()))
        other = yield from self._cache.claim(tool.name, plain(record["cache"]), record["id"], earlier)
        faults.point("call.after_claimed")
        if other is None or "result" in other:
            record.pop(BEHIND, None)
        if other is None:
            return False
        if "result" in other:
            if "approval" not in record:
                yield from self._finish_with(tool, record, other)
            return "approval" not in record
        waits_for = {"session": other["session"], "effect": other["effect"]}
        if plain(record.get(BEHIND)) != waits_for:
            # Whoever asks why it stands still is told whom it waits for.
            record[BEHIND] = waits_for
            yield from self._journal.write(Kind.PLANNED, x=about(record))
        settle = f"resolve {quoted(other['session'])} {other['effect']}"
        done, give_up = errors.suggested(f"{settle} --done RESULT"), errors.suggested(f"{settle} --abort")
        own = "another branch of " if other["session"] == self._journal.id else ""
        raise ResultPending(
            f"{own}session {other['session']!r} was first with the same call of {tool.name} (effect "
            f"{other['effect']}), and there is no outcome yet. Its result is shared, so it is not made twice: call "
            "again once it is there. If that session stands still, go on with it, or settle the call there "
            f"({give_up} gives it up, {done} says what came of it)",
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
        draft = CallState(self._journal)
        attempt = Attempt(
            record["id"],
            partial(self._returned_late, tool, record["id"], draft),
            partial(self._left_unknown, tool, record["id"]),
        )
        try:
            with telemetry.tracing.execute_tool(tool.name, self._journal.id, bound, record, (Asking,)) as span:
                call = runnable(tool, attempt.watched)
                result = yield Invoke(call, (), self._arguments(tool, bound, record, draft))
                span.returned(result)
        except Asking as e:
            draft.drop()
            yield from self._approvals.ask_person(tool, bound, record, e)
        except BaseException as e:
            late = attempt.abandon()
            if not is_of_the_call(e):
                draft.drop()
                # A kill that left us time to see it: nothing is written, and whoever resumes finds a lost answer.
                raise
            if late is not None:
                yield from self._returned(tool, bound, record, late[0], draft)
            else:
                draft.drop()
                raised = attempt.as_raised(e)
                yield from self._ended(tool, bound, record, raised, attempt.hangs_at)
                return raised
        else:
            yield from self._returned(tool, bound, record, result, draft)
        return None

    def _returned(
        self, tool: Tool, bound: dict[str, Any], record: TrackedDict, result: Any, draft: CallState
    ) -> Flow[None]:
        if not isinstance(result, Later):
            yield from self.effects.done(tool, record, result, draft)
            return
        handle = tool.poll_types.result_as_json(result.handle)
        if problem := refusal(handle):
            # It was made, and nobody could ask for its result by that.
            draft.drop()
            wrong = NotJson(("handle",), problem, where=f"what {tool.name} gave to Later(...), or a part of it,")
            yield from self._ended(tool, bound, record, wrong)
            return
        with draft.kept_in(record, agent=self.effects.observer is not None):
            record["handle"] = handle
            record.pop(LOOKUP, None)
            record["status"] = "waiting"
        yield from self._write_waiting(record)

    def _write_waiting(self, record: TrackedDict) -> Flow[None]:
        yield from self._journal.write(Kind.WAITING, x=about(record), status=self.effects.session_status())

    def _returned_late(self, tool: Tool, effect: str, draft: CallState, result: Any) -> None:
        """In the thread of a tool that nobody waits for any more: post what it returned."""
        kernel, session = self._journal.kernel, self._journal.id
        result = tool.types.result_as_json(result)
        kind, body = draft.to_post(result)
        try:
            entry = seal_entry(kernel, session, f"outcome:{effect}", kind, body)
        except InvalidInput:
            if kind == OUTCOME:
                raise
            # What it returned is to be known all the same, and that something was not kept.
            why = f"it returned when nobody waited any more, and then no bytes and no more than {MAX_MESSAGE} are kept"
            unkept = {"result": result, UNKEPT: why}
            entry = seal_entry(kernel, session, f"outcome:{effect}", kind, unkept)
        drive(kernel.store, posted(kernel, entry))
        if too_late(kernel, [entry]) and (stands := _stands_otherwise(kernel, session, effect, result)):
            # A person, or another attempt, has settled it meanwhile: what happened is known here alone.
            words = "%s (effect %s of session %r) has returned late: %s. Its call %s, and that stands: find out"
            warn(words, tool.name, effect, session, scrubbed(brief(result, MAX_TOLD)), stands)

    def _left_unknown(self, tool: Tool, effect: str) -> str:
        """What becomes of a call whose answer is lost, for people."""
        if tool.read or tool.if_unsure == "retry":
            return f"Whoever goes on with session {self._journal.id!r} makes it again, under the same id"
        if callable(tool.if_unsure):
            return f"Whoever goes on with session {self._journal.id!r} has it looked up"
        if tool.if_unsure == "report":
            return f"Whoever goes on with session {self._journal.id!r} is told that nobody knows whether it was done"
        url = self._journal.kernel.store.url
        settle = Action(ToDo.RESOLVE, self._journal.id, effect, self._journal.branch, url).command
        return f"It stands in doubt: find out whether it happened, then settle it with {settle}"

    def _ended(
        self, tool: Tool, bound: dict[str, Any], record: TrackedDict, error: BaseException,
        hangs_at: Sequence[FrameSummary] = (),
    ) -> Flow[None]:  # fmt: skip
        """A call has ended with an exception: what that means is what its tool declares."""
        found = meaning(error, tool.lost)
        if found is Meaning.OURS:
            raise error
        told = described(error, hangs_at)
        if found is Meaning.NOT_DONE:
            told["message"] = self._said(tool, error)
            if UNSETTLED in record:
                record["raised"] = told
            yield from self.effects.finish(record, "failed", None, told["message"])
            return
        again = tool.read or tool.if_unsure == "retry"
        if found is Meaning.LOST or (found is Meaning.UNREACHED and again):
            yield from self._lost(tool, record, told)
            return
        record["raised"] = told
        if tool.read:
            # Nothing can have happened: its error is its answer.
            yield from self.effects.finish(record, "failed", None, in_short(told)[:MAX_ERROR])
            return
        draft = CallState(self._journal)
        verdict = (yield from self._reconciled(tool, bound, record, draft)) if callable(tool.if_unsure) else None
        if isinstance(verdict, Done):
            yield from self.effects.done(tool, record, verdict.result, draft)
        elif isinstance(verdict, NotDone):
            yield from self.effects.finish(record, "failed", None, in_short(told)[:MAX_ERROR])
        else:
            yield from self.effects.finish(record, "raised", None, told["class"])

    def _said(self, tool: Tool, error: BaseException) -> str:
        """What a tool says that has done nothing; one that has the model ask otherwise is not asked for ever."""
        said = words_of(error) or "the tool said so"
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
        if tool.if_unsure == "retry" or callable(tool.if_unsure):
            # Durable, so that whoever resumes does not begin with the shortest pause again.
            now = self._journal.kernel.clock.wall()
            record.setdefault("lost_since", now)
            record["retry_at"] = now + pause_after(record["attempt"])
        if tool.if_unsure == "retry":
            yield from self._write_retrying(tool, record, pause_after(record["attempt"]))
        else:
            record["status"] = "in_doubt"
            yield from self._journal.write(Kind.IN_DOUBT, x=about(record, error=told["class"]))

    def _write_retrying(self, tool: Tool, record: TrackedDict, pause: int) -> Flow[None]:
        """Write down that a call without an answer is made again after a pause (ms)."""
        record["status"] = "started"
        record["retry_at"] = self._journal.kernel.clock.wall() + pause
        unless = ", unless it is found to have happened" if callable(tool.if_unsure) else ""
        warn(
            "%s (effect %s) got no answer and is called again in %d s%s: %s",
            tool.name, record["id"], pause // 1000, unless, _in_full(plain(record["lost"])),
        )  # fmt: skip
        yield from self._journal.write(
            Kind.RETRYING, x=about(record, error=record["error"]), status=self.effects.session_status
        )

    def _reconciled(
        self, tool: Tool, bound: dict[str, Any], record: TrackedDict, draft: CallState
    ) -> Flow[Done | NotDone | Unknown]:
        """What a tool's own function finds out about a call; one that fails has found out nothing.

        What it writes into the draft is the caller's to keep, with the outcome that it finds.
        """
        assert callable(tool.if_unsure)
        try:
            given = self._contexts.asked(tool.if_unsure, record, draft)
            answer = yield Invoke(tool.if_unsure, (), {**tool.types.arguments(bound), **given})
            verdict = _verdict("if_unsure", answer)
        except BaseException as e:
            draft.drop()
            if not is_of_the_call(e):
                raise
            self._not_found_out(tool, record, e)
            return Unknown()
        record.pop(LOOKUP, None)
        if not isinstance(verdict, Done):
            draft.drop()
        return verdict

    def _not_found_out(self, tool: Tool, record: TrackedDict, error: BaseException) -> None:
        """Note what a function ended with that was to find out what became of a call: people are told."""
        told = described(error)
        said = in_short(told)[:MAX_ERROR]
        if record.get(LOOKUP) != said:
            # It is asked again and again while the call stands in doubt: the log is told when there is news.
            warn("nobody could be asked about %s (effect %s): %s", tool.name, record["id"], _in_full(told))
        record[LOOKUP] = said

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
        if not (yield from self.effects.take_posted(tool, record)) and tool.poll is not None:
            draft, failed_before = CallState(self._journal), record.get(LOOKUP)
            verdict = yield from self._polled(tool, tool.poll, record, draft)
            if isinstance(verdict, Done):
                yield from self.effects.done(tool, record, verdict.result, draft)
                return
            draft.drop()
            if isinstance(verdict, NotDone):
                yield from self.effects.finish(record, "failed", None, words_of(verdict) or "not done")
            elif record.get(LOOKUP) != failed_before:
                yield from self._write_waiting(record)
        if record["status"] == "waiting":
            told = looked_up(plain(record))
            again = f"{told}. Mend that and call again" if told else "call again once it is there"
            msg = f"{tool.name} (effect {record['id']}) was made and its result comes later: {again}"
            raise ResultPending(msg, record["id"])

    def _polled(
        self, tool: Tool, poll: Callable[..., Any], record: TrackedDict, draft: CallState
    ) -> Flow[Done | NotDone | Unknown]:
        """What a tool's own function says of a result that comes later; one that fails has nothing to say yet."""
        given = self._contexts.asked(poll, record, draft)
        try:
            answer = yield Invoke(poll, (tool.poll_types.first_argument(plain(record["handle"])),), given)
            verdict = Unknown() if answer is None else _verdict("poll", answer)
        except BaseException as e:
            draft.drop()
            # What we raise ourselves says what to do, as where it cannot be awaited, or the lease is lost.
            if isinstance(e, PerdureError) or not is_of_the_call(e):
                raise
            self._not_found_out(tool, record, e)
            return Unknown()
        record.pop(LOOKUP, None)
        return verdict

    def _unsure(self, tool: Tool, bound: dict[str, Any], record: TrackedDict) -> Flow[bool]:
        """An effect was started and its outcome is unknown: True when it may be made (again)."""
        if tool.read:
            over = yield from self._is_left(record["id"])
            if (yield from self.effects.take_posted(tool, record)):
                return False
            if not over:
                give_up(record["id"])
                told = in_short(record["lost"]) if "lost" in record else "an earlier attempt at it is still under way"
                yield from self.effects.finish(record, "failed", None, told[:MAX_ERROR])
            elif record["attempt"] >= READ_TRIES:
                # A kill is a lost answer, too: a read that ends its process each time is not made for ever.
                told = f"its answer was lost {READ_TRIES} times: whoever made it ended before that was written down"
                yield from self.effects.finish(record, "failed", None, told)
                return False
            return over
        if record["status"] == "started":
            telemetry.doubted(tool.name)
        if (yield from self.effects.take_posted(tool, record)):
            return False
        if (yield from self._take_shared(tool, record)):
            return False
        policy, failed_before = tool.if_unsure, record.get(LOOKUP)
        clock = self._journal.kernel.clock
        if callable(policy):
            while True:
                draft = CallState(self._journal)
                verdict = yield from self._reconciled(tool, bound, record, draft)
                if isinstance(verdict, Done):
                    yield from self.effects.done(tool, record, verdict.result, draft)
                    return False
                # That it has not happened is no reason to make it without a pause and without an end.
                if not isinstance(verdict, NotDone) or runs_on(record["id"]) or not self._may_be_retried(tool, record):
                    break
                left = record.pop("retry_at", 0) - clock.wall()
                if left <= 0:
                    self.effects.did_not_happen(record)
                    return True
                # Asked once more after the pause: what was still on its way has arrived by then.
                yield from self._write_retrying(tool, record, min(left, LONGEST_PAUSE))
                yield Wait(clock, min(left, LONGEST_PAUSE))
                record.pop("retry_at", None)
                if (yield from self.effects.take_posted(tool, record)):
                    return False
        elif policy == "retry":
            while self._may_be_retried(tool, record):
                left = record.get("retry_at", 0) - clock.wall()
                # No second attempt is made while one lives.
                if left <= 0 and not runs_on(record["id"]):
                    record[UNSETTLED] = True
                    return True
                # A clock that was set back makes nobody wait for longer than was meant.
                yield Wait(clock, min(max(left, FIRST_PAUSE), LONGEST_PAUSE))
                record.pop("retry_at", None)
                if (yield from self.effects.take_posted(tool, record)):
                    return False
        elif policy == "report":
            self.effects.settle(record, "unknown", None, record.get("error"))
            yield from self._journal.write(Kind.IN_DOUBT, x=about(record), status=self.effects.session_status)
            has_outcome(record["id"], "unknown")
            return False
        yield from self._park(record, anew=record.get(LOOKUP) != failed_before)
        return False

    def _park(self, record: TrackedDict, *, anew: bool = False) -> Flow[None]:
        """Leave an effect in doubt to a human; ``anew`` when there is something else to be told of it."""
        if anew or record["status"] != "in_doubt" or self._journal.status != Status.IN_DOUBT:
            record["status"] = "in_doubt"
            x = about(record, error=record.get("error", ""))
            yield from self._journal.write(Kind.IN_DOUBT, x=x, status=Status.IN_DOUBT)
        mend = f"{told}. Mend that and call again, or " if (told := looked_up(plain(record))) else ""
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
        known = None
        if hit is None and not tool.read:
            known = yield from self.effects.take_settled(tool, digest, call.slot)
        if hit is None and known is None and not tool.read:
            if self._journal.settings.effects != "live":
                awaited = yield from self._awaited(tool, bound, digest, call.slot)
                if awaited is not None:
                    awaited["call"] = call.id
                    return awaited
            again, asks = yield from self._on_another_branch(digest, call.slot)
        earlier = None if tool.read else self.effects.raised_before(digest, call.slot)
        record = self.effects.new(tool, bound, digest, call.slot)
        record["call"] = call.id
        if hit is not None:
            record["reused"] = "cache"
            self.effects.settle(record, "done", self.effects.as_recorded(tool, record, hit["result"]), None)
        elif known is not None:
            record["reused"] = known["id"]
            self.effects.settle(record, "done", self.effects.as_recorded(tool, record, known["result"]), None)
        elif again is not None:
            result = self.effects.as_recorded(tool, record, again.result)
            self.effects.settle(record, "done", result, None, self._taken_over(record, again))
        elif not tool.read and self.is_dry:
            self.effects.settle(record, "failed", None, DRY)
        elif asks and self._journal.settings.effects != "live":
            self.effects.settle(record, "failed", None, self._said_elsewhere(asks))
        elif earlier is not None and (refused := self._repeat(tool, record, *earlier)):
            self.effects.settle(record, "failed", None, refused)
        elif record["status"] != "in_doubt":
            if asks:
                record["because"] = f"the same was done {self._where(asks)} (effect {asks})"
            elif not tool.read:
                yield from self._say_if_edited(record, call.slot)
            # One whose rules for agreement fail is only planned: they are asked again, and told of, once it is written.
            with suppress(ApprovalRuleFailed):
                yield from self._ask_or_start(tool, bound, record, before)
        return record

    def _ask_or_start(
        self, tool: Tool, bound: dict[str, Any], record: TrackedDict, before: list[TrackedDict]
    ) -> Flow[None]:
        # One that goes on under the id it had passes without agreement: a request would stay open for ever.
        if not record["attempt"] and ("because" in record or (yield from self._approvals.needed(tool, bound, record))):
            facts = yield from self._approvals.facts_of(tool, bound, record)
            self._approvals.request(tool, bound, record, facts, record.get("because", ""))
        elif (
            tool.limit is None
            and not claims(record)
            and not any(twins(record, other) for other in before)
            and ("cache" not in record or tool.read or self._first_of(record["cache"]["name"], record) is None)
        ):
            # One that must wait for a place, its twin or its claim, or the same call of before, is only planned:
            # whoever dies before has not started it.
            record["status"] = "started"
            record["attempt"] += 1

    def _give_way(self, record: TrackedDict, effect: str) -> Flow[None]:
        """A planned call was made on another line since: it is not made here, and its model is told as of a new one."""
        yield from self._approvals.let_go(record, ours=record["line"] == self._journal.line)
        if record["id"] == effect:
            # What becomes of that one is told where it was made.
            self._rename(record)
            _forget_attempts(record)
        yield from self.effects.finish(record, "failed", None, self._said_elsewhere(effect))

    def _said_elsewhere(self, effect: str) -> str:
        return f'was done {self._where(effect)} already (effect {effect}): run with effects="live" to do it again'

    def spare(self, tool: Tool, record: TrackedDict) -> Flow[None]:
        """Take an open call as far as it goes in a dry run: it is not made.

        One that nobody was asked about, and that was never begun, is refused as a new one is; any other stays open.
        """
        yield from self._journal.resend()
        was_asked = "approval" in record and record["line"] == self._journal.line
        # That another branch has made it needs no words: here it is not.
        with suppress(DoneElsewhere):
            yield from self.reconsider(tool, record)
        if record["status"] not in OPEN or (yield from self._known_of(tool, record)):
            return
        if record["status"] == "planned" and not record["attempt"] and not was_asked:
            yield from self.effects.finish(record, "failed", None, DRY)

    def carry_on(self, tool: Tool, record: TrackedDict, *, fresh: bool = False) -> Flow[str]:
        """Take a call as far as it goes now; answers where it stands. What it waits for is no error here."""
        before = (record["attempt"], exception_of(plain(record))) if not fresh else None
        with suppress(EffectFailed, EffectRaised, NotJson, StateNotKept, InDoubt, ApprovalNeeded, ResultPending):
            yield from self._journal.resend()
            if not fresh and record["status"] in OPEN:
                try:
                    yield from self.reconsider(tool, record, ask=True)
                except DoneElsewhere as e:
                    yield from self._give_way(record, e.effect)
            yield from self.go_on(tool, plain(record["args"]), record, fresh=fresh)
        told = exception_of(plain(record))
        if told is not None and (record["attempt"], told) != before:
            # The model is told, or a person asked; whoever wrote the tool reads logs. Whoever looks at the call again
            # while it stands in doubt has nothing new to say.
            said = "raised" if "raised" in record else "got no answer:"
            warn("%s (effect %s) %s %s", tool.name, record["id"], said, _in_full(told))
        if record["status"] == "done" and "problem" in record:
            warn("%s", no_json(tool.name, record["id"], record["problem"]))
        if record["status"] == "done" and UNKEPT in record:
            warn("%s", unkept(record))
        return record["status"]


def _stands_otherwise(kernel: Kernel, session: str, effect: str, result: Any) -> str:
    """What a settled call has as its outcome, for people; "" where that is just this result."""
    row = find(kernel, session)
    books = [load_head(kernel, row, branch).doc[BOOK] for branch in row.branches] if row is not None else []
    for record in (r for book in books for r in book.get("effects", {}).values() if r["id"] == effect):
        if record["status"] == "done" and plain(record["result"]) == result:
            return ""
        by = f" by {record['resolved_by']}" if record.get("resolved_by") else ""
        if record["status"] == "failed":
            return f"counts as not done{by} ({scrubbed(one_line(str(record['error']), MAX_TOLD))})"
        return f"was settled as done{by} with {scrubbed(brief(plain(record['result']), MAX_TOLD))}"
    return "was settled before"


def _verdict(option: str, answer: Any) -> Done | NotDone | Unknown:
    """What a function that finds out about a call has answered; whatever else it gives is its mistake."""
    if answer is NotDone or answer is Unknown:
        answer = answer()
    if isinstance(answer, Done | NotDone | Unknown):
        return answer
    wanted = "perdure.Done(result), perdure.NotDone or perdure.Unknown" + (", or None" if option == "poll" else "")
    raise TypeError(f"{option} gave {answer!r:.60}, and must return {wanted}")


def pause_after(attempt: int) -> int:
    """Ms before a call is tried again whose answer was lost.

    >>> [pause_after(n) for n in (1, 2, 3, 20)]
    [1000, 2000, 4000, 60000]
    """
    return min(LONGEST_PAUSE, FIRST_PAUSE << min(attempt - 1, 16))


def _warn_of_misfit(tool: Tool, wrong: str) -> None:
    if wrong:
        warn("what %s returned does not fit what it declares: %s. It is given as it is", tool.name, wrong)


def _is_lost(tool: Tool, error: BaseException) -> bool:
    return is_of_the_call(error) and meaning(error, tool.lost) in (Meaning.LOST, Meaning.UNREACHED)


def _in_full(told: dict[str, str]) -> str:
    return f"{in_short(told)}\n{told['traceback']}"


def _become(record: TrackedDict, there: dict[str, Any]) -> None:
    """A call was made on another line, and its outcome comes later: here it is the same one, and waited for as well."""
    names = ("id", "attempt", "at", "status", "handle", "progress")
    record.update({name: plain(there[name]) for name in names if name in there})


def _forget_attempts(record: TrackedDict) -> None:
    """What was begun under the id of a call is not this one: of it nothing was made yet."""
    for name in ("error", "lost", "lost_since", "retry_at", "handle", "progress", "question", UNSETTLED):
        record.pop(name, None)
    record["attempt"] = 0


def twins(one: TrackedDict, other: TrackedDict) -> bool:
    """Whether two calls of an answer share a result that is kept: one of them pays, the other one waits for it."""
    return "cache" in one and "cache" in other and one["cache"]["name"] == other["cache"]["name"]


def _done_elsewhere(tool: Tool, effect: str, where: str) -> DoneElsewhere:
    msg = (
        f"{tool.name} was already called with these arguments {where} (effect {effect}): "
        'open the session with effects="live" to do it again'
    )
    return DoneElsewhere(msg, effect)
