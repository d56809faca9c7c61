"""The thread that writes for awaited handles goes on, whatever becomes of those who wait."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import perdure

if TYPE_CHECKING:
    import pytest


def test_a_loop_that_ended_before_its_answer_keeps_nobody_else_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def opened() -> perdure.AsyncDatabase:
        return perdure.open_async("memory://")

    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    db = first.run_until_complete(opened())
    append, begun, go_on = db.kernel.store.append, threading.Event(), threading.Event()

    def slow(items: Any) -> Any:
        begun.set()
        assert go_on.wait(30)
        return append(items)

    async def save(session: str) -> int:
        s = await db.session(session)
        s.vars["n"] = 1
        return (await s.commit()).step

    monkeypatch.setattr(db.kernel.store, "append", slow)
    task = first.create_task(save("s"))

    async def until_begun() -> None:
        await asyncio.to_thread(begun.wait, 30)

    first.run_until_complete(until_begun())
    task.cancel()
    first.run_until_complete(asyncio.gather(task, return_exceptions=True))
    first.close()
    go_on.set()
    assert second.run_until_complete(asyncio.wait_for(save("t"), 30)) == 1
    second.run_until_complete(db.close())
    second.close()
