"""Sessions whose time has run out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure.errors import Gone
from perdure.system import faults
from perdure.testing.clock import FakeClock
from tests.upkeep.aging import fill, killed_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    """No test leaves its hook behind."""
    yield
    faults.hook = None


def test_sessions_whose_time_has_run_out_are_removed_and_leave_a_tombstone(db: perdure.Database, clock: FakeClock):
    fill(db, "short", 3, ttl=60)
    fill(db, "long", 3, ttl=6000)
    fill(db, "ever", 3, ttl=None)
    clock.advance(61_000)
    told: list[tuple[str, int]] = []
    assert db.sweep(progress=lambda id, n: told.append((id, n))) == (1, 0, (), (), 0)
    assert told == [("short", 1)]
    assert [row.id for row in db.sessions()] == ["ever", "long"]
    with pytest.raises(Gone) as gone:
        db.read("short")
    assert gone.value.reason == "expired"
    assert db.sweep().removed == 0


def test_whoever_sweeps_with_a_clock_that_is_behind_goes_by_the_time_of_the_store(
    db: perdure.Database, clock: FakeClock
):
    fill(db, "short", 3, ttl=60)
    clock.advance(61_000)
    db.kernel.clock = FakeClock(clock.wall() - 86_400_000)
    assert db.sweep().removed == 1


def test_every_commit_slides_the_time_and_the_newest_branch_counts(db: perdure.Database, clock: FakeClock):
    fill(db, ttl=60, count=2)
    clock.advance(50_000)
    with db.session("s") as s:
        s.fork("b")
        s.switch("b")
        s.vars["n"] = 1
        s.commit()
    clock.advance(50_000)
    assert db.sweep() == (0, 0, (), (), 0)
    clock.advance(11_000)
    assert db.sweep().removed == 1


def test_a_session_that_is_being_written_is_left_alone(db: perdure.Database, clock: FakeClock):
    fill(db, "a", 2, ttl=60)
    fill(db, "b", 2, ttl=60)
    clock.advance(61_000)
    lease = db.kernel.store.acquire("a", "someone", 100_000)
    assert db.sweep() == (1, 0, ("a",), (), 0)
    db.kernel.store.release(lease)
    assert db.sweep().removed == 1


def test_a_wrong_column_removes_nothing(open_db: Callable[..., perdure.Database], clock: FakeClock):
    db = open_db()
    fill(db, ttl=6000, count=2)
    store, real, looked = db.kernel.store, db.kernel.store.sessions, db.kernel.store.look

    def lies(**asked: Any) -> Any:
        asked.pop("expired", None)
        return [row._replace(expires=1) for row in real(**asked)]

    def lies_of(session: str) -> Any:
        row = looked(session)
        return row and row._replace(expires=1)

    store.sessions, store.look = lies, lies_of  # type: ignore[method-assign]
    assert db.sweep() == (0, 1, (), (), 0)
    with db.session("s") as s:
        assert s.opened == "resumed"


SWEEP = ["leased", "before_aside", "after_aside", "before_drop", "after_drop"]


@pytest.mark.parametrize("point", [f"sweep.{name}" for name in SWEEP])
def test_an_interrupted_sweep_is_finished_by_the_next(db: perdure.Database, clock: FakeClock, point: str):
    for n in range(5):
        fill(db, f"s{n}", 2, ttl=60)
    clock.advance(61_000)

    with killed_at(point):
        db.sweep()
    left = 4 if point == "sweep.after_drop" else 5
    assert db.sweep().removed == left
    assert db.sessions() == []
    assert [life.session for life in db.set_aside()] == [f"s{n}" for n in range(5)]
    for n in range(5):
        db.revive(f"s{n}")
    assert db.verify().ok
    assert [row.id for row in db.sessions()] == [f"s{n}" for n in range(5)]


@pytest.mark.parametrize(
    "point", ["sweep.after_aside", "sweep.after_drop", "revive.before_restore", "revive.after_restore"]
)
def test_an_interrupted_revival_loses_neither_life(db: perdure.Database, clock: FakeClock, point: str):
    fill(db, "s", 3, ttl=60)
    clock.advance(61_000)
    fill(db, "s", 5, ttl=60)
    lives = {3: db.set_aside("s")[0].created, 5: db.look("s").created}

    with killed_at(point):
        db.revive("s")
    found: set[int] = set()
    for _ in range(2):
        db.revive("s")
        assert db.verify().ok
        found.add(db.look("s").created)
    assert found == set(lives.values())


def test_one_that_no_sweep_has_come_by_is_listed_once_and_brought_back(db: perdure.Database, clock: FakeClock):
    fill(db, "s", 3, ttl=60)
    fill(db, "living", 3, ttl=6000)
    fill(db, "answered", 3, ttl=60)
    db.post("answered", "in time")
    assert db.set_aside() == []
    clock.advance(61_000)
    db.post("s", "too late")
    (listed,) = db.set_aside()
    assert (listed.session, db.set_aside("s"), db.set_aside("answered")) == ("s", [listed], [])
    created = db.look("s").created
    with killed_at("sweep.after_aside"):
        db.sweep()
    assert [life.session for life in db.set_aside()] == ["s"], "a copy and the session are one"
    assert db.revive("s").session == "s"
    assert [c.kind for c in db.history("s")] == ["revived", "commit", "commit", "commit"]
    assert (db.look("s").created, db.look("s").pending) == (created, 1)
    assert db.set_aside() == []
    assert db.verify().ok
    for name in ("living", "answered"):
        with pytest.raises(perdure.NotFound):
            db.revive(name)


@pytest.mark.parametrize(
    "point", [*(f"sweep.{name}" for name in SWEEP[1:]), "revive.before_restore", "revive.after_restore"]
)
def test_an_interrupted_revival_of_one_that_was_not_swept_loses_nothing(
    db: perdure.Database, clock: FakeClock, point: str
):
    fill(db, "s", 3, ttl=60)
    clock.advance(61_000)
    with killed_at(point):
        db.revive("s")
    db.revive("s")
    assert [c.kind for c in db.history("s")] == ["revived", "commit", "commit", "commit"]
    assert db.set_aside() == []
    assert db.verify().ok


def test_a_session_that_went_on_after_an_interrupted_sweep_is_set_aside_as_it_is_then(
    db: perdure.Database, clock: FakeClock
):
    fill(db, "s", 2, ttl=60)
    with db.session("s", lease=False) as s:
        clock.advance(61_000)
        with killed_at("sweep.after_aside"):
            db.sweep()
        s.vars["later"] = True
        s.commit()
    clock.advance(61_000)
    swept = db.sweep()
    assert (swept.removed, swept.failed) == (1, ())
    assert len(db.set_aside("s")) == 1
    db.revive("s")
    assert db.read("s").vars["later"]
    assert db.verify().ok


def test_a_damaged_session_is_reported_and_the_others_are_swept(tmp_path: Path, clock: FakeClock):
    import apsw

    url = f"sqlite:///{tmp_path}/a.db"
    with perdure.open(url, clock=clock) as db:
        fill(db, "a", 3, ttl=60)
        fill(db, "b", 3, ttl=60)
    connection = apsw.Connection(f"{tmp_path}/a.db")
    connection.execute("update commits set payload = x'00' where no = 1 and step = 2")
    connection.close()
    clock.advance(61_000)
    with perdure.open(url, clock=clock) as db:
        swept = db.sweep()
        assert swept.removed == 1
        assert [id for id, _ in swept.failed] == ["a"]
        assert [row.id for row in db.sessions()] == ["a"]
