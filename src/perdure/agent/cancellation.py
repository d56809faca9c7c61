"""Watching a run from beside: it is stopped when somebody cancels it, or when its time is over, whatever it is at."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from perdure.agent import run_result as ended
from perdure.agent.children import HERE, cancel_children
from perdure.model import Kind, Status
from perdure.session.inbox import open_entry
from perdure.state.document import plain

if TYPE_CHECKING:
    from perdure.agent.loop import Loop
    from perdure.agent.run_result import RunResult

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
