"""Why a session stands where it stands, while a call of it has no outcome: paused, cancelled, closed, put back."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, FunctionModel, Later, calls, tool
from perdure.cli.program import run
from perdure.fleet.board import board_of
from perdure.fleet.status import to_retry
from perdure.fleet.why.decision import told
from perdure.fleet.why.lists import glance, stuck
from perdure.fleet.why.reading import gather
from perdure.protocols import Filter, Work, WorkerRow
from perdure.session.handover import Fleet, hand_over
from perdure.system.lease_holders import new_holder, running_agent
from perdure.testing.clock import FakeClock
from tests.server.asking import asking

if TYPE_CHECKING:
    from pathlib import Path


@tool(if_unsure="retry")
def pay(what: str) -> str:
    raise ConnectionError("the provider is down")


@tool
def wire(what: str) -> str:
    raise TimeoutError("no answer")


@tool(if_unsure="retry", approve=True)
def refund(what: str) -> str:
    return f"refunded {what}"


def broken(handle: object) -> perdure.Done:
    raise RuntimeError("the look-up is broken")


@tool(poll=broken)
def order(what: str) -> Later:
    return Later(what)


def answer(request: Any) -> Any:
    last = request.messages[-1]
    if last["role"] == "user":
        name, what = last["content"].split()
        return calls((name, {"what": what}))
    return f"done: {last['content']}"


desk = Agent("desk", model=FunctionModel(answer, name="m"), tools=[pay, wire, refund, order])


def test_a_call_that_is_paused_is_not_said_to_be_tried_now_by_the_worker_that_came_after_a_dead_one(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/agents.db"

    async def run() -> list[perdure.Why]:
        running = asyncio.create_task(desk.run(url, session="s", message="pay a"))
        with perdure.open(url) as db:
            for _ in iter(lambda: _is_paused(db), True):
                await asyncio.sleep(0.02)
            facts = gather(db, db.look("s"))
            found = [told(facts._replace(work=Work("s", "desk", tries=tries), served=True)) for tries in (1, 2)]
            free = facts.row._replace(lease=facts.row.lease._replace(holder=""))
            queued = Work("s", "desk", queued=True, tries=1)
            found.append(told(facts._replace(row=free, work=queued, served=True)))
        running.cancel()
        await asyncio.wait({running})
        return found

    once, twice, free = asyncio.run(run())
    assert "tries it now" not in once.line
    assert "in 1 attempt, the last time with ConnectionError: the provider is down" in once.line
    assert "It is tried again in " in once.line
    assert "Its worker died or failed 1 time" in once.line
    assert (once.severity, twice.severity) == ("wait", "failing")
    # Who takes it up keeps to the pause, too.
    assert "It is tried again in " in free.next


def _is_paused(db: perdure.Database) -> bool:
    row = db.kernel.store.look("s")
    if row is None or not row.heads:
        return False
    return any("lost_since" in effect for effect in db.read("s").book.get("effects", {}).values())


def test_a_cancelled_session_with_a_call_in_doubt_is_not_said_to_be_at_rest(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/agents.db"
    over = threading.Event()

    @tool
    def hang(what: str) -> str:
        with perdure.open(url) as db:
            db.cancel("hangs", by="eve")
        over.wait(10)
        return "late"

    stuck = Agent("desk", model=FunctionModel(answer, name="m"), tools=[hang, wire])
    stuck.run_sync(url, session="hangs", message="hang a")
    stuck.run_sync(url, session="doubt", message="wire a")
    with perdure.open(url) as db:
        db.cancel("doubt", by="eve")
        stuck.run_sync(url, session="doubt")
        for session in ("hangs", "doubt"):
            (effect,) = db.read(session).book["effects"].values()
            found = perdure.why(db, session)
            assert found.line.startswith("It was cancelled by eve. "), found
            assert '(what="a") was started and nobody knows whether it happened.' in found.line
            assert found.severity == "act"
            assert [(a.name, a.argument) for a in found.actions] == [("resolve", effect["id"]), ("message", "")]
            # No worker gets any further with it: nothing is to be tried again.
            assert to_retry(db, [db.look(session)]) == []
            # What was reported since needs nobody any more.
            db.post_outcome(session, effect["id"], "late")
            found = perdure.why(db, session)
            assert found.severity == "ok"
            assert f'The outcome of {effect["tool"]}(what="a") has arrived.' in found.line
    over.set()


def test_a_closed_session_with_a_call_in_doubt_is_not_said_to_be_at_rest(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/agents.db"
    desk.run_sync(url, session="s", message="wire a")
    with perdure.open(url) as db:
        with db.session("s") as s:
            s.close()
        found = perdure.why(db, "s")
        assert 'wire(what="a") was started and nobody knows whether it happened.' in found.line
        assert (found.severity, found.do) == ("act", "reopen")
        assert to_retry(db, [db.look("s")]) == []


def test_a_call_that_was_approved_and_made_is_not_asked_for_anew_after_a_rewind_or_on_a_branch(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/agents.db"
    (approval,) = desk.run_sync(url, session="s", message="refund a").approvals
    with perdure.open(url) as db:
        at = db.look("s").heads[0].step
        db.approve("s", approval.id, by="eve")
        assert desk.run_sync(url, session="s").status == "done"
        with db.session("s") as s:
            s.fork("alt", at=at)
            s.rewind(at)
        for branch in ("main", "alt"):
            found = perdure.why(db, "s", branch=branch)
            assert found.line.startswith('refund(what="a") has its outcome from another branch or from before'), found
        assert desk.run_sync(url, session="s").status == "done"


def test_a_call_that_nobody_has_made_yet_is_asked_for_anew_after_a_rewind(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/agents.db"
    desk.run_sync(url, session="s", message="refund a")
    with perdure.open(url) as db:
        with db.session("s") as s:
            s.rewind(s.step)
        assert 'refund(what="a") is asked for anew when it goes on' in perdure.why(db, "s").line


def test_a_poll_that_fails_and_is_made_again_by_a_worker_needs_nobody_to_go_on_with_it(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/agents.db"
    for _ in range(2):
        desk.run_sync(url, session="s", message="order a")
    with perdure.open(url) as db:
        facts = gather(db, db.look("s"))
        alone = told(facts)
        assert (alone.severity, [a.name for a in alone.actions]) == ("act", ["outcome", "run"])
        polled = Work("s", "desk", due=facts.now + 5000)
        found = told(facts._replace(work=polled, served=True))
        assert "RuntimeError" in found.line
        assert found.next.startswith("Mend that: it is polled again by itself in 5 s.")
        assert (found.severity, [a.name for a in found.actions]) == ("failing", ["outcome"])
        # Held, paused, or without a worker it is not.
        for keeps in ({"held": True}, {"work": polled._replace(paused=True)}, {"served": False}):
            kept = told(facts._replace(**{"work": polled, "served": True, **keeps}))
            assert kept.severity == "act", kept


def test_an_agent_that_is_held_is_let_go_before_a_session_that_is_paused_as_well(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/agents.db"
    desk.run_sync(url, session="s", message="say hello")
    with perdure.open(url) as db:
        facts = gather(db, db.look("s"))
        assert facts.head.status == "idle"
        both = told(facts._replace(work=Work("s", "desk", paused=True), held=True, served=True))
        assert [a.name for a in both.actions] == ["unhold"]
        assert both.next == "Let the agent go on again. Then unpause it: a person has paused it, too."
        alone = told(facts._replace(work=Work("s", "desk", paused=True), served=True))
        assert [a.name for a in alone.actions] == ["unpause"]


@pytest.mark.parametrize("verdict", ["done", "retry", "abort"])
@pytest.mark.parametrize("way", ["library", "command line", "http"])
def test_saying_what_became_of_a_call_does_not_have_a_cancelled_session_go_on(
    tmp_path: Path, verdict: str, way: str, capsys: pytest.CaptureFixture[str]
):
    url = f"sqlite:///{tmp_path}/agents.db"
    desk.run_sync(url, session="s", message="wire a")
    with asking(tmp_path, agents=[desk]) as api:
        api.db.cancel("s", by="eve")
        desk.run_sync(url, session="s")
        board_of(api.db).beat(WorkerRow("w", "host", 1, "v", ("desk",), 1))
        effect = next(iter(api.db.read("s").book["effects"].values()))["id"]
        said: dict[str, Any] = {"done": "wired"} if verdict == "done" else {verdict: True}
        if way == "library":
            with api.db.session("s") as s:
                s.resolve(effect, by="ana", **said)
        elif way == "http":
            body = {"verdict": verdict, "by": "ana", **({"result": "wired"} if verdict == "done" else {})}
            api.post(f"/sessions/s/effects/{effect}/resolve", body)
        else:
            more = ["--done", '"wired"'] if verdict == "done" else [f"--{verdict}"]
            assert run(["resolve", "s", effect, *more, "--by", "ana", "--store", url]) == 0
            said_by = capsys.readouterr().out
            assert "It was cancelled, and goes on with a new message: perdure post s MESSAGE" in said_by
        assert api.get("/sessions/s")["status"] == "cancelled"
        assert list(board_of(api.db).works(Filter(), limit=10)) == []
        assert desk.run_sync(url, session="s").status == "cancelled"
        # A new message it is that has it go on, and who said it is told so.
        api.db.post("s", "order b")
        assert hand_over(api.db.kernel, api.db.look("s")).to == "worker"


def test_a_session_whose_result_is_polled_for_in_vain_is_told_by_lists_and_counted_as_why_says(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/agents.db"
    desk.run_sync(url, session="s", message="order a")
    with perdure.open(url) as db:
        board = board_of(db)
        with running_agent():
            board.beat(WorkerRow(new_holder(), "vm", 1, "v", ("desk",), 20, 0, 0))
        work = Work("s", "desk", due=db.kernel.clock.wall() + 5000)
        facts = gather(db, db.look("s"))._replace(work=work)
        assert told(facts).severity == "failing"
        row = db.look("s")
        assert stuck(db) == {"desk": 1}
        said = glance(row, work, Fleet(board.workers()), db.kernel.clock.wall())
        assert said == "failing, what it waits for is asked for in vain: RuntimeError"
        db.post_outcome("s", next(e["id"] for e in facts.book["effects"].values()), "there")
    assert desk.run_sync(url, session="s").status == "done"
    with perdure.open(url) as db:
        assert stuck(db) == {}


def test_how_long_a_call_runs_counts_from_when_this_attempt_began(tmp_path: Path):
    url, clock, seen = f"sqlite:///{tmp_path}/agents.db", FakeClock(), list[str]()

    @tool(if_unsure="retry", approve=True)
    def slow(what: str) -> str:
        clock.advance(3_000)
        with perdure.open(url, clock=clock) as db:
            seen.append(perdure.why(db, "s").line)
        return "done"

    agent = Agent("desk", model=FunctionModel(answer, name="m"), tools=[slow])

    async def run() -> None:
        async with perdure.open_async(url, clock=clock) as db:
            (asked,) = (await agent.run(db, session="s", message="slow a")).approvals
            clock.advance(3_600_000)
            await db.approve("s", asked.id, by="eve")
            await agent.run(db, session="s")

    asyncio.run(run())
    assert [line.partition(" runs ")[2] for line in seen] == ['slow(what="a") for 3 s.']
