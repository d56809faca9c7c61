"""The awaited edge: the same flows, group commit, cancellation."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import tool
from perdure.system import faults
from perdure.testing.clock import FakeClock

if TYPE_CHECKING:
    from pathlib import Path


def test_a_session_awaited_does_what_a_blocking_one_does(url: str, clock: FakeClock) -> None:
    async def main() -> None:
        async with perdure.open_async(url, clock=clock) as db:
            async with db.session("s", owner="ana") as s:
                s.messages.append("hi")
                assert (await s.commit()).step == 1
                await s.fork("b")
                await s.switch("b")
                s.vars["x"] = 1
                await s.commit()
                await s.switch("main")
                await s.merge("b")
                await s.tag("t")
            assert (await db.read("s")).vars == {"x": 1}
            assert len(await db.history("s")) == 2
            await db.post("s", "m", key="k")
            s = await db.session("s")
            assert [m.body for m in await s.take()] == ["m"]
            await s.commit()
            await s.release()

    asyncio.run(main())


def test_many_sessions_at_once_share_batches(url: str, clock: FakeClock) -> None:
    async def main() -> None:
        async with perdure.open_async(url, clock=clock) as db:
            sizes: list[int] = []
            append = db.kernel.store.append

            def counted(batch: Any) -> Any:
                sizes.append(len(batch))
                return append(batch)

            db.kernel.store.append = counted  # type: ignore[method-assign]

            async def one(name: str) -> None:
                async with db.session(name) as s:
                    for i in range(10):
                        s.messages.append(i)
                        await s.commit()

            await asyncio.gather(*(one(f"s{n}") for n in range(30)))
            assert sum(sizes) == 300
            assert max(sizes) > 1
            for n in range(30):
                assert (await db.read(f"s{n}")).messages == list(range(10))

    asyncio.run(main())


def test_parallel_calls_each_record_their_outcome(url: str, clock: FakeClock) -> None:
    done: list[int] = []

    @tool(if_unsure="retry")
    async def act(n: int) -> int:
        await asyncio.sleep(0.001 * (3 - n))
        done.append(n)
        return n * n

    @tool
    def block(n: int) -> int:
        return -n

    async def work(s: Any) -> list[int]:
        return list(await asyncio.gather(*(s.call(act, n) for n in range(3)), s.call(block, 7)))

    async def main() -> None:
        async with perdure.open_async(url, clock=clock) as db:
            async with db.session("s") as s:
                assert await s.run("r", work) == [0, 1, 4, -7]
                assert await s.run("r", work) == [0, 1, 4, -7]
            assert sorted(done) == [0, 1, 2]

    asyncio.run(main())


def test_parallel_outcomes_remember_the_step_they_were_written_at(url: str, clock: FakeClock) -> None:
    @tool
    async def act(n: int) -> int:
        await asyncio.sleep(0)
        return n

    async def main() -> None:
        async with perdure.open_async(url, clock=clock) as db, db.session("s") as s:
            await asyncio.gather(*(s.call(act, n) for n in range(8)))
            done = {c.more["effect"]: c.step for c in await db.history("s") if c.kind == "done"}
            assert {e["id"]: e["where"][1] for e in s.effects()} == done

    asyncio.run(main())


def test_a_cancelled_commit_still_lands(url: str, clock: FakeClock) -> None:
    async def main() -> None:
        async with perdure.open_async(url, clock=clock) as db, db.session("s") as s:
            s.vars["a"] = 1
            task = asyncio.ensure_future(s.commit())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            s.vars["b"] = 2
            await s.commit()
            assert (await db.read("s")).vars == {"a": 1, "b": 2}
            assert (await db.read("s", at=1)).vars == {"a": 1}

    asyncio.run(main())


class Slow:
    """Stands before something a store does: it is asked, and answers once it is let through."""

    def __init__(self, db: Any, what: str) -> None:
        self._answer = getattr(db.kernel.store, what)
        self.asked, self.go = threading.Event(), threading.Event()
        setattr(db.kernel.store, what, self)

    def __call__(self, *args: Any) -> Any:
        self.asked.set()
        assert self.go.wait(30)
        return self._answer(*args)


def test_a_reload_waits_for_a_cancelled_commit_that_is_still_on_its_way(url: str, clock: FakeClock) -> None:
    async def main() -> None:
        async with perdure.open_async(url, clock=clock) as db, db.session("s") as s:
            await s.commit()
            slow = Slow(db, "append")
            s.messages.append(1)
            commit = asyncio.ensure_future(s.commit())
            assert await asyncio.to_thread(slow.asked.wait, 30)
            commit.cancel()
            await asyncio.gather(commit, return_exceptions=True)
            reload = asyncio.ensure_future(s.reload())
            await asyncio.wait([reload], timeout=0.1)
            slow.go.set()
            await reload
            stored = await db.read("s")
            assert (s.messages, s.step) == (stored.messages, stored.step) == ([1], 2)

    asyncio.run(main())


@pytest.mark.parametrize("move", ["reload", "switch"])
def test_a_handle_does_not_move_while_a_commit_is_on_its_way(url: str, clock: FakeClock, move: str) -> None:
    async def main() -> None:
        async with perdure.open_async(url, clock=clock) as db, db.session("s") as s:
            await s.commit()
            await s.fork("b")
            look, append = Slow(db, "look"), Slow(db, "append")
            moving = asyncio.ensure_future(s.reload() if move == "reload" else s.switch("b"))
            assert await asyncio.to_thread(look.asked.wait, 30)
            s.messages.append(1)
            commit = asyncio.ensure_future(s.commit())
            await asyncio.to_thread(append.asked.wait, 0.2)
            look.go.set()
            await asyncio.wait([moving], timeout=0.2)
            append.go.set()
            refused, landed = await asyncio.gather(moving, commit, return_exceptions=True)
            assert not isinstance(landed, BaseException)
            if move == "switch":
                # It would leave the edit behind.
                assert isinstance(refused, perdure.Misuse)
                assert s.branch == "main"
            s.messages.append(2)
            await s.commit()
            stored = await db.read("s", branch=s.branch)
            assert (s.messages, s.step) == (stored.messages, stored.step)
            assert (await db.verify()).findings == ()

    asyncio.run(main())


def test_a_run_begins_where_the_handle_stands_once_it_has_moved(url: str, clock: FakeClock) -> None:
    async def work(s: Any) -> str:
        return "done"

    async def main() -> None:
        async with perdure.open_async(url, clock=clock) as db, db.session("s") as s:
            await s.commit()
            slow = Slow(db, "look")
            reload = asyncio.ensure_future(s.reload())
            assert await asyncio.to_thread(slow.asked.wait, 30)
            run = asyncio.ensure_future(s.run("r", work))
            await asyncio.sleep(0.05)
            slow.go.set()
            assert await asyncio.gather(reload, run) == [None, "done"]
            assert await s.run("r", work) == "done"
            assert [c.kind for c in await db.history("s")].count("run_ended") == 1

    asyncio.run(main())


def test_a_release_that_is_cancelled_before_it_began_lets_the_lease_go(url: str) -> None:
    async def main() -> None:
        async with perdure.open_async(url, lease_ttl=3600) as db:
            s = await db.session("s")
            busy = Slow(db, "look")
            looks = [asyncio.ensure_future(db.driver.call(db.kernel.store.look, "s")) for _ in range(8)]
            assert await asyncio.to_thread(busy.asked.wait, 30)
            release = asyncio.ensure_future(s.release())
            await asyncio.sleep(0.05)
            release.cancel()
            await asyncio.gather(release, return_exceptions=True)
            busy.go.set()
            await asyncio.gather(*looks)
            await asyncio.to_thread(db.caretaker.heartbeat.renew)
            await (await db.session("s")).release()
            assert s.journal.guard.closed  # it was kept, and so would be what it holds

    asyncio.run(main())


def test_edits_made_while_a_rewind_is_on_its_way_are_not_swallowed(url: str, clock: FakeClock) -> None:
    async def main() -> None:
        async with perdure.open_async(url, clock=clock) as db, db.session("s") as s:
            for n in range(3):
                s.messages.append(n)
                await s.commit()
            slow = Slow(db, "append")
            rewind = asyncio.ensure_future(s.rewind(1))
            assert await asyncio.to_thread(slow.asked.wait, 30)
            s.messages.append("meanwhile")
            slow.go.set()
            with pytest.raises(perdure.Conflict, match=r"has landed.*reload\(\) and make them again"):
                await rewind
            with pytest.raises(perdure.Conflict):
                await s.commit()
            await s.reload()
            s.messages.append("again")
            await s.commit()
            assert (await db.read("s")).messages == [0, "again"]

    asyncio.run(main())


def test_one_conflict_does_not_fail_its_neighbours(url: str, clock: FakeClock) -> None:
    async def main() -> None:
        async with perdure.open_async(url, clock=clock) as db:
            handles = [await db.session("one", lease=False) for _ in range(5)]
            other = await db.session("other")
            for i, s in enumerate([*handles, other]):
                s.vars["i"] = i
            answers = await asyncio.gather(*(s.commit() for s in [*handles, other]), return_exceptions=True)
            won = [a for a in answers[:5] if not isinstance(a, BaseException)]
            lost = [a for a in answers[:5] if isinstance(a, perdure.Conflict)]
            assert (len(won), len(lost)) == (1, 4)
            assert answers[5].step == 1  # type: ignore[union-attr]
            await other.release()

    asyncio.run(main())


def test_an_asynchronous_tool_needs_the_awaited_edge(tmp_path: Any) -> None:
    @tool(read=True)
    async def act() -> int:
        return 1

    with perdure.open("memory://") as db, db.session("s") as s, pytest.raises(perdure.Misuse, match="open_async"):
        s.call(act)


def test_edits_made_while_a_commit_is_on_its_way_belong_to_the_next_one(url: str, clock: FakeClock) -> None:
    async def main() -> None:
        async with perdure.open_async(url, clock=clock) as db, db.session("s") as s:
            s.vars["shot"] = b"x" * 100_000
            commit = asyncio.ensure_future(s.commit())
            for i in range(50):
                s.messages.append(i)
                await asyncio.sleep(0)
            await commit
            await s.commit()
            assert (await db.read("s")).messages == list(range(50))

    asyncio.run(main())


@pytest.mark.parametrize("when", ["before it is granted", "after it was granted", "while it is hydrated"])
def test_a_task_that_is_cancelled_while_it_opens_a_session_lets_the_lease_go(tmp_path: Path, when: str) -> None:
    reached, go = threading.Event(), threading.Event()

    def wait_at(name: str) -> None:
        point = "sqlite.acquire.before_commit" if when == "before it is granted" else "sqlite.acquire.after_commit"
        if when != "while it is hydrated" and name == point and not go.is_set():
            reached.set()
            assert go.wait(30)

    async def main() -> None:
        async with perdure.open_async(f"sqlite:///{tmp_path}/a.db", lease_ttl=3600) as db:
            if when == "while it is hydrated":
                look = db.kernel.store.look

                def slow(session: str) -> Any:
                    reached.set()
                    assert go.wait(30)
                    return look(session)

                db.kernel.store.look = slow  # type: ignore[method-assign]

            async def opened() -> None:
                async with db.session("s"):
                    raise AssertionError("it was cancelled")

            task = asyncio.create_task(opened())
            await asyncio.to_thread(reached.wait, 30)
            task.cancel()
            await asyncio.sleep(0)
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            row = None
            for _ in range(200):
                row = await asyncio.to_thread(db.kernel.store.look, "s")
                if row is not None and row.lease.token and not row.lease.holder:
                    break
                await asyncio.sleep(0.02)
            assert row is not None
            assert (row.lease.token, row.lease.holder) == (1, ""), "nobody holds it"
            async with db.session("s") as s:
                await s.commit()

    faults.hook = wait_at
    try:
        asyncio.run(main())
    finally:
        faults.hook = None
