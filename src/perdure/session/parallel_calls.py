"""Several calls at once, as an agent's answer makes them: put into the journal together, taken on side by side.

What is put down here is written by the commit of the answer itself, so a call that starts at once costs no extra write.
"""

# pyright: reportPrivateUsage=false
# The handle is one thing in several rooms: they share its inner parts.
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import ApprovalNeeded, EffectFailed, InDoubt, NotJson, ResultPending
from perdure.session.approvals import Approvals
from perdure.session.tools import Tool, call_digest
from perdure.state.document import plain
from perdure.system.flow import Do, Flow, Invoke

if TYPE_CHECKING:
    from perdure.state.document import TrackedDict


class Call(NamedTuple):
    """One call of an answer: its tool and arguments, its place in the journal, and how the model names it."""

    tool: Tool
    args: dict[str, Any]
    slot: str
    id: str = ""


OPEN = ("planned", "started", "in_doubt", "waiting")
"""Where a call without an outcome may stand."""


class Batches(Approvals):
    """The flows of a handle that make several calls."""

    def _begin_calls(self, calls: list[Call]) -> Flow[list[TrackedDict]]:
        """Put calls into the journal, unwritten: started, planned when somebody must agree, done when known already."""
        records: list[TrackedDict] = []
        for call in calls:
            record = yield from self._begin_call(call)
            records.append(record)
        return records

    def _begin_call(self, call: Call) -> Flow[TrackedDict]:
        tool, bound = call.tool, call.args
        digest = call_digest(tool.name, tool.version, bound)
        again, asks = None, ""
        if tool.read:
            again = yield from self._cached(tool, digest)
        else:
            again, asks = yield from self._elsewhere_again(digest)
        record = self._new_record(tool, bound, digest, call.slot)
        record["call"] = call.id
        if again is not None:
            record["reused"] = again[0]
            self._settle_record(record, "done", again[1], None)
        elif not tool.read and self._settings.effects == "dry":
            self._settle_record(record, "failed", None, "dry run: nothing is called")
        elif asks and self._settings.effects != "live":
            said = f'was done on another branch already (effect {asks}): run with effects="live" to do it again'
            self._settle_record(record, "failed", None, said)
        elif asks or tool.needs_approval(bound):
            facts = (yield Invoke(tool.facts, (), bound)) if tool.facts is not None else None
            because = f"the same was done on another branch (effect {asks})" if asks else ""
            self._request(tool, bound, record, facts, because)
        elif tool.limit is None:
            record["status"] = "started"
            record["attempt"] = 1
        # One that must wait for a place is only planned: whoever dies before it has one has not started it.
        return record

    def _elsewhere_again(self, digest: str) -> Flow[tuple[tuple[str, Any] | None, str]]:
        """The outcome to reuse, or the id of the same effect on another line."""
        elsewhere = yield from self._lines_apart()
        if self._settings.effects == "live":
            return None, elsewhere.report(digest)
        reused = yield Do(elsewhere.reuse, (digest,))
        return reused, "" if reused is not None else elsewhere.report(digest)

    def _carry_on(self, tool: Tool, record: TrackedDict, *, fresh: bool = False) -> Flow[str]:
        """Take a call as far as it goes now; answers where it stands. What it waits for is no error here."""
        try:
            yield from self._resend()
            if not fresh and not tool.read and record["status"] in OPEN:
                yield from self._reconsider(tool, record)
            yield from self._go_on(tool, plain(record["args"]), record, fresh=fresh)
        except (EffectFailed, NotJson, InDoubt, ApprovalNeeded, ResultPending):
            pass
        return record["status"]

    def _retire(self, prefix: str) -> None:
        """Forget settled calls but for their digests: nobody will ask for them by their place again."""
        effects = self._book.get("effects", {})
        done = self._book.setdefault("done", {})
        for slot in [s for s in effects if s.startswith(prefix)]:
            record = effects[slot]
            if record["status"] in OPEN:
                continue
            if "reused" in record:
                if record["reused"] != "cache":
                    self._book.setdefault("reused", []).append(record["reused"])
            elif record["status"] == "done":
                # Without a place of its own the outcome came with a sibling's commit: it is at the head, in any case.
                where = record.get("where", [self._line, self.step])
                done.setdefault(record["digest"], []).append([record["id"], *where])
            elif record["status"] == "unknown":
                # Another line that would do it must be told, and there is no outcome to give it.
                done.setdefault(record["digest"], []).append([record["id"], self._line, 0])
            del effects[slot]
