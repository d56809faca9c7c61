"""A question that nobody has answered, and what becomes of it wherever a line goes on from it: on that line a person is
asked again, whatever the reason was. And of calls that wait for somebody while another line makes them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, FunctionModel, branch_off, calls, tool, tool_migration
from perdure.session.tools.declaration import Tool
from perdure.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from perdure.agent.run_result import RunResult

ARGS = {"order": "o7", "amount": 500}


@tool_migration("transfer", "1", "2")
def _(arguments: dict[str, Any]) -> None:
    """The same arguments, of another version."""


class Desk:
    """An agent that asks for a payment until it is told that it was made; a session of it that waits for a person."""

    def __init__(self, db: perdure.AsyncDatabase, clock: FakeClock) -> None:
        self.db, self.clock = db, clock
        self.made: list[Any] = []
        self.base, self.effects = "main", "reuse"
        self.strict = True
        self.price = 1
        self.name = "pay"
        self.pay = self.paying()

    def paying(self, *, raises: bool = False, question: bool = False, name: str = "pay", **options: Any) -> Tool:
        """The tool, which notes what it was really asked to do."""

        async def pay(order: str, amount: int, ctx: perdure.Context) -> str:
            if question and ctx.ask("sure?", {"type": "boolean"}) is not True:
                raise perdure.NotDone("not sure")
            self.made.append(amount)
            if raises and len(self.made) == 1:
                raise KeyError("a bug after the charge")
            return "paid"

        pay.__name__ = self.name = name
        self.pay = tool(**options)(pay)
        return self.pay

    def answer(self, request: Any) -> Any:
        told = [m["content"] for m in request.messages if m["role"] == "tool"]
        if told and "was not known" not in told[-1]:
            self.clock.advance(20_000)
        return "end: " + told[-1] if len(told) > 1 or any("paid" in t for t in told) else calls((self.name, ARGS))

    def once(self, request: Any) -> Any:
        """An agent that asks for it once, and says what it was told."""
        told = [m["content"] for m in request.messages if m["role"] == "tool"]
        return "end: " + told[-1] if told else calls((self.name, ARGS))

    async def run(self, db: Any = None, **options: Any) -> RunResult:
        agent = Agent("desk", model=FunctionModel(self.answer), tools=[self.pay])
        return await agent.run(db or self.db, session="s", **options)

    async def decide(self, asked: RunResult, db: Any = None, **more: Any) -> None:
        (approval,) = asked.approvals
        if approval.question:
            await (db or self.db).answer("s", approval.id, True, by="ana")
        else:
            await (db or self.db).approve("s", approval.id, by="ana", **more)


async def raised(desk: Desk) -> RunResult:
    desk.paying(raises=True)
    return await desk.run(message="go")


async def expired_key(desk: Desk) -> RunResult:
    desk.paying(raises=True, if_unsure="retry", key_valid_for="10s")
    return await desk.run(message="go")


async def rule(desk: Desk) -> RunResult:
    desk.paying(approve=True)
    return await desk.run(message="go")


async def rule_of_then(desk: Desk) -> RunResult:
    """A rule that says something else by now."""
    desk.paying(approve=lambda args: desk.strict)
    asked = await desk.run(message="go")
    desk.strict = False
    return asked


async def question(desk: Desk) -> RunResult:
    desk.paying(question=True)
    return await desk.run(message="go")


async def other_facts(desk: Desk) -> RunResult:
    desk.paying(approve=True, facts=lambda order, amount: desk.price)
    await desk.decide(await desk.run(message="go"))
    desk.price += 1
    return await desk.run()


async def other_arguments(desk: Desk) -> RunResult:
    """What a person has changed it to rests on what nobody has seen; by now its rule asks for no agreement."""
    desk.paying(approve=lambda args: desk.strict, facts=lambda order, amount: amount)
    await desk.decide(await desk.run(message="go"), args={"order": "o7", "amount": 50})
    asked = await desk.run()
    desk.strict = False
    return asked


async def other_program(desk: Desk) -> RunResult:
    """The version that goes on needs no agreement by its own rule."""
    desk.paying(approve=True, name="transfer", version="1")
    await desk.run(message="go")
    desk.paying(name="transfer", version="2")
    return await desk.run()


async def raised_in_former_version(desk: Desk) -> RunResult:
    desk.paying(raises=True, name="transfer", version="1")
    await desk.run(message="go")
    desk.paying(name="transfer", version="2")
    return await desk.run()


async def made_elsewhere(desk: Desk) -> RunResult:
    desk.paying()
    await desk.run(message="go")
    desk.base, desk.effects = "again", "live"
    await branch_off(desk.db, "s", desk.base, at=1, before=True)
    return await desk.run(branch=desk.base, effects=desk.effects)


async def changed_elsewhere(desk: Desk) -> RunResult:
    desk.paying(approve=lambda args: desk.strict)
    await desk.decide(await desk.run(message="go"), args={"order": "o7", "amount": 50})
    await desk.run()
    desk.strict = False
    desk.base = "again"
    await branch_off(desk.db, "s", desk.base, at=1, before=True)
    return await desk.run(branch=desk.base)


REASONS: list[Callable[[Desk], Any]] = [
    raised, expired_key, rule, rule_of_then, question, other_facts, other_arguments, other_program,
    raised_in_former_version, made_elsewhere, changed_elsewhere,
]  # fmt: skip


async def forked(desk: Desk, folder: Path) -> tuple[Any, str]:
    async with desk.db.session("s", branch=desk.base) as s:
        await s.fork("b")
    return desk.db, "b"


async def forked_at(desk: Desk, folder: Path) -> tuple[Any, str]:
    step = (await desk.db.history("s", branch=desk.base))[0].step
    async with desk.db.session("s", branch=desk.base) as s:
        s.vars["later"] = 1
        await s.commit()
        await s.fork("b", at=step)
    return desk.db, "b"


async def branched_off(desk: Desk, folder: Path) -> tuple[Any, str]:
    await branch_off(desk.db, "s", "b", at=(await desk.db.history("s", branch=desk.base))[0].step, branch=desk.base)
    return desk.db, "b"


async def forked_twice(desk: Desk, folder: Path) -> tuple[Any, str]:
    await forked(desk, folder)
    await desk.run(branch="b", effects=desk.effects)
    async with desk.db.session("s", branch="b") as s:
        await s.fork("c")
    return desk.db, "c"


async def rewound(desk: Desk, folder: Path) -> tuple[Any, str]:
    async with desk.db.session("s", branch=desk.base) as s:
        assert s.head is not None
        step = s.head.step
        s.vars["later"] = 1
        await s.commit()
        await s.rewind(step)
    return desk.db, desk.base


async def rejected_and_rewound(desk: Desk, folder: Path) -> tuple[Any, str]:
    async with desk.db.session("s", branch=desk.base) as s:
        assert s.head is not None
        step, (approval,) = s.head.step, s.approvals()
        await s.fork("kept")
    await desk.db.reject("s", approval.id, by="boss")
    async with desk.db.session("s", branch=desk.base) as s:
        s.vars["later"] = 1
        await s.commit()
        await s.rewind(step)
    return desk.db, desk.base


async def merged(desk: Desk, folder: Path) -> tuple[Any, str]:
    await forked(desk, folder)
    async with desk.db.session("s", branch=desk.base) as s:
        s.vars["later"] = 1
        await s.commit()
    async with desk.db.session("s", branch="b") as s:
        await s.merge(desk.base)
    return desk.db, "b"


async def copied(desk: Desk, folder: Path) -> tuple[Any, str]:
    other = await perdure.open_async(f"sqlite:///{folder}/other.db", clock=desk.clock).__aenter__()
    assert (await desk.db.copy_to(other)).copied == 1
    return other, desk.base


async def restored(desk: Desk, folder: Path) -> tuple[Any, str]:
    await desk.db.backup(folder / "all.bak")
    other = await perdure.open_async(f"sqlite:///{folder}/other.db", clock=desk.clock).__aenter__()
    await other.restore(folder / "all.bak")
    async with other.session("s", branch=desk.base) as s:
        await s.fork("b")
    return other, "b"


WAYS: list[Callable[[Desk, Path], Any]] = [
    forked, forked_at, branched_off, forked_twice, rewound, rejected_and_rewound, merged, copied, restored,
]  # fmt: skip


@pytest.mark.parametrize("effects", ["reuse", "live", "dry"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reason", REASONS)
def test_nothing_is_called_on_any_line_before_somebody_there_was_asked(
    reason: Callable[[Desk], Any], way: Callable[[Desk, Path], Any], effects: str, tmp_path: Path
) -> None:
    async def work() -> None:
        clock = FakeClock()
        async with perdure.open_async(f"sqlite:///{tmp_path}/agents.db", clock=clock) as mine:
            desk = Desk(mine, clock)
            before: RunResult = await reason(desk)
            assert before.status == "waiting_approval"
            made = list(desk.made)
            db, branch = await way(desk, tmp_path)
            try:
                asked = await desk.run(db, branch=branch, effects=effects)
                assert desk.made == made, "nobody was asked"
                if effects == "dry":
                    return
                if reason is made_elsewhere and effects == "reuse":
                    assert asked.status == "done", "it has the outcome of the line that it came from"
                    return
                assert asked.status == "waiting_approval"
                assert asked.approvals[0].because.partition(" (")[0] == before.approvals[0].because.partition(" (")[0]
                assert asked.approvals[0].question == before.approvals[0].question
                await desk.decide(asked, db)
                end = await desk.run(db, branch=branch, effects=effects)
                assert (end.status, len(desk.made)) == ("done", len(made) + 1)
            finally:
                if db is not mine:
                    await db.close()

    asyncio.run(work())


@pytest.mark.parametrize("effects", ["reuse", "live"])
@pytest.mark.parametrize("first", ["agreed here", "made there"])
def test_a_call_that_waits_here_and_is_made_elsewhere_is_told_and_with_live_asked_about(
    first: str, effects: str, tmp_path: Path
) -> None:
    async def work() -> None:
        clock = FakeClock()
        async with perdure.open_async(f"sqlite:///{tmp_path}/agents.db", clock=clock) as db:
            desk = Desk(db, clock)
            desk.answer = desk.once  # type: ignore[method-assign]
            here = await rule(desk)
            await forked(desk, tmp_path)
            there = await desk.run(branch="b")
            if first == "agreed here":
                await desk.decide(here)
            await desk.decide(there)
            await desk.run(branch="b")
            if first == "made there":
                await desk.decide(here)
            assert desk.made == [500]
            end = await desk.run(effects=effects)
            assert desk.made == [500], "nobody who agreed knew of the other one"
            if effects == "reuse":
                assert end.status == "done"
                assert "was done on another branch already" in end.text
                assert (await perdure.why_async(db, "s")).severity == "ok"
                return
            (asked,) = end.approvals
            assert asked.because.startswith("the same was done on another branch (effect ")
            again = await desk.run(effects=effects)
            assert [one.id for one in again.approvals] == [asked.id], "asked once"
            await desk.decide(again)
            assert (await desk.run(effects=effects)).text == "end: paid"
            assert desk.made == [500, 500]

    asyncio.run(work())


def test_a_call_that_was_made_before_a_rewind_to_its_question_is_told_and_stays_that_one(tmp_path: Path) -> None:
    """It had the same id there: that it is not made here says nothing of what became of it."""

    async def work() -> None:
        clock = FakeClock()
        async with perdure.open_async(f"sqlite:///{tmp_path}/agents.db", clock=clock) as db:
            desk = Desk(db, clock)
            desk.answer = desk.once  # type: ignore[method-assign]
            desk.paying(approve=True, raises=True)
            here = await desk.run(message="go")
            await desk.decide(here)
            assert "KeyError" in (await desk.run()).text
            async with db.session("s") as s:
                await s.rewind(here.step)
            end = await desk.run()
            assert (end.status, desk.made) == ("done", [500])
            assert "was begun before a rewind" in end.text
            assert "nobody knows whether it was done" in end.text
            (failed,) = (c for c in await db.history("s") if c.kind == "failed")
            assert failed.more["effect"] != here.approvals[0].effect

    asyncio.run(work())


@pytest.mark.parametrize("effects", ["reuse", "live"])
def test_a_call_that_goes_on_under_its_id_leaves_no_request_open(tmp_path: Path, effects: Any) -> None:
    made: list[int] = []
    asks = False

    @tool(if_unsure="retry", approve=lambda _: asks)
    async def pay(order: str, amount: int) -> str:
        made.append(amount)
        if len(made) == 1:
            raise KeyError("a bug after the charge")
        return "paid"

    def model(request: Any) -> Any:
        last = request.messages[-1]
        return calls(("pay", ARGS)) if last["content"] == "go" else f"end: {last['content']}"

    async def work() -> None:
        nonlocal asks
        agent = Agent("desk", model=FunctionModel(model), tools=[pay])
        async with perdure.open_async(f"sqlite:///{tmp_path}/a.db") as db:
            base = (await agent.run(db, session="s", message="hello")).step
            assert len((await agent.run(db, session="s", message="go")).raised) == 1
            async with db.session("s") as s:
                await s.fork("other", at=base)
            asks = True
            waits = await agent.run(db, session="s", branch="other", message="go", effects="live")
            more: dict[str, Any] = {"args": {**ARGS, "amount": 1}} if effects == "reuse" else {}
            (request,) = waits.approvals
            await db.approve("s", request, by="ana", **more)
            await agent.run(db, session="s", branch="other", effects="live")
            asks = False
            end = await agent.run(db, session="s", message="go", effects=effects)
            assert (end.status, end.text, end.approvals) == ("done", "end: paid", ())
            assert (made[0], len(made)) == (500, 3)
            assert (await db.look("s")).status == "idle"

    asyncio.run(work())
