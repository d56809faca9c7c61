"""Making attempts at a call until it has an outcome, and what the end of each attempt means.

Each attempt is written down before it is made. What a tool declares decides what an exception, a lost answer or a kill
means; ``tools.exceptions`` tells them apart. Read :meth:`Attempts.go_on` first: where a call stands says what is next.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from perdure import errors, telemetry
from perdure.errors import CallError, EffectFailed, EffectRaised, InvalidInput, NotJson, ResultPending, StateNotKept
from perdure.history.hydrate import find, load_head
from perdure.history.reported_outcomes import too_late
from perdure.model import Kind, Status
from perdure.session.actions import Action
from perdure.session.actions import Do as ToDo
from perdure.session.calls.late_returns import Attempt, runs_on, warn
from perdure.session.calls.records import (
    AGAIN,
    BEHIND,
    LOOKUP,
    MAX_ERROR,
    OPEN,
    REPEATS,
    UNSETTLED,
    about,
    claims,
    if_repeated,
    kept_as,
    left_open,
    no_json,
    unkept,
)
from perdure.session.calls.retries import READ_TRIES, pause_after
from perdure.session.inbox import MAX_MESSAGE, posted, seal_entry
from perdure.session.journal import Called
from perdure.session.tools import Done, Later, ModelRetry, NotDone, Unknown
from perdure.session.tools.call_state import OUTCOME, UNKEPT, CallState
from perdure.session.tools.context import Asking
from perdure.session.tools.declaration import Tool
from perdure.session.tools.exceptions import Meaning, described, in_short, is_of_the_call, meaning, words_of
from perdure.session.tools.running import check_awaited, is_awaited_elsewhere, runnable
from perdure.state.document import BOOK, plain
from perdure.state.values import refusal
from perdure.system import faults
from perdure.system.commands import quoted
from perdure.system.flow import Flow, Invoke, Wait, drive
from perdure.system.secrets import scrubbed
from perdure.system.wording import brief, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from traceback import FrameSummary

    from perdure.kernel import Kernel
    from perdure.session.calls.approvals import Approvals
    from perdure.session.calls.effects import Effects
    from perdure.session.calls.lookups import Lookups
    from perdure.session.calls.read_cache import ReadCache
    from perdure.session.calls.same_calls import SameCalls
    from perdure.session.inbox import Inbox
    from perdure.session.journal import Journal
    from perdure.session.tools.context import Contexts
    from perdure.state.document import TrackedDict

    Carrier = Callable[[], Callable[[Flow[Any]], Any]]

MAX_TOLD = 300
"""Characters of a result that a log is told."""
ASK_AGAIN = 2
"""How often in a row a tool may have the model ask otherwise."""


class Attempts:
    """Takes recorded calls to their outcomes."""

    def __init__(
        self, journal: Journal, inbox: Inbox, effects: Effects, approvals: Approvals, cache: ReadCache,
        contexts: Contexts, carrier: Carrier, same: SameCalls, lookups: Lookups,
    ) -> None:  # fmt: skip
        self._journal = journal
        self._inbox = inbox
        self._effects = effects
        self._approvals = approvals
        self._cache = cache
        self._contexts = contexts
        self._carrier = carrier
        """Carries a flow out for a tool that is running; each kind of handle has its own way."""
        self._same = same
        self._lookups = lookups
        self._unmade: set[str] = set()
        """Effects written as started, to the best of our knowledge, and never made: the write's answer was lost."""

    def go_on(self, tool: Tool, bound: dict[str, Any], record: TrackedDict, *, fresh: bool = False) -> Flow[Any]:
        """Take a recorded call from where it stands to its outcome; a ``fresh`` one was written as started just now."""
        if not tool.read and record["status"] in OPEN:
            if is_awaited_elsewhere(tool, self._journal.gate) and not (yield from self._lookups.known_of(tool, record)):
                check_awaited(tool, self._journal.gate)
            if self._journal.settings.effects == "dry" and not (yield from self._lookups.known_of(tool, record)):
                raise CallError(left_open(plain(record)), record["id"])
            # Planned by another handle: where it has its place is not known here.
            self._journal.calls.setdefault(record["id"], Called(tool.name, "", record["digest"], kept_as(record)))
        # Whoever calls again names what was asked for, and not what a person has had made instead.
        bound = plain(record["args"]) if "edited" in record else bound
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
                if self._journal.run is None and (yield from self._effects.take_posted(tool, record)):
                    continue
                return Unknown(record["id"])
            if status == "waiting":
                yield from self._lookups.late(tool, record)
                continue
            if status in ("started", "in_doubt") and not (yield from self._lookups.unsure(tool, bound, record)):
                continue
            if (yield from self._approvals.gate(tool, bound, record)):
                # A decision may have come with other arguments.
                if "edited" in record:
                    bound = plain(record["args"])
                    if (yield from self._same.is_known_after_edit(tool, bound, record)):
                        continue
                raised = yield from self._attempt(tool, bound, record)

    def _attempt(self, tool: Tool, bound: dict[str, Any], record: TrackedDict) -> Flow[BaseException | None]:
        """Write down that the call starts, make it, write its outcome down; what it raised, if it did."""
        if runs_on(record["id"]):
            yield from self._lookups.park(record)
        if "cache" in record and "read" not in record:
            self._same.hold_back(record["cache"]["name"], record)
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
                yield from self._same.finish_with(tool, record, other)
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

    def _returned(
        self, tool: Tool, bound: dict[str, Any], record: TrackedDict, result: Any, draft: CallState
    ) -> Flow[None]:
        if not isinstance(result, Later):
            yield from self._effects.done(tool, record, result, draft)
            return
        handle = tool.poll_types.result_as_json(result.handle)
        if problem := refusal(handle):
            # It was made, and nobody could ask for its result by that.
            draft.drop()
            wrong = NotJson(("handle",), problem, where=f"what {tool.name} gave to Later(...), or a part of it,")
            yield from self._ended(tool, bound, record, wrong)
            return
        with draft.kept_in(record, agent=self._effects.observer is not None):
            record["handle"] = handle
            record.pop(LOOKUP, None)
            record["status"] = "waiting"
        yield from self._effects.write_waiting(record)

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
            yield from self._effects.finish(record, "failed", None, told["message"])
            return
        again = tool.read or tool.if_unsure == "retry"
        if found is Meaning.LOST or (found is Meaning.UNREACHED and again):
            yield from self._lost(tool, record, told)
            return
        record["raised"] = told
        if tool.read:
            # Nothing can have happened: its error is its answer.
            yield from self._effects.finish(record, "failed", None, in_short(told)[:MAX_ERROR])
            return
        draft = CallState(self._journal)
        verdict = None
        if callable(tool.if_unsure):
            verdict = yield from self._lookups.reconciled(tool, bound, record, draft)
        if isinstance(verdict, Done):
            yield from self._effects.done(tool, record, verdict.result, draft)
        elif isinstance(verdict, NotDone):
            yield from self._effects.finish(record, "failed", None, in_short(told)[:MAX_ERROR])
        else:
            yield from self._effects.finish(record, "raised", None, told["class"])

    def _said(self, tool: Tool, error: BaseException) -> str:
        """What a tool says that has done nothing; one that has the model ask otherwise is not asked for ever."""
        said = words_of(error) or "the tool said so"
        if isinstance(error, ModelRetry) and self._effects.asked_again(tool.name) > ASK_AGAIN:
            said += f" ({tool.name} has said so {ASK_AGAIN} times before: do not call it again for this)"
        return said

    def _lost(self, tool: Tool, record: TrackedDict, told: dict[str, str]) -> Flow[None]:
        """The answer of a call did not come: a read is made again, the rest as its tool declares for a doubt."""
        record["error"] = told["class"]
        record["lost"] = told
        if tool.read:
            if record["attempt"] >= READ_TRIES:
                yield from self._effects.finish(record, "failed", None, in_short(told)[:MAX_ERROR])
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
            yield from self._lookups.write_retrying(tool, record, pause_after(record["attempt"]))
        else:
            record["status"] = "in_doubt"
            yield from self._journal.write(Kind.IN_DOUBT, x=about(record, error=told["class"]))

    def _if_it_ends_the_run(self, tool: Tool, record: TrackedDict) -> str:
        """What helps when the exception of a call leaves its run, as the end of a sentence; "" outside of runs."""
        if (run := self._journal.run) is None:
            return ""
        again = if_repeated(tool, record, self._journal.book.get("approvals", {}))
        if not again:
            return f". Run again, run {run!r} gets this again: have its function go on after it"
        if again == "report":
            return (
                f". If it ends run {run!r}, find out, say so with session.resolve(effect, done=result | retry=True | "
                "abort=True), and run it again: until then the call is refused"
            )
        return f". If it ends run {run!r}, mend the cause and run it again: {AGAIN[again]}"


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
