"""Runs whose calls go on side by side: killed at any moment they end as if they never had been."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest

import perdure
from perdure import tool
from perdure.errors import Unavailable
from perdure.session import runs


class Dying:
    """A store that lets so many checkpoints through and then none, as if the process had been killed there."""

    def __init__(self, db: Any) -> None:
        self.store = db.kernel.store
        self.append = self.store.append
        self.left = 10**9
        self.answers = True
        self.store.append = self._append

    def _append(self, items: Any) -> Any:
        if self.left < len(items):
            raise Unavailable("killed")
        self.left -= len(items)
        answers = self.append(items)
        if not self.left and not self.answers:
            raise Unavailable("killed before the answer")
        return answers


class Work:
    """Tasks side by side, each with calls, and edits before and after each of them."""

    def __init__(self, shape: str, width: int = 3) -> None:
        self.shape = shape
        self.width = width
        self.done: list[tuple[int, str]] = []

        @tool(if_unsure="retry")
        async def act(n: int, ctx: perdure.Context) -> int:
            await asyncio.sleep(0.002 * (width - n % 10))
            if (n, ctx.effect_id) not in self.done:
                self.done.append((n, ctx.effect_id))
            return n

        self.act = act

    async def one(self, s: Any, n: int) -> None:
        s.messages.append(f"begin {n}")
        held = s.vars.setdefault("results", [])
        for m in (n, 10 + n) if self.shape != "once" else (n,):
            if self.shape == "messages":
                s.messages.extend(f"told {told.body}" for told in await s.take(limit=1))
            got = await s.call(self.act, m)
            s.messages.append(f"got {got}")
            s.vars["sum"] = s.vars.get("sum", 0) + got
            if self.shape == "commits":
                await s.commit()
            held.append(got)

    async def __call__(self, s: Any) -> str:
        s.messages.append("before")
        tasks = [asyncio.ensure_future(self.one(s, n)) for n in range(self.width)]
        for task in tasks:
            # Whoever dies is not waited for by the run: nobody is to be told later, in the middle of another test.
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        if self.shape == "messages":
            # The run itself goes on, too.
            await self.one(s, 5)
        await asyncio.gather(*tasks)
        s.messages.append("joined")
        await s.commit()
        s.messages.append(f"total {await s.call(self.act, 100 + s.vars['sum'])}")
        return "done"


def seen(found: Any) -> Any:
    return sorted(m for m in found.messages if m != "other"), found.vars["sum"], sorted(found.vars["results"])


async def attempt(db: Any, name: str, key: str, fn: Any) -> Any:
    s = await db.session(name)
    try:
        return await s.run(key, fn)
    finally:
        for task in (others := asyncio.all_tasks() - {asyncio.current_task()}):
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await s.release()


@pytest.mark.parametrize("shape", ["once", "chains", "commits", "messages"])
@pytest.mark.parametrize("others", [False, True], ids=["alone", "others commit"])
def test_parallel_calls_die_at_every_checkpoint_and_the_run_ends_as_if_they_never_had(shape: str, others: bool) -> None:
    async def main() -> None:
        async with perdure.open_async("memory://") as db:
            work = Work(shape)
            for name in ["whole", *(f"s{n}" for n in range(1, 60))] if shape == "messages" else []:
                for n in range(4):
                    await db.post(name, n, key=str(n))
            await attempt(db, "whole", "r", work)
            whole = await db.read("whole")
            expected, steps = seen(whole), whole.step
            for kill_after in range(1, steps):
                dying, work, name = Dying(db), Work(shape), f"s{kill_after}"
                dying.answers = bool(kill_after % 2)
                for again in range(6):
                    # Dies once more where it went on, and again further on, before it is let through.
                    dying.left = (kill_after, 3, 2, 4, 3)[again] if again < 5 else 10**9
                    try:
                        assert await attempt(db, name, "r", work) == "done"
                        break
                    except (Unavailable, perdure.OutcomeUnknown):
                        pass
                    dying.left = 10**9
                    if others:
                        async with db.session(name) as s:
                            s.vars["others"] = s.vars.get("others", 0) + 1
                            s.messages.append("other")
                            await s.commit()
                dying.store.append = dying.append
                found = await db.read(name)
                assert seen(found) == expected, kill_after
                assert len(work.done) == len({n for n, _ in work.done}), kill_after

    asyncio.run(main())


class Threads:
    """The same in threads: the last of them is first to have its outcome."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.turns = [threading.Event() for _ in range(3)]

        @tool(if_unsure="retry")
        def act(n: int) -> int:
            if n < 2:
                # Not for ever: of one that dies, the others are not told.
                self.turns[n + 1].wait(0.2)
            if n not in self.done:
                self.done.append(n)
            return n

        self.act = act

    def __call__(self, s: Any) -> None:
        failed: list[BaseException] = []

        def one(n: int) -> None:
            try:
                s.messages.append(f"begin {n}")
                s.messages.append(f"got {s.call(self.act, n)}")
            except perdure.PerdureError as e:
                failed.append(e)
            self.turns[n].set()

        threads = [threading.Thread(target=one, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        s.commit()


def test_threads_of_a_run_die_and_it_ends_as_if_they_never_had() -> None:
    for kill_after in range(1, 10):
        work = Threads()
        with perdure.open("memory://") as db:
            dying = Dying(db)
            dying.left = kill_after
            with suppress(Unavailable, perdure.OutcomeUnknown), db.session("s") as s:
                s.run("r", work)
            dying.left = 10**9
            with db.session("s") as s:
                s.vars["other"] = 1
                s.commit()
                s.run("r", work)
            found = db.read("s")
            assert sorted(found.messages) == [f"{what} {n}" for what in ("begin", "got") for n in range(3)], kill_after
            assert sorted(work.done) == [0, 1, 2]


def test_a_parallel_call_that_is_made_no_more_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LOOKS", 500)
    work = Work("once")

    async def fewer(s: Any) -> None:
        await asyncio.gather(*(work.one(s, n) for n in range(2)))

    async def main() -> None:
        async with perdure.open_async("memory://") as db:
            dying = Dying(db)
            # The run's beginning, and three calls with their outcomes, in whatever order they come.
            dying.left = 7
            with pytest.raises(Unavailable):
                await attempt(db, "s", "r", work)
            dying.left = 10**9
            before = (await db.read("s")).step
            with pytest.raises(perdure.Diverged, match="1 more commits or calls"):
                await attempt(db, "s", "r", fewer)
            assert (await db.read("s")).step == before

    asyncio.run(main())
