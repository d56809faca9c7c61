"""How pruning goes: beside other work, interrupted, again, and how much room it gives back."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure.errors import Busy, Corrupted, InvalidInput, LeaseLost, NotFound
from perdure.history.hydrate import origins
from perdure.history.lives import end_session
from perdure.model import ANCHOR, PACK, SNAPSHOT, Kind, Rewrite
from perdure.system import faults
from perdure.upkeep import retention
from perdure.upkeep.retention import Keep
from perdure.upkeep.snapshots import compact
from tests.upkeep.aging import fill, steps, steps_there
from tests.upkeep.pasts import all_states, write_past

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perdure.testing.clock import FakeClock


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    """No test leaves its hook behind."""
    yield
    faults.hook = None


def test_rows_packed_while_retention_looks_are_seen(open_db: Callable[..., perdure.Database]):
    db = open_db(maintain=False)
    fill(db, count=200)
    before = all_states(db, "s")
    packed: list[int] = []

    def pack(name: str) -> None:
        if name == "prune.before_rewrite" and not packed:
            packed.append(compact(db.kernel, "s", 0, 10))

    faults.hook = pack
    db.prune("s", keep_last=20, keep_every=50)
    assert packed == [199]
    after = all_states(db, "s")
    assert after == {place: before[place] for place in after}
    assert steps(db) == [1, 50, 100, 150, *range(181, 201)]
    assert db.verify().findings == ()


def test_rows_of_a_gap_packed_while_retention_looks_are_seen(open_db: Callable[..., perdure.Database]):
    """The kept row behind the gap is not among them: nothing else would show that they moved."""
    db = open_db(maintain=False)
    fill(db, count=200)
    packed: list[int] = []

    def pack(name: str) -> None:
        if name == "prune.before_rewrite" and not packed:
            packed.append(compact(db.kernel, "s", 0, 128))

    faults.hook = pack
    db.prune("s", keep_last=20)
    assert packed == [128]
    assert [a.kind for a in db.kernel.store.artifacts("s")] == [ANCHOR]


@pytest.mark.parametrize("branch", ["main", "b"])
def test_rows_dropped_while_they_are_packed_are_not_referred_to(open_db: Callable[..., perdure.Database], branch: str):
    db = open_db(maintain=False)
    fill(db, count=300)
    db.compact("s")
    with db.session("s") as s:
        s.fork("b", at=280)
    fill(db, count=200, branch=branch)
    before = all_states(db, "s", 5)
    line = next(h.line for h in db.look("s").heads if h.branch == branch)
    pruned: list[Any] = []

    def drop(name: str) -> None:
        if name == "compact.before_rewrite" and not pruned:
            pruned.append(None)
            db.prune("s", keep_last=205)

    faults.hook = drop
    compact(db.kernel, "s", line, 10)
    assert pruned
    after = all_states(db, "s", 5)
    assert after == {place: before[place] for place in after}
    assert len(after) < len(before)
    assert db.verify().findings == ()


def test_snapshots_of_other_lines_go_with_the_rows_they_refer_to(open_db: Callable[..., perdure.Database]):
    db = open_db(maintain=False)
    fill(db, count=600)
    db.compact("s")
    with db.session("s") as s:
        s.fork("b", at=257)
    fill(db, count=300, branch="b")
    db.compact("s")
    before = all_states(db, "s", 9)
    referring = [a for a in db.kernel.store.artifacts("s") if a.kind == SNAPSHOT and a.line == 1]
    assert any(ref.line == 0 for a in referring for ref in a.refs), "the test needs a snapshot across lines"
    db.prune("s", keep_last=305)
    after = all_states(db, "s", 9)
    assert (1, 540) in after
    assert (0, 180) not in after
    assert after == {place: before[place] for place in after}
    assert db.verify().findings == ()
    # Opening the branch does not have to go through all its rows again.
    assert len(db.kernel.store.load("s", 1).rows) < 150


@pytest.mark.parametrize("point", ["prune.before_rewrite", "prune.after_rewrite", "prune.before_snapshot"])
def test_interrupted_at_any_point_it_can_be_run_again(open_db: Callable[..., perdure.Database], point: str, url: str):
    db = open_db(maintain=False)
    write_past(db, "s", 5, count=400)
    before = all_states(db, "s")

    class Killed(BaseException):
        pass

    passed: list[str] = []

    def kill(name: str) -> None:
        passed.append(name)
        if name == point and passed.count(point) == 2:
            raise Killed

    faults.hook = kill
    try:
        db.prune("s", keep_last=10, keep_every=10)
    except Killed:
        faults.hook = None
        after = all_states(db, "s")
        assert after == {place: before[place] for place in after}
        assert db.verify().findings == ()
        db.prune("s", keep_last=10, keep_every=10)
    faults.hook = None
    after = all_states(db, "s")
    assert after == {place: before[place] for place in after}
    assert len(after) < len(before) / 2
    assert db.verify().findings == ()


def test_a_reader_whom_retention_overtakes_begins_anew(open_db: Callable[..., perdure.Database]):
    """An anchor may stand on an earlier one, and that one may go between the two readings."""
    db = open_db(maintain=False)
    table(db)
    db.prune("s", keep_last=1, keep_every=2)
    want = db.read("s", 40).plain()
    store, real, pruned = db.kernel.store, db.kernel.store.load, list[Any]()

    def overtaken(session: str, line: int, step: int | None = None, **options: Any) -> Any:
        bundle = real(session, line, step, **options)
        if not pruned:
            pruned.append(bundle.base)
            db.prune("s", keep_last=1, keep_every=40)
        return bundle

    store.load = overtaken  # type: ignore[method-assign]
    assert db.read("s", 40).plain() == want
    assert pruned[0].kind == ANCHOR
    assert steps(db) == [1, 40, 80, 101]


def table(db: perdure.Database, count: int = 100) -> None:
    """Write a session with a large state and small changes."""
    with db.session("s", ttl=None) as s:
        s.vars["table"] = {f"k{i}": random.Random(i).random() for i in range(1500)}
        s.commit()
        for n in range(count):
            s.vars["n"] = n
            s.commit()


@pytest.mark.parametrize("small", [False, True])
def test_an_anchor_of_an_earlier_life_is_not_believed(open_db: Callable[..., perdure.Database], small: bool):
    db = open_db(maintain=False, keys=b"sixteen bytes or more")
    lives: list[dict[int, Any]] = []
    for life in range(2):
        with db.session("s", ttl=None) as s:
            s.vars["life"] = life
            s.commit()
        fill(db, count=30) if small else table(db, 30)
        db.prune("s", keep_last=5, keep_every=10)
        lives.append({a.hi: a for a in db.kernel.store.artifacts("s") if a.kind == ANCHOR})
        if life == 0:
            end_session(db.kernel, db.look("s"), None, "deleted")
    for at, old in lives[0].items():
        db.kernel.store.rewrite(Rewrite("s", put=(old,)))
        refused: list[int] = []
        for step in steps_there(db):
            try:
                assert db.read("s", step).vars["life"] == 1
            except Corrupted:
                refused.append(step)
        assert at in refused
        assert not db.verify().ok
        db.kernel.store.rewrite(Rewrite("s", put=(lives[1][at],)))
    assert db.verify().ok


def test_anchors_together_weigh_little_more_than_what_they_say(db: perdure.Database):
    table(db, 400)
    db.prune("s", keep_last=1, keep_every=2)
    anchors = [a for a in db.kernel.store.artifacts("s") if a.kind == ANCHOR]
    whole = max(len(a.body) for a in anchors)
    assert len(anchors) == 199
    assert sum(len(a.body) > whole / 2 for a in anchors) < 200 / 4
    assert all(db.read("s", n).vars["n"] == n - 2 for n in range(2, 401, 20))


def test_no_pack_holds_what_was_dropped(db: perdure.Database):
    fill(db, count=300)
    db.compact("s")
    db.prune("s", keep_last=30, keep_every=40)
    kept = set(steps(db))
    packs = [a for a in db.kernel.store.artifacts("s") if a.kind == PACK]
    assert packs
    assert {step for a in packs for step in range(a.lo, a.hi + 1)} <= kept


def test_space_is_given_back(open_db: Callable[..., perdure.Database], tmp_path: Path, url: str):
    def weight(db: perdure.Database) -> int:
        held = db.kernel.store.usage().bytes
        db.close()
        # A server keeps the room for others; what it holds is what it says it holds.
        return _on_disk(tmp_path) if url.startswith(("sqlite", "file")) else held

    db = open_db()
    rng = random.Random(1)
    with db.session("s", ttl=None) as s:
        for _ in range(600):
            s.vars["last"] = rng.randbytes(12_000).hex()
            s.commit()
    full = weight(db)
    db = open_db()
    db.prune("s", keep_last=20)
    assert full > 7_000_000
    assert weight(db) < full / 10


def _on_disk(folder: Path) -> int:
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)


def test_it_takes_the_lease_and_gives_it_back(db: perdure.Database):
    fill(db, count=30)
    with db.session("s") as s:
        with pytest.raises(Busy):
            db.prune("s", keep_last=1)
        assert s.commit() is not None
    db.prune("s", keep_last=1)
    with db.session("s") as s:
        s.vars["n"] = "on"
        s.commit()


def test_who_lost_the_lease_drops_nothing(db: perdure.Database, clock: FakeClock):
    fill(db, count=30)
    lease = db.kernel.store.acquire("s", "me", 1000)
    clock.advance(1001)
    db.kernel.store.acquire("s", "you", 1000)
    with pytest.raises(LeaseLost):
        retention.prune(db.kernel, "s", lease.token, Keep(last=1))
    assert steps(db) == list(range(1, 31))


@pytest.mark.parametrize(
    "keep", [{}, {"keep_last": 0}, {"keep_last": True}, {"keep_every": -1}, {"keep_last": "5"}, {"keep_tagged": False}]
)
def test_what_cannot_be_meant_is_refused(db: perdure.Database, keep: dict[str, Any]):
    fill(db, count=3)
    with pytest.raises(InvalidInput, match="keep"):
        db.prune("s", **keep)
    assert steps(db) == [1, 2, 3]


def test_a_session_that_is_not_there_is_not_made(db: perdure.Database):
    with pytest.raises(NotFound):
        db.prune("nobody", keep_last=1)
    assert db.kernel.store.look("nobody") is None


def test_first_rows_stay_whole_and_lines_are_still_known_by_them(db: perdure.Database):
    write_past(db, "s", 3)
    known = origins(db.kernel, "s")
    db.prune("s", keep_last=1)
    assert origins(db.kernel, "s") == known
    assert sum(env.kind == Kind.TAG for _, _, env in known.values()) == sum(
        h.branch.startswith("tags/") for h in db.look("s").heads
    )
