"""A database that everybody has let go without closing it keeps no thread and no lease."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from typing import Any

import pytest

import perdure
from perdure.upkeep.snapshots import PACK_MIN


def threads() -> set[threading.Thread]:
    return {
        t for t in threading.enumerate() if t.name in ("perdure-heartbeat", "perdure-housekeeper", "perdure-writer")
    }


def ended(those: set[threading.Thread]) -> bool:
    gc.collect()
    for thread in those:
        thread.join(30)
    return not any(thread.is_alive() for thread in those)


@pytest.fixture
def told() -> Any:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield told


def said(told: list[warnings.WarningMessage]) -> list[str]:
    return [str(w.message) for w in told if w.category is ResourceWarning and "was never closed" in str(w.message)]


def test_its_threads_end_its_leases_go_and_somebody_is_told_once(url: str, told: Any):
    before = threads()
    db = perdure.open(url, lease_ttl=0.3)
    s = db.session("s")
    for n in range(PACK_MIN):
        s.vars["n"] = n
        s.commit()
    s.release()
    s = db.session("s")
    mine = threads() - before
    assert {t.name for t in mine} == {"perdure-heartbeat", "perdure-housekeeper"}
    named = db.url
    del s, db
    assert ended(mine)
    assert len(said(told)) == 1
    assert named in said(told)[0]
    with perdure.open(url) as other:
        other.session("s").release()


def test_an_awaited_one_ends_its_writer_too(tmp_path: Any, told: Any):
    before = threads()

    async def main() -> None:
        db = perdure.open_async(f"sqlite:///{tmp_path}/a.db", lease_ttl=0.3)
        s = await db.session("s")
        await s.commit()

    asyncio.run(main())
    assert ended(threads() - before)
    assert len(said(told)) == 1


def test_whoever_has_a_session_of_it_goes_on(told: Any):
    before = threads()
    s = perdure.open("memory://", lease_ttl=0.3).session("s")
    gc.collect()
    beat = threading.Event()
    s.journal.caretaker.heartbeat.listen(lambda what, _: beat.set() if what == "." else None)  # type: ignore[union-attr]
    assert beat.wait(30)
    s.vars["a"] = 1
    s.commit()
    assert said(told) == []
    del s
    assert ended(threads() - before)
    assert len(said(told)) == 1


def test_one_that_was_closed_is_not_called_forgotten(url: str, told: Any):
    before = threads()
    with perdure.open(url) as db, db.session("s") as s:
        s.commit()
    del db, s
    gc.collect()
    assert threads() <= before
    assert said(told) == []
