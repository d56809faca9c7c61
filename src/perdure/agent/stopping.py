"""What stops a run: its limits (turns, tokens, money, time, over all attempts), its deadline, and a cancellation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from perdure.agent import run_result as ended
from perdure.agent.children import HERE, cancel_children
from perdure.agent.run_result import Spent
from perdure.model import Kind, Status
from perdure.session.inbox import open_entry
from perdure.state.document import plain

if TYPE_CHECKING:
    from perdure.agent.loop import Loop
    from perdure.agent.run_result import RunResult
    from perdure.protocols import Clock


class Limits:
    """What one run may use."""

    def __init__(
        self,
        clock: Clock,
        *,
        max_turns: int = 50,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        deadline: float | None = None,
    ) -> None:
        self._clock = clock
        self.max_turns = max_turns
        self.max_tokens = max_tokens
        self.max_cost = max_cost
        self._until = None if deadline is None else clock.monotonic() + int(deadline * 1000)
        self.turns = 0
        self.spent = Spent()
        """What the run had used when it was last looked at: a run that has ended keeps no books."""

    def reached(self, run: Any) -> tuple[str, str] | None:
        """Which limit the run has reached, and what to do; None while it may go on."""
        self.note(run)
        spent = self.spent
        if self.turns >= self.max_turns:
            return ended.MAX_TURNS, f"{self.turns} turns were taken: raise max_turns, or give a new message"
        if self.max_tokens is not None and spent.input + spent.output >= self.max_tokens:
            return ended.BUDGET, f"{spent.input + spent.output} tokens were used, {self.max_tokens} are allowed"
        if self.max_cost is not None and spent.cost >= self.max_cost:
            return ended.BUDGET, f"{spent.cost:.4f} was spent, {self.max_cost} is allowed"
        if self.late():
            return ended.DEADLINE, "the deadline has passed: run again to go on"
        return None

    def late(self) -> bool:
        """Whether the deadline has passed."""
        return self._until is not None and self._clock.monotonic() >= self._until

    def wait_at_most(self, seconds: float) -> float:
        """So many seconds, or fewer when the deadline comes first."""
        if self._until is None:
            return seconds
        return max(0.0, min(seconds, (self._until - self._clock.monotonic()) / 1000))

    def note(self, run: Any) -> None:
        """Remember what a run has used."""
        if run is not None:
            self.turns, self.spent = run["turns"], Spent(*run["spent"])


POLL = 1.0
"""Seconds between looks into the inbox while a model or a tool is being waited for."""


async def watched(loop: Loop) -> RunResult:
    """Go round until the loop ends by itself, is cancelled, or reaches its deadline."""
    if (early := await _stopped_before(loop)) is not None:
        return early
    work = asyncio.ensure_future(_rounds(loop))
    try:
        over: tuple[str, str] | None = None
        while not work.done() and over is None:
            await asyncio.wait({work}, timeout=loop.limits.wait_at_most(POLL))
            over = None if work.done() else await _noticed(loop)
    finally:
        if not work.done():
            work.cancel()
            await asyncio.wait({work})
    if not work.cancelled():
        return work.result()
    if over is None:
        raise asyncio.CancelledError
    return await (cancelled(loop) if over[0] == ended.CANCELLED else loop.stop(*over))


async def _rounds(loop: Loop) -> RunResult:
    HERE.set(loop)
    while (result := await loop.round()) is None:
        pass
    return result


async def _stopped_before(loop: Loop) -> RunResult | None:
    """A cancelled session stays so until there is something new to answer."""
    if loop.ignores_inbox:
        return None
    s = loop.s
    waiting = await s.driver.drive(s.inbox.look())
    if s.inbox.cancellation is not None:
        stopped = await cancelled(loop)
        # What was said after that is answered.
        return None if (await s.driver.drive(s.inbox.look())).ready else stopped
    if s.status == Status.CANCELLED and not waiting.ready:
        return loop.result(ended.CANCELLED, "it was cancelled: give it a new message to go on")
    return None


async def _noticed(loop: Loop) -> tuple[str, str] | None:
    """Why what is under way must stop, if it must."""
    if loop.limits.late():
        return ended.DEADLINE, "the deadline has passed: run again to go on"
    if not loop.ignores_inbox:
        await loop.s.driver.drive(loop.s.inbox.look())
    return (ended.CANCELLED, "") if loop.s.inbox.cancellation is not None else None


async def cancelled(loop: Loop) -> RunResult:
    """Write down that the run was stopped; what waited for a person is withdrawn, what was started stays open."""
    s = loop.s
    await loop.afresh()
    waiting = await s.driver.drive(s.inbox.look(1_000_000))
    s.inbox.cancellation = None
    body: dict[str, Any] = {}
    for entry in waiting.cancels:
        message = open_entry(s.kernel, entry)
        body = body or message.body
        s.journal.takes.append(message)
    last = max((e.seq for e in waiting.cancels), default=0)
    said = [open_entry(s.kernel, e) for e in waiting.ready if e.kind == "message" and e.seq < last]
    if said:
        # What it was asked before stays known, and is not answered by itself.
        s.journal.takes.extend(said)
        loop.book["unanswered"] = [*plain(loop.book.get("unanswered", [])), *(m.body for m in said)]
    reason = f"cancelled{' by ' + body['by'] if body.get('by') else ''}{': ' * bool(body.get('reason'))}"
    reason += body.get("reason", "")
    open_children = loop.calls.abandon(reason)
    loop.book["run"] = None
    await s.driver.drive(s.journal.write(Kind.COMMIT, x={"note": reason[:500]}, status=Status.CANCELLED))
    await cancel_children(loop, open_children, body)
    loop.tell("ended", status=ended.CANCELLED, reason=reason)
    return loop.result(ended.CANCELLED, reason)
