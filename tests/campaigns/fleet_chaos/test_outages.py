"""A worker outlives its store: while that cannot be reached, or is full, it waits; nothing counts against sessions."""

# pyright: reportPrivateUsage=false
# How slow a worker is itself cannot be brought about from outside without waiting.
from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

import perdure
from perdure import Agent, tool
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.errors import EffectFailed, OutcomeUnknown, Poisoned, StoreError, StoreFull, Unavailable
from perdure.fleet.board import board_of, submit_async
from perdure.fleet.keeper import Keeper
from perdure.fleet.supervisor import Supervisor
from perdure.fleet.worker import Worker, after_error
from perdure.protocols import Boarded, Work
from perdure.stores import open_store
from perdure.testing.clock import FakeClock
from tests.campaigns.fleet_chaos.stage import wait_gone
from tests.fleet.boarding import worker
from tests.servers import process
from tests.servers.postgres import postgres_url, start_postgres
from tests.stores.sqlite.test_failing import FailingFile, failing_disk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from perdure.agent.models import Request


def test_what_the_store_did_does_not_count_against_a_session():
    work = Work("s", "desk", tries=9)
    for error in (Unavailable("down"), StoreFull("full"), OutcomeUnknown("lost")):
        rest = after_error(work, error, 1000, most=5, span=1000, version="v")
        assert rest is not None
        assert (rest.uncounted, rest.failed, rest.park) == (True, False, "")
        assert rest.due is not None
        assert 1000 < rest.due <= 1000 + 2000
    parked = after_error(work, EffectFailed("no", "e"), 1000, most=5, span=1000, version="v")
    assert parked is not None
    assert parked.park


def test_a_worker_waits_for_a_server_that_is_away_for_longer_than_its_patience(caplog: pytest.LogCaptureFixture):
    server = start_postgres()
    try:
        asyncio.run(_outage(server, caplog))
    finally:
        process.stop(server)


async def _outage(server: process.Running, caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent("desk", model=ScriptedModel(lambda request: f"answer {len(request.messages)}"))
    url = postgres_url(server)
    async with perdure.open_async(url, lease_ttl=1.0, patience=0.3) as db:
        one = Worker(db, [agent])
        running = asyncio.create_task(one.run())
        await submit_async(db, "s", "one", agent="desk", key="1")
        await _answered(db, 1)
        begun, go_on = asyncio.Semaphore(0), asyncio.Event()
        calling = asyncio.create_task(_two_calls(begun, go_on).run(db, session="p", message="go"))
        async with asyncio.timeout(60):
            await begun.acquire()
            await begun.acquire()
        os.kill(server.server, signal.SIGINT)
        wait_gone(server)
        go_on.set()
        # The error itself, although calls that are made side by side fail side by side.
        with pytest.raises(StoreError):
            await asyncio.wait_for(calling, 60)
        # Idle as it is, it looks at the board all the time.
        async with asyncio.timeout(60):
            while "the board cannot be reached, trying again" not in caplog.text:
                await asyncio.sleep(0.05)
                assert not running.done()
        again = await asyncio.to_thread(start_postgres, folder=server.folder, port=server.port)
        try:
            await submit_async(db, "s", "two", agent="desk", key="2")
            await _answered(db, 2)
            assert not running.done()
            one.stop()
            await asyncio.wait_for(running, 60)
        finally:
            process.stop(again, keep=True)


def test_a_worker_that_was_thought_dead_and_gets_its_session_back_does_not_begin_it_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    asyncio.run(_thought_dead(f"sqlite:///{tmp_path}/fleet.db"))
    assert "was put down" not in caplog.text


@pytest.mark.parametrize(("slow", "dead"), [(0.0, True), (0.5, False)])
def test_who_hardly_gets_to_speak_does_not_call_others_dead_for_their_silence(slow: float, dead: bool, tmp_path: Path):
    clock = FakeClock()
    store = open_store(f"sqlite:///{tmp_path}/fleet.db", clock=clock)
    try:
        assert isinstance(store, Boarded)
        board = store.board()
        board.beat(worker("other"))
        clock.advance(1200)
        supervisor = Supervisor(
            Keeper(cast("Any", None), 1000, None), board, lambda: worker("us"), lambda _: None, 1000
        )
        supervisor._beaten = time.monotonic() - slow
        supervisor._round()
        assert {w.id for w in board.workers()} == ({"us"} if dead else {"us", "other"})
    finally:
        store.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_worker_whose_disk_cannot_sync_ends_so_that_another_one_is_started(tmp_path: Path):
    async def main() -> None:
        async with perdure.open_async(f"sqlite:///{tmp_path}/fleet.db", lease_ttl=1.0) as db:
            one = Worker(db, [Agent("desk", model=ScriptedModel(["answer"]))])
            running = asyncio.create_task(one.run())
            await submit_async(db, "s", "hello", agent="desk", key="1")
            await _answered(db, 1)
            FailingFile.failing = "sync"
            with pytest.raises(Poisoned):
                await db.post("s", "more")
            FailingFile.failing = ""
            with pytest.raises(Poisoned):
                await asyncio.wait_for(running, 60)

    with failing_disk():
        asyncio.run(main())


def _two_calls(begun: asyncio.Semaphore, go_on: asyncio.Event) -> Agent:
    @tool(if_unsure="retry")
    async def wait(name: str) -> str:
        begun.release()
        await go_on.wait()
        return name

    return Agent(
        "pair", model=ScriptedModel([calls(("wait", {"name": "a"}), ("wait", {"name": "b"})), "done"]), tools=[wait]
    )


async def _thought_dead(url: str) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def script(request: Request) -> str:
        asked.set()
        await go_on.wait()
        return f"answer to {request.messages[-1]['content']}"

    async with perdure.open_async(url, lease_ttl=30.0) as db:
        one = Worker(db, [Agent("desk", model=ScriptedModel(script))])
        running = asyncio.create_task(one.run())
        await submit_async(db, "s", "one", agent="desk", key="1")
        await asyncio.wait_for(asked.wait(), 60)
        board = await asyncio.to_thread(board_of, db)

        def tries() -> int:
            return next((w.tries for w in board.works() if w.worker), 0)

        assert tries() == 1
        await asyncio.to_thread(board.leave, one.id)
        await _until(lambda: tries() == 2)
        go_on.set()
        await _answered(db, 1)
        # It looks once more: nobody knows what it was queued for.
        await _until(lambda: one.done >= 2 and not any(w.worker or w.queued for w in board.works()))
        assert one.done == 2
        one.stop()
        await asyncio.wait_for(running, 60)


async def _until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while True:
            if what():
                return
            await asyncio.sleep(0.01)


async def _answered(db: perdure.AsyncDatabase, number: int) -> None:
    async with asyncio.timeout(60):
        while True:
            messages = (await db.read("s")).plain()["messages"]
            if sum(m["role"] == "assistant" for m in messages) == number:
                return
            await asyncio.sleep(0.05)
