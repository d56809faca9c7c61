"""Nobody pays for going on with a session that has ended: it is refused before a model or a tool is asked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, ScriptedModel, tool
from perdure.agent.branching_off import run_on
from perdure.fleet.board import submit
from perdure.fleet.worker import Settings, Worker
from perdure.model import MAIN
from perdure.protocols import NewWork
from tests.fleet.boarding import state_of, work_of
from tests.fleet.harness import LIMIT, board
from tests.server.asking import asking
from tests.store_urls import url_of

if TYPE_CHECKING:
    from pathlib import Path

asked: list[Any] = []


def said(request: Any) -> str:
    """Answers anything, and remembers that it was asked."""
    asked.append(request)
    return "an answer"


desk = Agent("desk", model=ScriptedModel(said))


@pytest.fixture(autouse=True)
def nothing_asked() -> None:
    asked.clear()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_of("sqlite", tmp_path)


@pytest.fixture
def closed(url: str) -> str:
    """A session that was closed with a question which nobody has answered, and another one in its inbox."""
    with perdure.open(url) as db:
        db.create("s", agent="desk")
        with db.session("s") as s:
            s.messages.append({"role": "user", "content": "hello?"})
            s.close()
        db.post("s", "are you there?")
    return "s"


@pytest.mark.parametrize("message", [None, "more"])
def test_an_agent_does_not_run(url: str, closed: str, message: str | None):
    with pytest.raises(perdure.SessionClosed, match="reopen=True"):
        desk.run_sync(url, session=closed, message=message)
    assert asked == []


def test_a_branch_that_was_closed_is_not_run_on(url: str, closed: str):
    async def main() -> None:
        async with perdure.open_async(url) as db:
            with pytest.raises(perdure.SessionClosed):
                await run_on(db, desk, closed, MAIN, effects="reuse")

    asyncio.run(main())
    assert asked == []


@pytest.mark.parametrize("declared", [{"read": True}, {"read": True, "cache": "7d"}, {}], ids=str)
def test_no_tool_is_called(url: str, closed: str, declared: dict[str, Any]):
    @tool(**declared)
    def pay() -> None:
        asked.append("paid")

    with perdure.open(url) as db, db.session(closed) as s:
        for _ in range(2):
            with pytest.raises(perdure.SessionClosed):
                s.call(pay)
        with pytest.raises(perdure.SessionClosed):
            s.run("r", lambda r: r.call(pay))
    assert asked == []


def test_what_was_recorded_before_is_still_returned(url: str):
    @tool
    def pay() -> str:
        asked.append("paid")
        return "a ticket"

    with perdure.open(url) as db:
        for _ in range(2):
            with db.session("t") as s:
                assert s.call(pay) == "a ticket"
                s.close()
    assert asked == ["paid"]


def test_no_work_is_submitted_for_it(url: str, closed: str):
    with perdure.open(url) as db:
        with pytest.raises(perdure.SessionClosed):
            submit(db, closed, "more", agent="desk")
        assert db.look(closed).pending == 1


def test_a_worker_puts_it_down_and_tries_it_no_more(url: str, closed: str):
    with perdure.open(url) as db:
        there = board(db)
        there.put([NewWork(closed, "desk", "", 0)])

        async def main() -> None:
            async with perdure.open_async(url) as served:
                worker = Worker(served, [desk], Settings(concurrency=1))
                running = asyncio.create_task(worker.run())
                try:
                    async with asyncio.timeout(LIMIT):
                        while not worker.done:
                            assert not running.done()
                            await asyncio.sleep(0.02)
                finally:
                    worker.stop()
                    await running

        asyncio.run(main())
        assert (state_of(there, closed), work_of(there, closed).due) == ("waiting", None)
        assert db.look(closed).status == "closed"
    assert asked == []


def test_the_server_starts_no_run(tmp_path: Path, closed: str):
    with asking(tmp_path, agents=[desk]) as api:
        for body in ({}, {"message": "more"}):
            problem = api.post(f"/sessions/{closed}/runs", body, 409)
            assert problem["type"] == "urn:perdure:error:session-closed"
        assert api.post("/sessions", {"id": closed, "agent": "desk", "message": "more"}, 409)
    assert asked == []
