"""Nobody pays for going on with a session that has ended: it is refused before a model or a tool is asked."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, FunctionModel, ScriptedModel, calls, tool
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
        with pytest.raises(perdure.SessionClosed) as refused:
            submit(db, closed, "more", agent="desk")
        assert db.look(closed).pending == 1
        # What it says is what helps a fleet: a run would answer it here.
        assert str(refused.value).endswith(f"db.session({closed!r}, reopen=True) opens it again; then submit it again")
        db.session(closed, reopen=True).release()
        assert submit(db, closed, "more", agent="desk")


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


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize(("by", "note"), [("", "reopened by agent desk"), ("ana", "reopened by ana")])
def test_a_run_that_says_so_opens_it_again_and_its_history_says_who(
    url: str, closed: str, key: str | None, by: str, note: str
):
    result = desk.run_sync(url, session=closed, message="more", key=key, reopen=True, by=by)
    assert (result.status, result.text) == ("done", "an answer")
    with perdure.open(url) as db:
        history = list(reversed(db.history(closed)))
        assert [(c.kind, c.status, c.more.get("note", "")) for c in history][-2:-1] == [("reopened", "idle", note)]
        said = [m["content"] for m in db.read(closed).plain()["messages"] if m["role"] == "user"]
        assert said == ["hello?", "are you there?", "more"]
    # Open is open: nobody needs to say it twice, and saying it changes nothing.
    assert desk.run_sync(url, session=closed, message="again").ok
    assert desk.run_sync(url, session=closed, message="again", reopen=True).ok
    with perdure.open(url) as db:
        assert sum(c.kind == "reopened" for c in db.history(closed)) == 1


def test_an_answer_from_before_is_given_again_and_opens_nothing(url: str):
    assert desk.run_sync(url, session="s", message="go", key="k").ok
    with perdure.open(url) as db, db.session("s") as s:
        s.close()
    assert desk.run_sync(url, session="s", message="go", key="k", reopen=True).repeated
    with perdure.open(url) as db:
        assert db.look("s").status == "closed"


def test_the_server_opens_it_again_when_it_is_told_to(tmp_path: Path, closed: str):
    with asking(tmp_path, agents=[desk]) as api:
        problem = api.post(f"/sessions/{closed}/runs", {"message": "more"}, 409)
        assert f'POST /api/v1/sessions/{closed}/runs with "reopen": true opens it again' in problem["detail"]
        assert api.post(f"/sessions/{closed}/runs", {"reopen": True, "branch": "b"}, 422)
        started = api.post(
            f"/sessions/{closed}/runs", {"message": "more", "reopen": True, "by": "ana", "objective": "Rest"}, 202
        )
        assert (started["started"], started["kept"]) == (True, True)
        until = time.monotonic() + LIMIT
        while len(asked) < 1 and time.monotonic() < until:
            time.sleep(0.01)
        notes = [c["details"].get("note") for c in api.get(f"/sessions/{closed}/history")["items"]]
        assert "reopened by ana" in notes
        assert api.get(f"/sessions/{closed}/why")["objective"]["text"] == "Rest"


@pytest.mark.parametrize("way", ["reopened", "reported"])
def test_an_agent_that_waits_for_a_closed_session_is_told_what_makes_it_go_on(url: str, way: str) -> None:
    @tool(approve=True)
    def pay(order: str) -> str:
        return "paid"

    def answers(name: str, args: dict[str, Any]) -> Any:
        return lambda request: (
            request.messages[-1]["content"] if request.messages[-1]["role"] == "tool" else calls((name, args))
        )

    child = Agent("child", model=FunctionModel(answers("pay", {"order": "o1"})), tools=[pay])
    boss = Agent("boss", model=FunctionModel(answers("sub", {"task": "t"})), tools=[child.as_tool(name="sub")])

    async def work() -> None:
        async with perdure.open_async(url) as db:
            await boss.run(db, session="p", message="go")
            async with db.session("p") as s:
                effect = s.effects()[0]["id"]
            kid = f"p/{effect}"
            async with db.session(kid) as s:
                (approval,) = s.approvals()
                await s.close()
            told = await perdure.why_async(db, "p")
            assert (told.severity, [action.name for action in told.actions]) == ("act", ["reopen", "outcome"])
            assert "It was closed." in told.line
            assert told.actions[0].session == kid
            with pytest.raises(perdure.SessionClosed, match=kid):
                await boss.run(db, session="p")
            if way == "reopened":
                async with db.session(kid, reopen=True) as s:
                    await s.commit()
                await db.approve(kid, approval.id, by="ana")
            else:
                await db.post_outcome("p", effect, "paid by hand")
            end = await boss.run(db, session="p")
            assert (end.status, end.text) == ("done", "paid" if way == "reopened" else "paid by hand")

    asyncio.run(work())
