"""What waits on main is found while branches are run on, and what waits on a branch can be found, too."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, ScriptedModel, tool
from perdure.agent.branching_off import branch_off, run_on
from perdure.agent.models import Request, text_of
from perdure.agent.models.scripted import calls
from perdure.fleet.why.reading import why
from tests.server.asking import Asking, asking
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from perdure import AsyncDatabase

paid: list[int] = []


@tool(approve=True)
def refund(amount: int) -> int:
    """Give money back."""
    paid.append(amount)
    return amount


@tool
def wire(amount: int) -> None:
    """Nobody knows what becomes of it."""
    raise TimeoutError


def said(request: Request) -> Any:
    last = request.messages[-1]
    if last["role"] == "tool":
        return f"done: {text_of(last)}"
    what, _, amount = text_of(last).partition(" ")
    return calls((what, {"amount": int(amount)})) if amount else f"you said {what}"


clerk = Agent("clerk", model=ScriptedModel(said), tools=[refund, wire])
trainee = Agent("trainee", model=ScriptedModel(said), tools=[refund, wire])


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    paid.clear()


def play(folder: Path, kind: str, work: Callable[[AsyncDatabase], Awaitable[Any]]) -> Any:
    """Do something as a program that has the agents does."""

    async def go() -> Any:
        async with perdure.open_async(url_of(kind, folder)) as db:
            return await work(db)

    return asyncio.run(go())


async def try_out(db: AsyncDatabase, name: str, message: str, agent: Agent = clerk, **options: Any) -> Any:
    """Run the session on a branch on which the user has said something else at first."""
    await branch_off(db, "s", name, at=1, before=True, said=message)
    return await run_on(db, agent, "s", name, **options)


def waiting(ask: Asking, **params: Any) -> list[tuple[str, str, str]]:
    """Session, branch and tool of all that waits for agreement, page by page."""
    found, after = list[tuple[str, str, str]](), None
    while True:
        page = ask.get("/approvals", **params, **({"after": after} if after else {}))
        found += [(i["metadata"]["session"], i["metadata"]["branch"], i["metadata"]["tool"]) for i in page["items"]]
        if (after := page["next"]) is None:
            return found


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_an_approval_on_main_is_found_and_used_while_a_branch_is_newer(kind: str, tmp_path: Path):
    waits = play(tmp_path, kind, lambda db: clerk.run(db, session="s", owner="ana", message="refund 5"))
    assert waits.status == "waiting_approval"
    other = play(tmp_path, kind, lambda db: try_out(db, "b", "hello", trainee))
    assert (other.status, other.text) == ("done", "you said hello")

    with asking(tmp_path, kind) as ask:
        row = ask.db.look("s")
        assert [h.step for h in row.heads if h.branch == "b"] == [other.step]
        assert (row.status, row.agent) == ("waiting_approval", "clerk")
        assert [s["id"] for s in ask.get("/sessions", status="waiting_approval")["items"]] == ["s"]
        assert ask.get("/sessions", status="idle")["items"] == []
        assert waiting(ask) == [("s", "main", "refund")]
        (request,) = ask.get("/approvals")["items"]
        yes = {"status": "resolved", "payload": {"approved": True}, "by": "eve"}
        ask.post(f"/sessions/s/approvals/{request['id']}", yes)
        assert waiting(ask) == []

    done = play(tmp_path, kind, lambda db: clerk.run(db, session="s"))
    assert (done.status, done.text, paid) == ("done", "done: 5", [5])
    with perdure.open(url_of(kind, tmp_path)) as db:
        assert (db.look("s").status, db.read("s", branch="b").messages[-1]["content"]) == ("idle", "you said hello")
        assert db.verify().ok


def test_a_doubt_and_a_failure_on_main_stay_in_sight(tmp_path: Path):
    async def work(db: AsyncDatabase) -> None:
        assert (await clerk.run(db, session="s", message="wire 7")).status == "in_doubt"
        before = await db.look("s")
        assert (await try_out(db, "b", "hello")).status == "done"
        after = await db.look("s")
        assert (after.status, after.error) == (before.status, before.error) == ("in_doubt", "TimeoutError")
        assert after.updated >= before.updated
        assert await db.counts() == [("in_doubt", "clerk", "TimeoutError", 1)]

    play(tmp_path, "sqlite", work)
    with asking(tmp_path) as ask:
        assert [(e["branch"], e["tool"]) for e in ask.get("/in-doubt")["items"]] == [("main", "wire")]


def test_what_main_was_found_to_have_done_is_no_doubt_on_a_branch_that_saw_it_begin(tmp_path: Path):
    async def doubt(db: AsyncDatabase) -> str:
        result = await clerk.run(db, session="s", message="wire 7")
        async with db.session("s") as s:
            await s.fork("b")
        return result.in_doubt[0].effect

    effect = play(tmp_path, "sqlite", doubt)
    done = (
        "has its outcome from another branch or from before a rewind, and that is taken when it goes on, without a call"
    )
    with asking(tmp_path) as ask:
        assert why(ask.db, "s", branch="b").do == "resolve"
        with ask.db.session("s") as s:
            s.resolve(effect, done="found it")
    for goes_on in (False, True):
        if goes_on:
            # Its record is forgotten on main then.
            assert play(tmp_path, "sqlite", lambda db: clerk.run(db, session="s", message="hello")).status == "done"
        with asking(tmp_path) as ask:
            told = why(ask.db, "s", branch="b")
            assert told.line == f"wire(amount=7) {done}, and nobody works on it."
            assert told.actions[0].argument == "dry"
            assert ask.get("/in-doubt", all_branches=True)["items"] == []
            for verdict in ("retry", "abort", "done"):
                refused = ask.post(f"/sessions/s/effects/{effect}/resolve", {"verdict": verdict, "branch": "b"}, 409)
                assert refused["detail"] == f"effect {effect} is not in doubt: it {done}"
    assert play(tmp_path, "sqlite", lambda db: run_on(db, clerk, "s", "b")).status == "done"


def test_after_a_rewind_what_was_done_before_it_is_told_as_done(tmp_path: Path):
    async def work(db: AsyncDatabase) -> None:
        waits = await clerk.run(db, session="s", message="refund 5")
        await db.approve("s", waits.approvals[0].id, by="ana")
        assert (await clerk.run(db, session="s")).status == "done"
        begun = [c.step for c in await db.history("s") if c.kind == "started"]
        async with db.session("s") as s:
            await s.rewind(begun[0])

    play(tmp_path, "sqlite", work)
    with asking(tmp_path) as ask:
        told = why(ask.db, "s")
        assert "refund(amount=5) has its outcome from another branch or from before a rewind" in told.line
        assert "no outcome" not in told.line
    assert play(tmp_path, "sqlite", lambda db: clerk.run(db, session="s")).status == "done"
    assert paid == [5]


def test_what_waits_on_a_branch_is_found_when_it_is_asked_for(tmp_path: Path):
    async def work(db: AsyncDatabase) -> Any:
        for n in range(3):
            await clerk.run(db, session=f"other{n}", message="hello")
        assert (await clerk.run(db, session="s", message="hello")).status == "done"
        await try_out(db, "c", "wire 7", effects="reuse")
        return await try_out(db, "b", "refund 5", effects="reuse")

    result = play(tmp_path, "sqlite", work)
    assert result.status == "waiting_approval"
    with asking(tmp_path, agents=[clerk]) as ask:
        assert ask.db.look("s").status == "idle"
        assert waiting(ask) == []
        for limit in (1, 25):
            assert waiting(ask, all_branches=True, limit=limit) == [("s", "b", "refund")]
        assert ask.get("/in-doubt", limit=1)["items"] == []
        assert [(e["branch"], e["tool"]) for e in ask.get("/in-doubt", all_branches=True)["items"]] == [("c", "wire")]
        assert [i["metadata"]["branch"] for i in ask.get("/sessions/s/approvals")["items"]] == ["b"]

        page = ask.http.get("/approvals").text
        assert "Nothing waits" in page
        assert "/approvals?aside=yes" in page
        page = ask.http.get("/approvals", params={"aside": "yes"}).text
        assert "on b" in page
        assert result.approvals[0].id in page
        token = re.findall(r'name="token" value="([^"]+)"', page)
        form = {"token": token[0] if token else "", "session": "s", "branch": "b", "do": "approve", "by": "eve"}
        answer = ask.http.post("/approvals", data={**form, "approval": result.approvals[0].id})
        assert "taken up when the branch is run on" in answer.text
        assert waiting(ask, all_branches=True) == []
    done = play(tmp_path, "sqlite", lambda db: run_on(db, clerk, "s", "b", effects="reuse"))
    assert (done.text, paid) == ("done: 5", [5])


def test_a_request_is_its_own_lines_also_where_a_branch_has_it(tmp_path: Path):
    async def work(db: AsyncDatabase) -> str:
        waits = await clerk.run(db, session="s", message="refund 5")
        async with db.session("s") as s:
            await s.fork("a")
        return waits.approvals[0].id

    approval = play(tmp_path, "sqlite", work)
    with asking(tmp_path) as ask:
        assert waiting(ask) == [("s", "main", "refund")]
        ask.db.approve("s", approval, by="eve")
    assert play(tmp_path, "sqlite", lambda db: clerk.run(db, session="s")).status == "done"
    with asking(tmp_path) as ask:
        # On the branch it is as it was, but what it was for has been made.
        assert waiting(ask, all_branches=True) == []
        with pytest.raises(perdure.ApprovalError, match="used"):
            ask.db.approve("s", approval, by="eve")
    assert paid == [5]


def test_a_request_that_main_has_settled_long_ago_is_open_on_no_branch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("perdure.session.calls.approvals.SETTLED_KEPT", 1)

    async def work(db: AsyncDatabase) -> str:
        first = waits = await clerk.run(db, session="s", message="refund 5")
        async with db.session("s") as s:
            await s.fork("a")
        for n in range(6, 9):
            await db.approve("s", waits.approvals[0].id, by="eve")
            await clerk.run(db, session="s")
            waits = await clerk.run(db, session="s", message=f"refund {n}")
        return first.approvals[0].id

    approval = play(tmp_path, "sqlite", work)
    with asking(tmp_path) as ask:
        assert approval not in ask.db.read("s").book["approvals"]
        assert waiting(ask, all_branches=True) == [("s", "main", "refund")]
        assert approval not in {i["id"] for i in ask.get("/sessions/s/approvals")["items"]}
        with pytest.raises(
            perdure.ApprovalError, match="no longer open: branch 'a' has it from the line it parted from"
        ):
            ask.db.approve("s", approval, by="eve")
        told = why(ask.db, "s", branch="a")
        assert told.line.startswith("refund(amount=5) has its outcome from another branch or from before a rewind"), (
            told
        )
        assert told.line.endswith("is taken when it goes on, without a call, and nobody works on it."), told
        assert told.do == "run"


def test_what_a_branch_took_over_from_main_is_no_longer_asked_for_on_it(tmp_path: Path):
    async def work(db: AsyncDatabase) -> str:
        waits = await clerk.run(db, session="s", message="refund 5")
        async with db.session("s") as s:
            await s.fork("a")
        await db.approve("s", waits.approvals[0].id, by="eve")
        await clerk.run(db, session="s")
        return (await run_on(db, clerk, "s", "a", effects="reuse")).text

    assert play(tmp_path, "sqlite", work) == "done: 5"
    assert paid == [5]
    with asking(tmp_path) as ask:
        assert why(ask.db, "s", branch="a").line == "It has answered everything."


def test_what_was_asked_before_a_rewind_is_asked_anew(tmp_path: Path):
    async def work(db: AsyncDatabase) -> tuple[str, str]:
        waits = await clerk.run(db, session="s", message="refund 5")
        async with db.session("s") as s:
            await s.rewind(1)
        first = waits.approvals[0].id
        with pytest.raises(perdure.ApprovalError, match="asks anew"):
            await db.approve("s", first, by="eve")
        return first, (await clerk.run(db, session="s")).approvals[0].id

    first, again = play(tmp_path, "sqlite", work)
    assert first != again
    with asking(tmp_path) as ask:
        ask.db.approve("s", again, by="eve")
    assert play(tmp_path, "sqlite", lambda db: clerk.run(db, session="s")).status == "done"
    assert paid == [5]


def test_a_branch_that_was_just_made_stands_for_itself(tmp_path: Path):
    async def work(db: AsyncDatabase) -> None:
        await clerk.run(db, session="s", message="refund 5")
        await branch_off(db, "s", "before", at=1, before=True, said="hello")
        await branch_off(db, "s", "there", at=1)
        assert (await db.read("s", branch="before")).checkpoint.status == "idle"
        # What was asked at the place it starts from is open on it, too.
        assert (await db.read("s", branch="there")).checkpoint.status == "waiting_approval"
        async with db.session("s") as s:
            await s.close()
        assert (await try_out(db, "late", "hello")).status == "done"
        assert (await db.look("s")).status == "closed"

    play(tmp_path, "sqlite", work)


def test_a_branch_is_told_how_to_be_gone_on_with_not_how_main_is(tmp_path: Path):
    async def work(db: AsyncDatabase) -> None:
        await clerk.run(db, session="s", message="hello")
        await branch_off(db, "s", "b", at=1, before=True, said="hi")
        await db.post("s", "meant for main")

    play(tmp_path, "sqlite", work)
    with asking(tmp_path) as ask:
        told = why(ask.db, "s", branch="b")
        assert told.line == "What was said last on it has no answer yet, and nobody works on it."
        assert told.actions[0].command == f"perdure resume APP s --branch b --effects dry --store {ask.db.url}"
    play(tmp_path, "sqlite", lambda db: run_on(db, clerk, "s", "b"))
    with asking(tmp_path) as ask:
        told = why(ask.db, "s", branch="b")
        assert told.line == "It has answered everything."
        assert told.actions[0].command == f"perdure run APP s MESSAGE --branch b --store {ask.db.url}"


def test_all_ways_to_go_on_with_a_branch_do_the_same_and_get_it_further(tmp_path: Path):
    async def work(db: AsyncDatabase) -> None:
        await clerk.run(db, session="s", message="hello")
        await try_out(db, "b", "refund 5", effects="reuse")

    play(tmp_path, "sqlite", work)
    with asking(tmp_path) as ask:
        (asked,) = ask.get("/sessions/s/why", branch="b")["actions"]
        assert (asked["name"], asked["branch"]) == ("approve", "b")
        ask.db.approve("s", asked["argument"], by="ana")
        told = ask.get("/sessions/s/why", branch="b")
        assert told["next_step"] == "Run the branch on, so that calls are made."
        (run,) = told["actions"]
    assert run["command"] == f"perdure resume APP s --branch b --effects reuse --store {ask.db.url}"
    assert run["body"] == {"branch": "b", "effects": "reuse"}
    assert run["library"] == "perdure.run_on(db, agent, 's', 'b', effects='reuse')"
    assert play(tmp_path, "sqlite", lambda db: run_on(db, clerk, "s", "b")).status == "waiting_approval"
    assert play(tmp_path, "sqlite", lambda db: run_on(db, clerk, "s", "b", effects="reuse")).text == "done: 5"


def test_what_a_program_left_open_on_a_branch_is_its_own_to_go_on_with(tmp_path: Path):
    with asking(tmp_path) as ask:
        with ask.db.session("s") as s:
            s.vars["a"] = 1
            s.commit()
            s.fork("b")
            s.switch("b")
            with pytest.raises(perdure.ApprovalNeeded) as needed:
                s.call(refund, 5)
        ask.db.approve("s", needed.value.approval, by="ana")
        told = why(ask.db, "s", branch="b")
        assert [a.library for a in told.actions] == ["db.session('s', branch='b')"]
        assert told.next == "Its program takes it up when it calls again."


def test_what_a_program_puts_among_the_messages_of_a_branch_is_looked_at_as_it_is(tmp_path: Path):
    async def work(db: AsyncDatabase) -> None:
        async with db.session("s") as s:
            s.messages.append("no message at all")
            await s.commit()
            await s.fork("b")

    play(tmp_path, "sqlite", work)
    with asking(tmp_path) as ask:
        assert why(ask.db, "s", branch="b").line == "Nothing in it is open."
