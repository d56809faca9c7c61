"""The calls of one answer of a model: begun together with it, then each taken as far as it goes, side by side.

What a call waits for, or ended with, is no error here: its record says so, and the model is told.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import (
    ApprovalNeeded,
    ApprovalRuleFailed,
    DoneElsewhere,
    EffectFailed,
    EffectRaised,
    InDoubt,
    NotJson,
    ResultPending,
    StateNotKept,
)
from perdure.session.calls.late_returns import warn
from perdure.session.calls.records import OPEN, claims, exception_of, no_json, unkept
from perdure.session.calls.same_calls import DRY
from perdure.session.tools.call_state import UNKEPT
from perdure.session.tools.declaration import Tool
from perdure.session.tools.exceptions import in_full
from perdure.state.document import plain
from perdure.system.flow import Flow

if TYPE_CHECKING:
    from perdure.session.calls.approvals import Approvals
    from perdure.session.calls.attempts import Attempts
    from perdure.session.calls.effects import Effects
    from perdure.session.calls.lookups import Lookups
    from perdure.session.calls.same_calls import SameCalls
    from perdure.session.journal import Journal
    from perdure.state.document import TrackedDict


class Call(NamedTuple):
    """One call of an answer: its tool and arguments, its place in the journal, and how the model names it."""

    tool: Tool
    args: dict[str, Any]
    slot: str
    id: str = ""


class CallsOfAnswer:
    """Calls that an agent's model asks for."""

    def __init__(
        self, journal: Journal, effects: Effects, approvals: Approvals, same: SameCalls, lookups: Lookups,
        attempts: Attempts,
    ) -> None:  # fmt: skip
        self._journal = journal
        self._effects = effects
        self._approvals = approvals
        self._same = same
        self._lookups = lookups
        self._attempts = attempts

    def begin(self, calls: list[Call]) -> Flow[list[TrackedDict]]:
        """Put calls into the journal, unwritten: started, planned when somebody must agree, done when known already.

        The commit of the answer writes them, so a call that starts at once costs no extra write.
        """
        records: list[TrackedDict] = []
        for call in calls:
            record = yield from self._same.begin_of_answer(call.tool, call.args, call.slot, call.id)
            if record["status"] == "planned":
                # One whose rules for agreement fail is only planned: they are asked again, and told of, once it is
                # written.
                with suppress(ApprovalRuleFailed):
                    yield from self._ask_or_start(call.tool, call.args, record, records)
            records.append(record)
        return records

    def spare(self, tool: Tool, record: TrackedDict) -> Flow[None]:
        """Take an open call as far as it goes in a dry run: it is not made.

        One that nobody was asked about, and that was never begun, is refused as a new one is; any other stays open.
        """
        yield from self._journal.resend()
        was_asked = "approval" in record and record["line"] == self._journal.line
        # That another branch has made it needs no words: here it is not.
        with suppress(DoneElsewhere):
            yield from self._same.reconsider(tool, record)
        if record["status"] not in OPEN or (yield from self._lookups.known_of(tool, record)):
            return
        if record["status"] == "planned" and not record["attempt"] and not was_asked:
            yield from self._effects.finish(record, "failed", None, DRY)

    def carry_on(self, tool: Tool, record: TrackedDict, *, fresh: bool = False) -> Flow[str]:
        """Take a call as far as it goes now; answers where it stands. What it waits for is no error here."""
        before = (record["attempt"], exception_of(plain(record))) if not fresh else None
        with suppress(EffectFailed, EffectRaised, NotJson, StateNotKept, InDoubt, ApprovalNeeded, ResultPending):
            yield from self._journal.resend()
            if not fresh and record["status"] in OPEN:
                try:
                    yield from self._same.reconsider(tool, record, ask=True)
                except DoneElsewhere as e:
                    yield from self._same.give_way(record, e.effect)
            yield from self._attempts.go_on(tool, plain(record["args"]), record, fresh=fresh)
        told = exception_of(plain(record))
        if told is not None and (record["attempt"], told) != before:
            # The model is told, or a person asked; whoever wrote the tool reads logs. Whoever looks at the call again
            # while it stands in doubt has nothing new to say.
            said = "raised" if "raised" in record else "got no answer:"
            warn("%s (effect %s) %s %s", tool.name, record["id"], said, in_full(told))
        if record["status"] == "done" and "problem" in record:
            warn("%s", no_json(tool.name, record["id"], record["problem"]))
        if record["status"] == "done" and UNKEPT in record:
            warn("%s", unkept(record))
        return record["status"]

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
            and ("cache" not in record or tool.read or self._same.first_of(record["cache"]["name"], record) is None)
        ):
            # One that must wait for a place, its twin or its claim, or the same call of before, is only planned:
            # whoever dies before has not started it.
            record["status"] = "started"
            record["attempt"] += 1


def twins(one: TrackedDict, other: TrackedDict) -> bool:
    """Whether two calls of an answer share a result that is kept: one of them pays, the other one waits for it."""
    return "cache" in one and "cache" in other and one["cache"]["name"] == other["cache"]["name"]
