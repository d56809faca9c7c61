"""A dry run of an agent touches nothing outside, wherever the calls stand that it finds open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, Done, Later, NotDone, ScriptedModel, tool
from perdure.agent import notify
from perdure.agent.branching_off import run_on
from perdure.agent.children import child_id
from perdure.agent.models.scripted import calls
from perdure.errors import ModelError
from perdure.session.tools.exceptions import LetThrough
from perdure.testing.clock import FakeClock
from tests.agent.working import by_turn, opened, play

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

touched: list[str] = []
"""All that was done or asked outside."""


class Died(LetThrough):
    """What a process that dies here raises; nothing may catch it."""


@pytest.fixture(autouse=True)
def nothing_touched() -> None:
    touched.clear()


class Desk:
    """An agent that charges once, and what its tool does meanwhile."""

    def __init__(self, **declared: Any) -> None:
        self.meanwhile: Callable[[Any], Any] = lambda ctx: "charged"

        def charge(amount: int, ctx: Any) -> Any:
            """Charge an amount."""
            touched.append("charge")
            return self.meanwhile(ctx)

        self.agent = Agent(
            "desk",
            model=ScriptedModel(by_turn(calls(("charge", {"amount": 5})), "That was it.")),
            tools=[tool(**declared)(charge)],
        )

    def dies(self, _: Any) -> Any:
        raise Died


def _asks(name: str, verdict: Any) -> Callable[..., Any]:
    def ask(*args: Any, **kwargs: Any) -> Any:
        touched.append(name)
        return verdict

    return ask


async def _begin(db: perdure.AsyncDatabase, agent: Agent, **options: Any) -> perdure.RunResult:
    return await agent.run(db, session="s", message="charge me", **options)


def started(policy: Any) -> Any:
    async def come_there(db: perdure.AsyncDatabase) -> Agent:
        desk = Desk(if_unsure=policy)
        desk.meanwhile = desk.dies
        with pytest.raises(BaseExceptionGroup):
            await _begin(db, desk.agent)
        desk.meanwhile = lambda ctx: "charged"
        return desk.agent

    return come_there


async def resolved_as_to_be_made_again(db: perdure.AsyncDatabase) -> Agent:
    agent = await started("ask")(db)
    result = await agent.run(db, session="s")
    async with await db.session("s") as s:
        await s.resolve(result.in_doubt[0].effect, retry=True)
    return agent


async def pending(db: perdure.AsyncDatabase) -> Agent:
    desk = Desk(approve=True, facts=_asks("facts", 1))
    assert (await _begin(db, desk.agent)).status == "waiting_approval"
    return desk.agent


async def approved(db: perdure.AsyncDatabase) -> Agent:
    agent = await pending(db)
    await _decide(db, "s")
    return agent


async def _decide(db: perdure.AsyncDatabase, session: str, branch: str = "main") -> None:
    async with await db.session(session, branch=branch) as s:
        (asked,) = s.approvals()
    await db.approve(session, asked.id, by="ana")


async def a_question_answered(db: perdure.AsyncDatabase) -> Agent:
    desk = Desk()
    desk.meanwhile = lambda ctx: ctx.ask("how?")
    result = await _begin(db, desk.agent)
    await db.answer("s", result.approvals[0].id, "so", by="ana")
    return desk.agent


async def waiting(db: perdure.AsyncDatabase) -> Agent:
    desk = Desk(poll=_asks("poll", None))
    desk.meanwhile = lambda ctx: Later({"job": 7})
    assert (await _begin(db, desk.agent)).status == "waiting_result"
    return desk.agent


def a_child(desk: Desk) -> Agent:
    does = desk.agent.as_tool(description="Charge.")
    return Agent("boss", model=ScriptedModel(by_turn(calls(("desk", {"task": "charge"})), "Done.")), tools=[does])


async def a_child_that_may_go_on(db: perdure.AsyncDatabase) -> Agent:
    desk = Desk(approve=True)
    boss = a_child(desk)
    result = await _begin(db, boss)
    await _decide(db, result.children[0].session)
    return boss


async def a_child_that_died(db: perdure.AsyncDatabase) -> Agent:
    desk = Desk(if_unsure="retry")
    boss = a_child(desk)
    desk.meanwhile = desk.dies
    with pytest.raises(BaseExceptionGroup):
        await _begin(db, boss)
    desk.meanwhile = lambda ctx: "charged"
    return boss


STATES: dict[str, Callable[[perdure.AsyncDatabase], Awaitable[Agent]]] = {
    "started, ask": started("ask"),
    "started, retry": started("retry"),
    "started, report": started("report"),
    "started, finds it done": started(_asks("if_unsure", Done("charged"))),
    "started, finds it not done": started(_asks("if_unsure", NotDone())),
    **{
        state.__name__.replace("_", " "): state
        for state in (
            resolved_as_to_be_made_again, pending, approved, a_question_answered, waiting, a_child_that_may_go_on,
            a_child_that_died,
        )
    },
}  # fmt: skip
UNTOUCHED = ("ask", "report", "pending")


@pytest.mark.parametrize("branch", ["main", "other"])
@pytest.mark.parametrize("state", STATES)
def test_wherever_a_call_stands_a_dry_run_touches_nothing_outside(tmp_path: Path, state: str, branch: str):
    async def work() -> None:
        async with opened(tmp_path, clock := FakeClock()) as db:
            agent = await STATES[state](db)
            clock.advance(60_000)
            if branch != "main":
                async with await db.session("s") as s:
                    await s.fork(branch)
            touched.clear()
            for _ in range(2):
                dry = await run_on(db, agent, "s", branch, effects="dry")
                assert touched == []
                # Either it is told as not called, or it stays open and that is said.
                assert dry.status == "done" or "is not called, and stays open" in dry.reason, dry
            if branch == "main":
                went = await run_on(db, agent, "s", branch, effects="reuse")
                assert bool(touched) != state.endswith(UNTOUCHED), went

    play(work())


def test_what_was_agreed_to_on_a_branch_waits_through_a_dry_run_and_is_made_by_one_that_makes_calls(tmp_path: Path):
    async def work() -> None:
        async with opened(tmp_path) as db:
            agent = await pending(db)
            async with await db.session("s") as s:
                await s.fork("b")
            await run_on(db, agent, "s", "b", effects="reuse")
            await _decide(db, "s", "b")
            dry = await run_on(db, agent, "s", "b", effects="dry")
            assert (dry.status, "charge" in touched) == ("waiting_approval", False)
            assert 'Go on with --effects reuse (effects="reuse")' in dry.reason
            assert (await run_on(db, agent, "s", "b", effects="reuse")).status == "done"
            assert touched.count("charge") == 1

    play(work())


def test_what_was_turned_down_is_settled_by_a_dry_run(tmp_path: Path):
    async def work() -> None:
        async with opened(tmp_path) as db:
            agent = await pending(db)
            async with await db.session("s") as s:
                (asked,) = s.approvals()
            await db.reject("s", asked.id, by="ana", reason="no")
            assert (await run_on(db, agent, "s", "main", effects="dry")).text == "That was it."
            assert "charge" not in touched

    play(work())


def test_a_dry_run_sends_no_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def sent(*args: Any) -> None:
        touched.append("notice")

    monkeypatch.setattr(notify, "tell", sent)

    def refuses(_: Any) -> Any:
        raise ModelError("gone")

    agent = Agent("desk", model=ScriptedModel(refuses), notify="http://127.0.0.1:9/")

    async def work() -> None:
        async with opened(tmp_path) as db:
            assert (await agent.run(db, session="s", message="hello", effects="dry")).status == "failed"
            assert touched == []
            assert (await agent.run(db, session="s", message="hello")).status == "failed"
            assert touched == ["notice"]

    play(work())


@pytest.mark.parametrize("branch", ["main", "other"])
def test_a_dry_run_of_a_child_or_of_a_branch_of_it_does_not_answer_its_parent(tmp_path: Path, branch: str):
    async def work() -> None:
        async with opened(tmp_path) as db:
            desk = Desk(approve=True)
            boss = a_child(desk)
            result = await _begin(db, boss)
            child = result.children[0]
            assert child.session == child_id("s", child.effect)
            async with await db.session(child.session) as s:
                (asked,) = s.approvals()
                await s.fork("other")
            await db.reject(child.session, asked.id, by="ana")
            ended = await run_on(db, desk.agent, child.session, branch, effects="dry")
            assert ended.status == "done"
            assert (await db.look("s")).pending == 0

    play(work())
