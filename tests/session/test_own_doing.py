"""A handle never meets its own doing as a conflict, and a conflict says what is known of whoever moved the head."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import perdure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

THIS_PROCESS = "made by this process"


def _commit(s: Any) -> Any:
    return s.commit(note="one more")


DOING: dict[str, Callable[[Any], Any]] = {
    "commit": _commit,
    "fork": lambda s: s.fork("forked"),
    "fork of a step": lambda s: s.fork("early", at=1),
    "tag": lambda s: s.tag("t"),
    "rewind": lambda s: s.rewind(1),
    "merge": lambda s: s.merge("side"),
    "reload": lambda s: s.reload(),
}
PAIRS = list(itertools.permutations(DOING, 2))


async def _prepared(s: Any) -> None:
    for n in range(3):
        s.vars[f"n{n}"] = n
        await s.commit()
    await s.fork("side", at=2)


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=[f"{a} and {b}" for a, b in PAIRS])
def test_tasks_of_one_handle_never_conflict_with_each_other(one: str, other: str):
    async def main() -> None:
        async with perdure.open_async("memory://") as db, db.session("s") as s:
            await _prepared(s)
            await asyncio.gather(DOING[one](s), DOING[other](s))
            s.vars["after"] = True
            await s.commit()

    asyncio.run(main())


@pytest.mark.parametrize("lease", [True, False])
def test_threads_of_one_handle_never_conflict_with_each_other(url: str, lease: bool):
    failed: list[Exception] = []
    with perdure.open(url) as db, db.session("s", lease=lease) as s:
        s.vars["n"] = 0
        s.commit()
        begin = threading.Barrier(4)

        def work(number: int) -> None:
            begin.wait()
            try:
                for n in range(5):
                    s.fork(f"b{number}-{n}")
                    s.commit(note="one more")
                    s.rewind(1)
            except Exception as e:
                failed.append(e)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []


def test_edits_that_come_while_a_rewind_looks_for_its_place_refuse_it_and_are_committed():
    async def main() -> None:
        async with perdure.open_async("memory://") as db, db.session("s") as s:
            await _prepared(s)

            async def edit() -> None:
                s.vars["mine"] = 1
                await s.commit()

            refused, _ = await asyncio.gather(s.rewind(1), edit(), return_exceptions=True)
            assert isinstance(refused, perdure.Misuse)
            assert "not committed" in str(refused)
            assert (await db.read("s")).vars["mine"] == 1

    asyncio.run(main())


def test_a_conflict_with_another_handle_of_this_process_says_so(db: perdure.Database):
    one, two = db.session("s", lease=False), db.session("s", lease=False)
    one.commit()
    two.vars["a"] = 1
    with pytest.raises(perdure.Conflict, match=THIS_PROCESS):
        two.commit()
    two.reload()
    one.commit(note="moved on")
    one.fork("side", at=1)
    with pytest.raises(perdure.Conflict, match=THIS_PROCESS):
        two.rewind(1)
    with pytest.raises(perdure.Conflict, match=THIS_PROCESS):
        two.merge("side")


def test_a_conflict_with_ones_own_cancelled_commit_does_not_blame_another_writer(url: str):
    async def main() -> None:
        async with perdure.open_async(url) as db:
            first = await db.session("s", lease=False)
            await first.commit()
            go, append = threading.Event(), db.kernel.store.append

            def slow(batch: Any) -> Any:
                go.wait(30)
                return append(batch)

            db.kernel.store.append = slow  # type: ignore[method-assign]
            first.vars["a"] = 1
            task = asyncio.create_task(first.commit())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            second = await db.session("s", lease=False)
            second.vars["b"] = 1
            go.set()
            with pytest.raises(perdure.Conflict, match=THIS_PROCESS) as conflict:
                await second.commit()
            assert "another writer" not in str(conflict.value)
            # The handle itself knows that it was its own.
            first.vars["a"] = 2
            assert (await first.commit()).step == 3

    asyncio.run(main())


def test_a_conflict_with_another_process_does_not_call_it_this_one(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/s.db"
    with perdure.open(url) as db:
        s = db.session("s", lease=False)
        s.vars["a"] = 1
        other = f"import perdure; db = perdure.open({url!r}); db.session('s', lease=False).commit(); db.close()"
        subprocess.run([sys.executable, "-c", other], check=True)
        with pytest.raises(perdure.Conflict, match=r"the head has moved|is another checkpoint") as conflict:
            s.commit()
        assert "this process" not in str(conflict.value)
