"""Who uses what an awaited handle returns without awaiting it is told so; whatever awaits, takes it for a coroutine."""

from __future__ import annotations

import asyncio
import collections.abc
import gc
import inspect
import operator
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import AsyncDatabase, AsyncSession
from perdure.agent.agent import Agent
from perdure.agent.models.scripted import ScriptedModel
from perdure.agent.replay.recorded_session import RecordedModel
from perdure.errors import Misuse
from perdure.fleet.board import board_of
from perdure.fleet.worker import Worker, start_worker
from perdure.server.app import create_app
from perdure.system.flow import Awaited

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

USES: dict[str, Callable[[Any], Any]] = {
    "attribute": lambda r: r.vars,
    "item": lambda r: r["a"],
    "set item": lambda r: operator.setitem(r, "a", 1),
    "iteration": list,
    "contains": lambda r: "a" in r,
    "length": len,
    "truth": lambda r: 1 if r else 2,
    "call": lambda r: r(),
    "sum": lambda r: r + 1,
    "sum from the right": lambda r: 1 + r,
    "product": lambda r: 2 * r,
    "less": lambda r: r < 3,
    "equal": lambda r: r == 5,
    "not equal": lambda r: r != "done",
    "text": str,
    "format": lambda r: f"{r}",
    "join": lambda r: "the answer is " + r,
    "number": int,
    "none": lambda r: r == None,  # noqa: E711
}


def agent() -> Agent:
    return Agent("a", model=ScriptedModel(["hello"]))


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_the_result_is_used_before_it_is_there(use: Callable[[Any], Any]) -> None:
    async def work() -> None:
        async with perdure.open_async("memory://") as db, db.session("s") as s:
            await s.commit()
            for start, said in (
                (lambda: db.read("s"), "db.read"),
                (lambda: db.post("s", "hi"), "db.post"),
                (lambda: s.call(lambda: 5), "s.call"),
                (lambda: s.run("k", lambda s: 1), "s.run"),
                (lambda: s.fork("b"), "s.fork"),
                (lambda: s.commit("x"), "s.commit"),
                (lambda: agent().run(db, session="t", message="hi"), "agent.run"),
                (lambda: perdure.submit_async(db, "t", agent="a"), "perdure.submit_async"),
                (lambda: perdure.why_async(db, "s"), "perdure.why_async"),
                (lambda: perdure.run_on(db, agent(), "s", "main"), "perdure.run_on"),
                (lambda: perdure.branch_off(db, "s", "b", at=1), "perdure.branch_off"),
                (lambda: RecordedModel.of(db, "s"), "RecordedModel.of"),
            ):
                with pytest.raises(Misuse) as e:
                    use(start())
                assert f"{said}(...) was not awaited, so " in str(e.value)
                assert f"write `result = await {said}(...)`" in str(e.value)
            assert await s.fork("b") is not None
            assert [c.step for c in await db.history("s", branch="b")] == [2, 1]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(work())
        gc.collect()


def test_with_around_a_result_is_told() -> None:
    async def work() -> None:
        async with perdure.open_async("memory://") as db:
            result: Any = db.read("s")
            with pytest.raises(Misuse, match=r"write `result = await db\.read"), result:
                pass
            result = db.read("s")
            with pytest.raises(Misuse, match=r"write `result = await db\.read"):
                async with result:
                    pass
            opening: Any
            for use in (lambda r: r["a"], str, bool, lambda r: r()):
                opening = db.session("s")
                with pytest.raises(Misuse, match=r"not open yet, .*write `async with db\.session\(\.\.\.\) as s`"):
                    use(opening)

    asyncio.run(work())


def awaitings() -> dict[str, Callable[[Any], Awaitable[Any]]]:
    async def plainly(r: Any) -> Any:
        return await r

    async def gathered(r: Any) -> Any:
        return (await asyncio.gather(r))[0]

    async def in_group(r: Any) -> Any:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(r)
        return task.result()

    async def by_runner(r: Any) -> Any:
        (done,), _ = await asyncio.wait({asyncio.ensure_future(r)})
        return done.result()

    async def in_thread(r: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(r, loop).result())

    async def as_completed(r: Any) -> Any:
        for one in asyncio.as_completed([r]):
            return await one

    async def by_anyio(r: Any) -> Any:
        anyio = pytest.importorskip("anyio")
        found: list[Any] = []

        async def into() -> None:
            found.append(await r)

        async with anyio.create_task_group() as group:
            group.start_soon(into)
        return found[0]

    return {
        "await": plainly,
        "gather": gathered,
        "create_task": asyncio.create_task,
        "wait_for": lambda r: asyncio.wait_for(r, 10),
        "shield": asyncio.shield,
        "TaskGroup": in_group,
        "ensure_future": by_runner,
        "run_coroutine_threadsafe": in_thread,
        "as_completed": as_completed,
        "anyio": by_anyio,
    }


@pytest.mark.parametrize("way", awaitings())
@pytest.mark.parametrize("debug", [False, True])
def test_everything_that_awaits_takes_it(way: str, debug: bool) -> None:
    async def work() -> None:
        async with perdure.open_async("memory://") as db:
            async with await awaitings()[way](db.session("s")) as s:
                s.vars["a"] = 1
                await awaitings()[way](s.commit())
                assert await awaitings()[way](s.call(lambda: 5)) == 5
            assert (await awaitings()[way](db.read("s"))).vars == {"a": 1}
            with pytest.raises(BaseException) as e:  # noqa: PT011 - a group wraps it
                await awaitings()[way](db.read("none"))
            assert "there is no session 'none'" in repr(e.value)

    asyncio.run(work(), debug=debug)


def test_anyio_starts_a_method_itself() -> None:
    anyio = pytest.importorskip("anyio")

    async def work() -> None:
        async with perdure.open_async("memory://") as db:
            async with anyio.create_task_group() as group:
                group.start_soon(db.post, "s", "hi")
            assert len(await anyio.to_thread.run_sync(lambda: anyio.from_thread.run(db.inbox, "s"))) == 1

    asyncio.run(work())


def test_it_is_a_coroutine_to_whoever_asks() -> None:
    async def work() -> None:
        async with perdure.open_async("memory://") as db:
            one, other = db.read("s"), db.read("s")
            assert inspect.isawaitable(one)
            assert inspect.iscoroutine(one)
            assert asyncio.iscoroutine(one)
            assert isinstance(one, collections.abc.Coroutine)
            assert inspect.getcoroutinestate(one) == inspect.CORO_CREATED
            assert "read" in repr(one)
            assert one == one  # noqa: PLR0124
            assert one != other
            assert [other, one].index(one) == 1
            assert len({one, other}) == 2
            task = asyncio.create_task(one)
            assert "read" in repr(task)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            other.close()

    asyncio.run(work())
    for fn in (AsyncDatabase.read, AsyncSession.commit, agent().run, perdure.why_async, RecordedModel.of):
        assert inspect.iscoroutinefunction(fn), fn
        assert asyncio.iscoroutinefunction(fn), fn
    assert next(iter(inspect.signature(agent().run).parameters)) == "db"
    assert isinstance(vars(AsyncDatabase)["read"], Awaited)


def test_one_that_runs_already_is_not_ended_by_who_looks_at_it() -> None:
    async def work() -> None:
        async with perdure.open_async("memory://") as db:
            running = db.post("s", "hi")
            task = asyncio.create_task(running)
            await asyncio.sleep(0)
            with pytest.raises(Misuse):
                str(running)
            await task
            assert len(await db.inbox("s")) == 1

    asyncio.run(work())


def test_a_database_of_the_other_kind(tmp_path: Path) -> None:
    blocks = r"this one blocks: open it with `async with perdure\.open_async\(\.\.\.\) as db`"

    async def work() -> None:
        wrong: Any
        db: Any
        async with perdure.open_async(tmp_path / "a.db") as db:
            wrong = db
            with pytest.raises(Misuse, match=r"write `await perdure\.submit_async\(\.\.\.\)` in the place"):
                perdure.submit(wrong, "s", agent="a")
            with pytest.raises(Misuse, match="pass start_worker its URL, not AsyncDatabase"):
                await start_worker([agent()], wrong)
        with perdure.open("memory://") as wrong:
            for start in (
                lambda: perdure.submit_async(wrong, "s", agent="a"),
                lambda: perdure.why_async(wrong, "s"),
                lambda: perdure.run_on(wrong, agent(), "s", "main"),
                lambda: perdure.branch_off(wrong, "s", "b", at=1),
                lambda: RecordedModel.of(wrong, "s"),
                lambda: anext(perdure.follow(wrong, "s")),
            ):
                with pytest.raises(Misuse, match=blocks):
                    await start()
            for made in (lambda: create_app(wrong, token=None), lambda: Worker(wrong, [])):
                with pytest.raises(Misuse, match=blocks):
                    made()
            with pytest.raises(Misuse, match=r"this database blocks: `with perdure\.open\(\.\.\.\)`"):
                await wrong
            session: Any = wrong.session("s")
            with pytest.raises(Misuse, match=r"this session blocks: `with db\.session"):
                await session
        wrong = "memory://"
        with pytest.raises(Misuse, match=r"str is none: open it with `async with perdure\.open_async"):
            await perdure.why_async(wrong, "s")
        with perdure.open("memory://") as db, pytest.raises(Misuse, match="copy_to takes an open database, not str"):
            db.copy_to(wrong)
        for call in (lambda: perdure.why(wrong, "s"), lambda: perdure.submit(wrong, "s", agent="a"),
                     lambda: board_of(wrong)):  # fmt: skip
            with pytest.raises(Misuse, match=r"takes an open database, not str: open it with `with perdure\.open"):
                call()

    asyncio.run(work())
