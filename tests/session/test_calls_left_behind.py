"""Calls of which nobody knows what became of them, and that another line of the session has: left by a rewind, or begun
on another branch. The identical call is that one, and its tool says what becomes of it; "done" is never said of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

import perdure
from perdure import Agent, FunctionModel, calls
from perdure.testing.clock import FakeClock

KINDS = ["ask", "retry", "report", "function"]


class Shop:
    """Charges cards, and is killed in the middle of the first charge."""

    def __init__(self, if_unsure: str, *, charged: bool, **options: Any) -> None:
        self.ids: list[str] = []
        self.tries: list[str] = []
        self.looked: list[str] = []
        self._charged = charged
        unsure: Any = self.look if if_unsure == "function" else if_unsure

        @perdure.tool(if_unsure=unsure, **options)
        def charge(order: str, ctx: perdure.Context) -> str:
            self.tries.append(ctx.effect_id)
            if charged or len(self.tries) > 1:
                self.ids.append(ctx.effect_id)
            if len(self.tries) == 1:
                raise KeyboardInterrupt
            return "paid"

        self.charge = charge

    def look(self, order: str) -> Any:
        self.looked.append(order)
        return perdure.Done("found paid") if self.ids else perdure.NotDone


def go_back(db: perdure.Database, how: str) -> str:
    with db.session("s") as s:
        if how == "rewind":
            s.rewind(1)
            return "main"
        s.fork("b", at=1)
        return "b"


def check(shop: Shop, if_unsure: str, said: str, first: str, charged: bool) -> None:
    assert "done" not in said.replace("was done;", "").replace("was done:", ""), said
    match if_unsure:
        case "ask":
            assert (len(shop.tries), shop.looked) == (1, [])
        case "retry":
            assert shop.tries == [first, first]
        case "report":
            assert len(shop.tries) == 1
        case _:
            assert shop.looked
            assert shop.tries == ([first] if charged else [first, first])


@pytest.mark.parametrize("charged", [True, False])
@pytest.mark.parametrize("how", ["rewind", "fork"])
@pytest.mark.parametrize("if_unsure", KINDS)
def test_a_program_that_makes_the_call_again_goes_on_with_the_one_in_doubt(
    db: perdure.Database, if_unsure: str, how: str, charged: bool
) -> None:
    shop = Shop(if_unsure, charged=charged)
    with db.session("s") as s:
        s.vars["a"] = 1
        s.commit()
        with pytest.raises(KeyboardInterrupt):
            s.call(shop.charge, "X")
    branch = go_back(db, how)
    with db.session("s", branch=branch) as s:
        said = ""
        try:
            said = str(s.call(shop.charge, "X"))
        except perdure.InDoubt as e:
            said = e.effect
        check(shop, if_unsure, "", shop.tries[0], charged)
        wanted = {"ask": shop.tries[0], "retry": "paid", "function": "found paid" if charged else "paid"}
        assert said == wanted.get(if_unsure, said)
        assert [e["id"] for e in s.effects()] == [shop.tries[0]]


class Desk(Shop):
    """An agent that charges, and whose run is cancelled in the middle of the first charge."""

    def __init__(self, db: perdure.AsyncDatabase, if_unsure: str, *, charged: bool) -> None:
        super().__init__(if_unsure, charged=charged)
        self.db = db
        self.entered = asyncio.Event()
        unsure: Any = self.look if if_unsure == "function" else if_unsure

        @perdure.tool(if_unsure=unsure)
        async def charge(order: str, ctx: perdure.Context) -> str:
            self.tries.append(ctx.effect_id)
            if charged or len(self.tries) > 1:
                self.ids.append(ctx.effect_id)
            if len(self.tries) == 1:
                self.entered.set()
                await asyncio.Event().wait()
            return "paid"

        def model(request: Any) -> Any:
            last = request.messages[-1]
            if last["role"] == "user" and last["content"] != "something else":
                return calls(("charge", {"order": "X"}))
            return f"end: {last['content']}"

        self.agent = Agent("desk", model=FunctionModel(model), tools=[charge])

    async def is_killed(self) -> None:
        async with self.db.session("s") as s:
            # A line that the call is not on yet.
            await s.commit()
        running = asyncio.create_task(self.agent.run(self.db, session="s", message="go"))
        await self.entered.wait()
        running.cancel()
        await asyncio.wait([running])

    async def go_back(self, how: str) -> None:
        async with self.db.session("s") as s:
            if how == "rewind":
                await s.rewind(1)
            else:
                await s.fork("b", at=1)

    async def goes_on(self, how: str, message: str = "go on") -> Any:
        if how == "rewind":
            return await self.agent.run(self.db, session="s", message=message)
        async with self.db.session("s", branch="b") as s:
            s.messages.append({"role": "user", "content": message})
            await s.commit()
        return await self.agent.run(self.db, session="s", branch="b", effects="reuse")


def with_desk(
    scene: Callable[[Desk], Awaitable[None]],
    url: str,
    clock: FakeClock,
    if_unsure: str = "ask",
    *,
    charged: bool = True,
) -> None:
    async def work() -> None:
        async with perdure.open_async(url, clock=clock) as db:
            await scene(Desk(db, if_unsure, charged=charged))

    asyncio.run(work())


@pytest.mark.parametrize("charged", [True, False])
@pytest.mark.parametrize("how", ["rewind", "fork"])
@pytest.mark.parametrize("if_unsure", KINDS)
def test_an_agent_whose_model_asks_again_is_never_told_that_it_was_done(
    url: str, clock: FakeClock, if_unsure: str, how: str, charged: bool
) -> None:
    async def scene(desk: Desk) -> None:
        await desk.is_killed()
        await desk.go_back(how)
        end = await desk.goes_on(how)
        check(desk, if_unsure, end.text, desk.tries[0], charged)
        assert end.status == ("in_doubt" if if_unsure == "ask" else "done")
        if if_unsure == "report":
            assert "nobody knows whether this was done" in end.text

    with_desk(scene, url, clock, if_unsure, charged=charged)


@pytest.mark.parametrize("how", ["rewind", "fork"])
def test_an_outcome_that_is_reported_meanwhile_is_taken_and_the_call_not_made(
    url: str, clock: FakeClock, how: str
) -> None:
    """It was made a second time under its id: it had been taken for one that was just written as started."""

    async def scene(desk: Desk) -> None:
        await desk.is_killed()
        await desk.go_back(how)
        assert await desk.db.post_outcome("s", desk.tries[0], "paid late")
        end = await desk.goes_on(how)
        assert (end.status, end.text, len(desk.tries)) == ("done", "end: paid late", 1)

    with_desk(scene, url, clock)


def test_what_is_reported_of_a_call_that_nobody_asks_for_again_settles_it(url: str, clock: FakeClock) -> None:
    async def scene(desk: Desk) -> None:
        await desk.is_killed()
        await desk.go_back("rewind")
        assert (await desk.goes_on("rewind", "something else")).status == "done"
        assert (await desk.db.sessions(status="in_doubt"))[0].id == "s", "it goes on, and stays listed"
        assert await desk.db.post_outcome("s", desk.tries[0], "paid")
        await desk.goes_on("rewind", "something else")
        assert not await desk.db.sessions(status="in_doubt")
        assert (await perdure.why_async(desk.db, "s")).severity == "ok"
        # Known since: who asks for it now is given that.
        assert (await desk.goes_on("rewind")).text == "end: paid"
        assert len(desk.tries) == 1

    with_desk(scene, url, clock)


@pytest.mark.parametrize("if_unsure", KINDS)
def test_an_agreed_call_that_was_killed_is_that_one_after_a_rewind_to_its_question(
    db: perdure.Database, if_unsure: str
) -> None:
    shop = Shop(if_unsure, charged=True, approve=True)
    with db.session("s") as s:
        s.commit()
        with pytest.raises(perdure.ApprovalNeeded) as asked:
            s.call(shop.charge, "X")
        at = s.step
        db.approve("s", asked.value.approval, by="ana")
        with pytest.raises(KeyboardInterrupt):
            s.call(shop.charge, "X")
        s.reload()
        s.rewind(at)
        assert [e["status"] for e in s.effects()] == ["planned", "in_doubt"]
        with suppress(perdure.InDoubt):
            s.call(shop.charge, "X")
        check(shop, if_unsure, "", shop.tries[0], True)
        assert {e["id"] for e in s.effects()} == {shop.tries[0]}
        assert len(s.effects()) == 1


@pytest.mark.parametrize("if_unsure", KINDS)
def test_a_call_that_raised_is_known_after_a_rewind(db: perdure.Database, if_unsure: str) -> None:
    made: list[str] = []

    def look(order: str) -> Any:
        return perdure.Unknown if len(made) < 2 else perdure.Done("found")

    unsure: Any = look if if_unsure == "function" else if_unsure

    @perdure.tool(if_unsure=unsure)
    def charge(order: str, ctx: perdure.Context) -> str:
        made.append(ctx.effect_id)
        if len(made) == 1:
            raise KeyError("after the charge")
        return "paid"

    with db.session("s") as s:
        s.commit()
        with pytest.raises(perdure.EffectRaised):
            s.call(charge, "X")
        s.rewind(1)
        match if_unsure:
            case "retry":
                assert s.call(charge, "X") == "paid"
                assert made == [made[0]] * 2
            case "ask":
                with pytest.raises(perdure.ApprovalNeeded) as asked:
                    s.call(charge, "X")
                assert "the same call ended with KeyError" in asked.value.approval.because
            case "report":
                with pytest.raises(perdure.EffectFailed, match="it is refused until a person has said"):
                    s.call(charge, "X")
                s.resolve(made[0], done="it was paid")
                assert s.call(charge, "X") == "it was paid"
            case _:
                with pytest.raises((perdure.EffectRaised, perdure.InDoubt)):
                    s.call(charge, "X")
        assert len(made) == 1 + (if_unsure == "retry")


def test_a_call_of_another_run_that_is_in_doubt_is_told_of_as_what_it_is(db: perdure.Database) -> None:
    shop = Shop("ask", charged=True)
    with db.session("s") as s:
        s.commit()
        with pytest.raises(KeyboardInterrupt):
            s.run("july", lambda r: r.call(shop.charge, "X"))
    with db.session("s") as s:
        s.rewind(1)
        with pytest.raises(perdure.DoneElsewhere, match=r"before a rewind .*, and nobody knows whether it was done"):
            s.run("august", lambda r: r.call(shop.charge, "X"))


def test_a_large_argument_of_a_call_that_is_left_behind_is_kept(db: perdure.Database, clock: FakeClock) -> None:
    @perdure.tool
    def lost(what: str) -> str:
        raise TimeoutError

    with db.session("s") as s:
        s.commit()
        with pytest.raises(perdure.InDoubt):
            s.call(lost, "x" * 100_000)
        s.rewind(1)
        assert s.effects()[0]["args"] == {"what": "x" * 100_000}
    with db.session("s") as s:
        assert s.effects()[0]["args"] == {"what": "x" * 100_000}
