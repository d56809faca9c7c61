"""What ends a run from outside: a cancellation, and its deadline; whatever it waits for at that moment."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Messages are any JSON: their types are looked at, not declared.

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from perdure.agent import run_result as ended
from perdure.agent.children import HERE, cancel_children
from perdure.agent.limits import Over
from perdure.model import Kind, Status
from perdure.session.inbox import open_edited, open_entry
from perdure.state.document import plain

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from perdure.agent.loop import Loop
    from perdure.agent.run_result import RunResult

MOMENT = 0.05
"""Seconds between looks at whether what is held must be written, at least."""
POLL = 1.0
"""Seconds between looks into the inbox while a model or a tool is being waited for."""


LEAVING = 2.0
"""Seconds that dependencies have to be closed in once the run is cancelled or its deadline has passed."""


async def watched(loop: Loop) -> RunResult:
    """Go round until the loop ends by itself, is cancelled, or reaches its deadline."""
    if (early := await _stopped_before(loop)) is not None:
        return early
    work = asyncio.ensure_future(_rounds(loop))
    try:
        over: tuple[str, str] | None = None
        while not work.done() and over is None:
            await asyncio.wait({work}, timeout=loop.limits.wait_at_most(min(POLL, max(MOMENT, loop.may_hold_for()))))
            if not work.done() and loop.may_hold_for() <= 0:
                await loop.write_held()
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


@asynccontextmanager
async def bounded(loop: Loop, grace: float = 0.0) -> AsyncGenerator[None]:
    """What is waited for in here is given up, so many seconds later, once the run is cancelled or reaches its deadline.

    It is waited for in the task of whoever asks: what was opened in one task can often be left in that one alone.
    """
    task = asyncio.current_task()
    assert task is not None
    found: list[tuple[str, str] | BaseException] = []

    async def watch() -> None:
        over: tuple[str, str] | None = (ended.DONE, "") if loop.was_stopped else None
        try:
            while over is None:
                over = await _noticed(loop)
                await asyncio.sleep(0 if over is not None else loop.limits.wait_at_most(POLL))
            await asyncio.sleep(grace)
            found.append(over)
        except Exception as e:
            found.append(e)
        task.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not found or task.uncancel() > 0:
            raise
        if isinstance(found[0], BaseException):
            raise found[0] from None
        raise Over(*found[0]) from None
    finally:
        watching.cancel()
        await asyncio.wait({watching})


async def put_down(loop: Loop, over: Over) -> RunResult:
    """End a run that must end before it has gone round."""
    return await (cancelled(loop) if over.status == ended.CANCELLED else loop.stop(over.status, over.reason))


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
    loop.was_stopped = True
    await loop.afresh()
    waiting = await s.driver.drive(s.inbox.look(1_000_000))
    s.inbox.cancellation = None
    body: dict[str, Any] = {}
    for entry in waiting.cancels:
        message = open_entry(s.kernel, entry)
        body = body or message.body
        s.journal.takes.append(message)
    last = max((e.seq for e in waiting.cancels), default=0)
    said = [open_edited(s.kernel, e, waiting) for e in waiting.ready if e.kind == "message" and e.seq < last]
    if said:
        # What it was asked before stays known, and is not answered by itself.
        s.inbox.give_out(said, waiting)
        loop.book["unanswered"] = [*plain(loop.book.get("unanswered", [])), *(m.body for m in said)]
    reason = f"cancelled{' by ' + body['by'] if body.get('by') else ''}{': ' * bool(body.get('reason'))}"
    reason += body.get("reason", "")
    given_up = [plain(record) for record in loop.calls.open_records() if record["status"] == "planned"]
    open_children = await loop.calls.abandon(reason)
    loop.book["run"] = None
    await s.driver.drive(s.journal.write(Kind.COMMIT, x={"note": reason[:500]}, status=Status.CANCELLED))
    for record in given_up:
        await s.driver.drive(s.effect_records.unclaim(record))
    await cancel_children(loop, open_children, body)
    loop.tell("ended", status=ended.CANCELLED, reason=reason)
    return loop.result(ended.CANCELLED, reason)
