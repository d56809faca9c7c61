"""What came of a call that was begun, found out without making it.

By what was posted or shared of it, by what its tool's own functions say (``if_unsure``, ``poll``), or by a person: then
it stands in doubt. No attempt is made here; that one may be is the answer of :meth:`Lookups.unsure`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure import telemetry
from perdure.errors import InDoubt, PerdureError, ResultPending
from perdure.model import Kind, Status
from perdure.session.calls.late_returns import give_up, has_outcome, runs_on, warn
from perdure.session.calls.read_cache import PROBLEM
from perdure.session.calls.records import LOOKUP, MAX_ERROR, OPEN, UNSETTLED, about, looked_up
from perdure.session.calls.retries import FIRST_PAUSE, LONGEST_PAUSE, READ_TRIES, is_left, may_be_retried
from perdure.session.tools import Done, NotDone, Unknown
from perdure.session.tools.call_state import WRITES, CallState, redone
from perdure.session.tools.declaration import Tool
from perdure.session.tools.exceptions import described, in_full, in_short, is_of_the_call, words_of
from perdure.state.document import plain
from perdure.system.flow import Do, Flow, Invoke, Wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.session.calls.approvals import Approvals
    from perdure.session.calls.effects import Effects
    from perdure.session.calls.read_cache import ReadCache
    from perdure.session.journal import Journal
    from perdure.session.tools.context import Contexts
    from perdure.state.document import TrackedDict


class Lookups:
    """Where the outcome of a begun call may be found."""

    def __init__(
        self, journal: Journal, effects: Effects, approvals: Approvals, cache: ReadCache, contexts: Contexts
    ) -> None:
        self._journal = journal
        self._effects = effects
        self._approvals = approvals
        self._cache = cache
        self._contexts = contexts

    def known_of(self, tool: Tool, record: TrackedDict) -> Flow[bool]:
        """Settle an open call by what is written down of it, without asking anybody outside; whether it is settled."""
        if record["status"] == "planned":
            yield from self._approvals.settle_refusal(record)
        elif not (yield from self._effects.take_posted(tool, record)):
            yield from self._take_shared(tool, record)
        return record["status"] not in OPEN

    def _take_shared(self, tool: Tool, record: TrackedDict) -> Flow[bool]:
        """Take what a call has returned and shared before its process died; whether it had."""
        if (cache := record.get("cache")) is None or not cache["shared"]:
            return False
        hit = yield Do(self._cache.shared, (cache["name"],))
        if hit is None or hit.get("effect") != record["id"]:
            return False
        if PROBLEM in hit:
            record[PROBLEM] = hit[PROBLEM]
        yield from self._effects.done(tool, record, hit["result"], redone(self._journal, hit.get(WRITES, ())))
        return True

    def late(self, tool: Tool, record: TrackedDict) -> Flow[None]:
        """Look whether the result of a call that said "later" has come; ``ResultPending`` while it has not."""
        if not (yield from self._effects.take_posted(tool, record)) and tool.poll is not None:
            draft, failed_before = CallState(self._journal), record.get(LOOKUP)
            verdict = yield from self._polled(tool, tool.poll, record, draft)
            if isinstance(verdict, Done):
                yield from self._effects.done(tool, record, verdict.result, draft)
                return
            draft.drop()
            if isinstance(verdict, NotDone):
                yield from self._effects.finish(record, "failed", None, words_of(verdict) or "not done")
            elif record.get(LOOKUP) != failed_before:
                yield from self._effects.write_waiting(record)
        if record["status"] == "waiting":
            told = looked_up(plain(record))
            again = f"{told}. Mend that and call again" if told else "call again once it is there"
            msg = f"{tool.name} (effect {record['id']}) was made and its result comes later: {again}"
            raise ResultPending(msg, record["id"])

    def unsure(self, tool: Tool, bound: dict[str, Any], record: TrackedDict) -> Flow[bool]:
        """An effect was started and its outcome is unknown: True when it may be made (again)."""
        if tool.read:
            over = yield from is_left(self._journal.kernel.clock, record["id"])
            if (yield from self._effects.take_posted(tool, record)):
                return False
            if not over:
                give_up(record["id"])
                told = in_short(record["lost"]) if "lost" in record else "an earlier attempt at it is still under way"
                yield from self._effects.finish(record, "failed", None, told[:MAX_ERROR])
            elif record["attempt"] >= READ_TRIES:
                # A kill is a lost answer, too: a read that ends its process each time is not made for ever.
                told = f"its answer was lost {READ_TRIES} times: whoever made it ended before that was written down"
                yield from self._effects.finish(record, "failed", None, told)
                return False
            return over
        if record["status"] == "started":
            telemetry.doubted(tool.name)
        if (yield from self._effects.take_posted(tool, record)):
            return False
        if (yield from self._take_shared(tool, record)):
            return False
        policy, failed_before = tool.if_unsure, record.get(LOOKUP)
        clock = self._journal.kernel.clock
        if callable(policy):
            while True:
                draft = CallState(self._journal)
                verdict = yield from self.reconciled(tool, bound, record, draft)
                if isinstance(verdict, Done):
                    yield from self._effects.done(tool, record, verdict.result, draft)
                    return False
                # That it has not happened is no reason to make it without a pause and without an end.
                if not isinstance(verdict, NotDone) or runs_on(record["id"]) or not may_be_retried(tool, record, clock):
                    break
                left = record.pop("retry_at", 0) - clock.wall()
                if left <= 0:
                    self._effects.did_not_happen(record)
                    return True
                # Asked once more after the pause: what was still on its way has arrived by then.
                yield from self.write_retrying(tool, record, min(left, LONGEST_PAUSE))
                yield Wait(clock, min(left, LONGEST_PAUSE))
                record.pop("retry_at", None)
                if (yield from self._effects.take_posted(tool, record)):
                    return False
        elif policy == "retry":
            while may_be_retried(tool, record, clock):
                left = record.get("retry_at", 0) - clock.wall()
                # No second attempt is made while one lives.
                if left <= 0 and not runs_on(record["id"]):
                    record[UNSETTLED] = True
                    return True
                # A clock that was set back makes nobody wait for longer than was meant.
                yield Wait(clock, min(max(left, FIRST_PAUSE), LONGEST_PAUSE))
                record.pop("retry_at", None)
                if (yield from self._effects.take_posted(tool, record)):
                    return False
        elif policy == "report":
            self._effects.settle(record, "unknown", None, record.get("error"))
            yield from self._journal.write(Kind.IN_DOUBT, x=about(record), status=self._effects.session_status)
            has_outcome(record["id"], "unknown")
            return False
        yield from self.park(record, anew=record.get(LOOKUP) != failed_before)
        return False

    def park(self, record: TrackedDict, *, anew: bool = False) -> Flow[None]:
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

    def write_retrying(self, tool: Tool, record: TrackedDict, pause: int) -> Flow[None]:
        """Write down that a call without an answer is made again after a pause (ms)."""
        record["status"] = "started"
        record["retry_at"] = self._journal.kernel.clock.wall() + pause
        unless = ", unless it is found to have happened" if callable(tool.if_unsure) else ""
        warn(
            "%s (effect %s) got no answer and is called again in %d s%s: %s",
            tool.name, record["id"], pause // 1000, unless, in_full(plain(record["lost"])),
        )  # fmt: skip
        yield from self._journal.write(
            Kind.RETRYING, x=about(record, error=record["error"]), status=self._effects.session_status
        )

    def reconciled(
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

    def _not_found_out(self, tool: Tool, record: TrackedDict, error: BaseException) -> None:
        """Note what a function ended with that was to find out what became of a call: people are told."""
        told = described(error)
        said = in_short(told)[:MAX_ERROR]
        if record.get(LOOKUP) != said:
            # It is asked again and again while the call stands in doubt: the log is told when there is news.
            warn("nobody could be asked about %s (effect %s): %s", tool.name, record["id"], in_full(told))
        record[LOOKUP] = said


def _verdict(option: str, answer: Any) -> Done | NotDone | Unknown:
    """What a function that finds out about a call has answered; whatever else it gives is its mistake."""
    if answer is NotDone or answer is Unknown:
        answer = answer()
    if isinstance(answer, Done | NotDone | Unknown):
        return answer
    wanted = "perdure.Done(result), perdure.NotDone or perdure.Unknown" + (", or None" if option == "poll" else "")
    raise TypeError(f"{option} gave {answer!r:.60}, and must return {wanted}")
