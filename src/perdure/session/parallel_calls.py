"""Several calls at once, as an agent's answer makes them: put into the journal together, taken on side by side.

What is put down here is written by the commit of the answer itself, so a call that starts at once costs no extra write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import ApprovalNeeded, EffectFailed, InDoubt, NotJson, ResultPending
from perdure.session.effects import OPEN
from perdure.session.tools import Tool, call_digest
from perdure.state.document import plain
from perdure.system.flow import Do, Flow, Invoke

if TYPE_CHECKING:
    from perdure.session.approvals import Approvals
    from perdure.session.effects import Calls
    from perdure.session.journal import Journal
    from perdure.session.read_cache import ReadCache
    from perdure.state.document import TrackedDict


class Call(NamedTuple):
    """One call of an answer: its tool and arguments, its place in the journal, and how the model names it."""

    tool: Tool
    args: dict[str, Any]
    slot: str
    id: str = ""


class ParallelCalls:
    """The calls of an answer: begun together, carried on side by side."""

    def __init__(self, journal: Journal, calls: Calls, approvals: Approvals, cache: ReadCache) -> None:
        self._journal = journal
        self._calls = calls
        self._approvals = approvals
        self._cache = cache

    def begin(self, calls: list[Call]) -> Flow[list[TrackedDict]]:
        """Put calls into the journal, unwritten: started, planned when somebody must agree, done when known already."""
        records: list[TrackedDict] = []
        for call in calls:
            record = yield from self._begin(call)
            records.append(record)
        return records

    def _begin(self, call: Call) -> Flow[TrackedDict]:
        tool, bound = call.tool, call.args
        digest = call_digest(tool.name, tool.version, bound)
        again, asks = None, ""
        if tool.read:
            again = yield from self._cache.find(tool, digest)
        else:
            again, asks = yield from self._on_another_branch(digest)
        record = self._calls.effects.new(tool, bound, digest, call.slot)
        record["call"] = call.id
        if again is not None:
            record["reused"] = again[0]
            self._calls.effects.settle(record, "done", again[1], None)
        elif not tool.read and self._journal.settings.effects == "dry":
            self._calls.effects.settle(record, "failed", None, "dry run: nothing is called")
        elif asks and self._journal.settings.effects != "live":
            said = f'was done on another branch already (effect {asks}): run with effects="live" to do it again'
            self._calls.effects.settle(record, "failed", None, said)
        elif asks or tool.needs_approval(bound):
            facts = (yield Invoke(tool.facts, (), bound)) if tool.facts is not None else None
            because = f"the same was done on another branch (effect {asks})" if asks else ""
            self._approvals.request(tool, bound, record, facts, because)
        elif tool.limit is None:
            record["status"] = "started"
            record["attempt"] = 1
        # One that must wait for a place is only planned: whoever dies before it has one has not started it.
        return record

    def _on_another_branch(self, digest: str) -> Flow[tuple[tuple[str, Any] | None, str]]:
        """The outcome to reuse, or the id of the same effect on another line."""
        others = yield from self._calls.other_branches()
        if self._journal.settings.effects == "live":
            return None, others.report(digest)
        reused = yield Do(others.reuse, (digest,))
        return reused, "" if reused is not None else others.report(digest)

    def carry_on(self, tool: Tool, record: TrackedDict, *, fresh: bool = False) -> Flow[str]:
        """Take a call as far as it goes now; answers where it stands. What it waits for is no error here."""
        try:
            yield from self._journal.resend()
            if not fresh and not tool.read and record["status"] in OPEN:
                yield from self._calls.reconsider(tool, record)
            yield from self._calls.go_on(tool, plain(record["args"]), record, fresh=fresh)
        except (EffectFailed, NotJson, InDoubt, ApprovalNeeded, ResultPending):
            pass
        return record["status"]
