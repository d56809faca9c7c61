"""The calls of a handle: which recorded call one is, and that the same one is not made twice at a time.

Identity of a call: with ``options(key=...)`` that key; inside a run its place in the run; otherwise tool, version and
arguments (``identity`` tells which are equal). A recorded outcome is returned, never made again.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from perdure import telemetry
from perdure.errors import Diverged, EffectFailed, EffectRaised, Misuse
from perdure.session.calls.attempts import Attempts
from perdure.session.calls.calls_of_answer import CallsOfAnswer
from perdure.session.calls.calls_of_run import CallsOfRun
from perdure.session.calls.identity import Asked, digest_of
from perdure.session.calls.lookups import Lookups
from perdure.session.calls.reads import Reads
from perdure.session.calls.records import OPEN, if_repeated, is_asked_again
from perdure.session.calls.same_calls import SameCalls
from perdure.session.strands import Got, under_way
from perdure.session.tools.declaration import Tool, as_tool
from perdure.session.tools.running import check_depth
from perdure.system.flow import Flow, entered

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.session.calls.approvals import Approvals
    from perdure.session.calls.effects import Effects
    from perdure.session.calls.read_cache import ReadCache
    from perdure.session.inbox import Inbox
    from perdure.session.journal import Journal
    from perdure.session.tools.context import Contexts
    from perdure.state.document import TrackedDict

    Carrier = Callable[[], Callable[[Flow[Any]], Any]]


class Calls:
    """The calls of a handle: one at a time, or those of a model's answer side by side."""

    def __init__(
        self, journal: Journal, inbox: Inbox, effects: Effects, approvals: Approvals, cache: ReadCache,
        contexts: Contexts, carrier: Carrier,
    ) -> None:  # fmt: skip
        self._journal = journal
        self._contexts = contexts
        self.effects = effects
        self.of_run = CallsOfRun(journal)
        self._same = SameCalls(journal, inbox, effects, approvals, cache)
        self._reads = Reads(journal, cache, contexts, self._same)
        lookups = Lookups(journal, effects, approvals, cache, contexts)
        self._attempts = Attempts(journal, inbox, effects, approvals, cache, contexts, carrier, self._same, lookups)
        self.of_answer = CallsOfAnswer(journal, effects, approvals, self._same, lookups, self._attempts)
        self._gates: dict[str, list[Any]] = {}
        """Of the calls under way, by their places: the gate, and how many are in it or wait."""
        self._gates_lock = threading.Lock()

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
        digest = digest_of(tool, bound)
        if not tool.read or tool.cache is not None:
            self._journal.strands.go_on()
        # Its number first: whoever waits here must not be overtaken by a call that was asked for later.
        slot = "" if tool.read else self._slot(tool, digest)
        # What is known here may not be durable yet: the answer to its commit was lost.
        yield from self._journal.resend()
        if tool.read:
            return (yield from self._reads.read(tool, bound, digest))
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
        replayed, asked = False, Asked(tool, bound, digest)
        if self._journal.catching_up is not None:
            replayed = yield from self._journal.catching_up.call(slot, asked)
        slot = self.effects.place_of(asked, slot)
        record: TrackedDict | None = self._journal.book.get("effects", {}).get(slot)
        if record is not None and not asked.is_of(record):
            msg = f"{slot}: recorded as a call of {record['tool']} with other arguments than this call of {tool.name}"
            raise Diverged(msg)
        if record is not None and is_asked_again(record, tool):
            record = yield from self._same.begin_again(tool, bound, record, digest, slot)
        elif record is not None and (self._same.is_over(slot, record) or (not replayed and _is_repeated(slot, record))):
            self.effects.retire(slot.__eq__)
            record = None
        if record is None:
            record = yield from self._same.begin(tool, bound, digest, slot)
        elif record["status"] in OPEN:
            yield from self._same.reconsider(tool, record)
        else:
            telemetry.replayed(tool.name, "journal")
        try:
            return (yield from self._attempts.go_on(tool, bound, record))
        except (EffectFailed, EffectRaised):
            if self._journal.run is not None:
                again = if_repeated(tool, record, self._journal.book.get("approvals", {}))
                self._journal.strands.get(Got(slot, record["id"], again))
            raise

    def _slot(self, tool: Tool, digest: str) -> str:
        if tool.key is not None:
            return f"k:{tool.name}:{tool.key}"
        if self._journal.run is not None:
            return f"r:{self._journal.run}:{self.of_run.number(digest)}"
        return f"c:{digest}"

    @property
    def is_dry(self) -> bool:
        """Whether nothing outside may be touched: no call but a read is made, polled or looked up."""
        return self._journal.settings.effects == "dry"


def _is_repeated(slot: str, record: TrackedDict) -> bool:
    """Whether a call that raised is asked for again, if it is not merely caught up with."""
    return not slot.startswith("r:") and record["status"] == "raised"
