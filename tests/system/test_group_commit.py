"""The thread that writes for awaited handles goes on, whatever becomes of those who wait."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure.system import flow_async

if TYPE_CHECKING:
    from collections.abc import Coroutine


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


def test_what_waits_to_be_written_is_bounded_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_async, "MAX_WAITING_BYTES", 3000)

    async def work() -> None:
        async with perdure.open_async("memory://") as db:
            append, go_on = db.kernel.store.append, threading.Event()

            def slow(items: Any) -> Any:
                assert go_on.wait(30)
                return append(items)

            async def save(number: int) -> int:
                async with db.session(f"s{number}") as s:
                    s.vars["text"] = os.urandom(1000).hex()
                    while True:
                        try:
                            return (await s.commit()).step
                        except perdure.Unavailable as refusal:
                            refused.append(str(refusal))
                            go_on.set()
                            await asyncio.sleep(0.01)

            refused: list[str] = []
            monkeypatch.setattr(db.kernel.store, "append", slow)
            saving: list[Coroutine[Any, Any, int]] = [save(n) for n in range(8)]
            assert await asyncio.gather(*saving) == [1] * 8
            assert refused
            assert all("waiting already: the store cannot keep up, slow down" in words for words in refused)

    asyncio.run(work())
