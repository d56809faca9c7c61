"""Retention: what is kept reads as before, what is dropped is gone and says so, and nothing that is needed goes."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import faults, retention
from perdure.compaction import compact
from perdure.errors import Busy, Corrupted, Gone, InvalidInput, LeaseLost, NotFound
from perdure.hydrate import load, origins
from perdure.keeping import Keep
from perdure.model import ANCHOR, PACK, SNAPSHOT, Kind, Rewrite
from perdure.tools import tool
from tests.unit.pasts import all_states, write_past

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.clock import FakeClock

HOUR = 3_600_000


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    """No test leaves its hook behind."""
    yield
    faults.hook = None


def fill(db: perdure.Database, session: str = "s", count: int = 100, **options: Any) -> None:
    """Write some messages."""
    with db.session(session, **{"ttl": None, **options}) as s:
        for _ in range(count):
            s.messages.append({"role": "user", "content": f"message {s.step} " + "word " * 40})
            s.vars["n"] = s.step
            s.commit()


def steps(db: perdure.Database, session: str = "s", **options: Any) -> list[int]:
    return [c.step for c in db.history(session, limit=10_000, **options)][::-1]


# -- what stays -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_kept_checkpoints_read_exactly_as_before_and_dropped_ones_are_gone(
    open_db: Callable[..., perdure.Database], seed: int, keyed: bool, monkeypatch: pytest.MonkeyPatch
):
    rng = random.Random(seed)
    if seed % 2:
        # In many small parts instead of one.
        monkeypatch.setattr("perdure.pruning.CHUNK_ROWS", 3)
        monkeypatch.setattr("perdure.pruning.WINDOW", 7)
    db = open_db(keys=b"sixteen bytes or more" if keyed else None, maintain=False)
    write_past(db, "s", seed)
    before = all_states(db, "s")
    histories = {h.branch: db.history("s", branch=h.branch, limit=10_000) for h in db.look("s").heads}
    for _ in range(3):
        db.prune("s", keep_last=rng.randint(1, 30), keep_every=rng.choice([None, 7, 20]))
        after = all_states(db, "s")
        assert after == {place: before[place] for place in after}
        for line, step in before.keys() - after.keys():
            with pytest.raises(Gone) as gone:
                load(db.kernel, "s", line, step)
            assert gone.value.reason == "retention"
            nearest = str(gone.value).rpartition("are ")[2].split(" and ")
            assert all((line, int(near)) in after for near in nearest)
        for branch, past in histories.items():
            assert db.history("s", branch=branch, limit=10_000) == [c for c in past if (c.line, c.step) in after]
        assert db.verify().findings == ()
        assert len(after) < len(before)
        if rng.random() < 0.5:
            fill(db, count=50)
            db.compact("s")
            histories = {h.branch: db.history("s", branch=h.branch, limit=10_000) for h in db.look("s").heads}
            before = all_states(db, "s")


def test_the_last_of_each_branch_every_kth_tagged_ones_and_the_first_are_kept(db: perdure.Database):
    fill(db, count=60)
    with db.session("s") as s:
        s.tag("good", at=33)
        s.fork("other", at=47)
        s.switch("other")
        for _ in range(10):
            s.vars["n"] = s.step
            s.commit()
    pruned = db.prune("s", keep_last=5, keep_every=20)
    assert steps(db) == [1, 20, 33, 40, 47, 56, 57, 58, 59, 60]
    # The branch "other" is 1-47, its fork (48) and ten more.
    assert steps(db, branch="other") == [1, 20, 33, 40, 47, 48, 54, 55, 56, 57, 58]
    assert pruned.dropped == 60 - 10 + 5
    assert pruned.kept == 10 + 6 + 1
    assert db.read("s", "good").plain()["vars"]["n"] == 32


def test_what_a_rewind_left_keeps_its_end(db: perdure.Database):
    fill(db, count=40)
    left = db.history("s", limit=1)[0]
    with db.session("s") as s:
        s.rewind(10)
        s.vars["n"] = "again"
        s.commit()
    db.prune("s", keep_last=1)
    assert db.read("s", left.id).plain()["vars"]["n"] == 39
    assert steps(db) == [1, 10, 11, 12]
    assert steps_there(db) == [1, 10, 40]


def test_without_keep_tagged_a_tag_no_longer_keeps_its_checkpoint(db: perdure.Database, clock: FakeClock):
    fill(db, count=40, ttl=60)
    with db.session("s") as s:
        s.tag("old", at=10)
    db.prune("s", keep_last=5, keep_tagged=False)
    with pytest.raises(Gone, match="retention"):
        db.read("s", "old")
    assert db.verify().findings == ()
    clock.advance(61_000)
    assert db.sweep().removed == 1


def test_pruning_again_does_nothing_and_pruning_harder_drops_more(db: perdure.Database):
    fill(db, count=100)
    assert db.prune("s", keep_last=10, keep_every=10).dropped == 80
    assert db.prune("s", keep_last=10, keep_every=10) == (0, 20, 0)
    # What is gone does not come back.
    assert db.prune("s", keep_last=10, keep_every=5).dropped == 0
    assert db.prune("s", keep_last=10, keep_every=50).dropped == 8
    assert steps(db) == [1, 50, *range(91, 101)]
    assert db.read("s", 50).plain()["vars"]["n"] == 49


def test_writing_packing_and_forking_go_on_after_pruning(db: perdure.Database):
    fill(db, count=200)
    db.compact("s")
    db.prune("s", keep_last=10)
    fill(db, count=200)
    db.compact("s")
    with db.session("s") as s:
        s.fork("b", at=195)
        s.switch("b")
        assert len(s.messages) == 195
        s.rewind(191)
        s.vars["n"] = "again"
        s.commit()
    assert len(db.read("s").messages) == 400
    assert db.verify().findings == ()
    db.prune("s", keep_last=3)
    assert len(db.read("s", branch="b").messages) == 191
    assert db.verify().findings == ()


# -- what is needed ---------------------------------------------------------------------------------------------


def test_an_unfinished_run_is_caught_up_with_after_pruning(db: perdure.Database):
    calls: list[int] = []

    @tool
    def pay(n: int) -> int:
        calls.append(n)
        return n * 10

    def work(s: perdure.Session, stop: int) -> list[int]:
        out: list[int] = []
        for n in range(20):
            if n == stop:
                raise RuntimeError("killed")
            out.append(s.call(pay, n=n))
            s.messages.append({"role": "tool", "content": str(n)})
            s.commit()
        return out

    fill(db, count=50)
    with db.session("s") as s, pytest.raises(RuntimeError):
        s.run("job", work, 15)
    db.compact("s")
    assert db.prune("s", keep_last=1).dropped == 49
    with db.session("s") as s:
        assert s.run("job", work, 99) == [n * 10 for n in range(20)]
    assert calls == list(range(20))
    assert db.prune("s", keep_last=1).dropped > 0


def test_a_run_that_began_before_what_was_dropped_says_so(db: perdure.Database):
    def work(s: perdure.Session) -> None:
        for n in range(50):
            s.vars["n"] = n
            s.commit()

    with db.session("s", ttl=None) as s:
        s.run("job", work)
    db.prune("s", keep_last=1, keep_every=20)
    with db.session("s") as s:
        s.fork("b", at=20)
    with db.session("s", branch="b") as s, pytest.raises(Gone, match="retention"):
        s.run("job", work)


def test_outcomes_that_another_line_may_reuse_are_kept(db: perdure.Database):
    calls: list[str] = []

    @tool
    def book(hotel: str) -> str:
        calls.append(hotel)
        return f"booked {hotel}"

    fill(db, count=10)
    with db.session("s") as s:
        s.call(book, hotel="Ritz")
    fill(db, count=60)
    with db.session("s") as s:
        s.fork("b", at=5)
    db.prune("s", keep_last=1)
    with db.session("s", branch="b") as s:
        assert s.call(book, hotel="Ritz") == "booked Ritz"
    assert calls == ["Ritz"]


def test_an_outcome_that_is_gone_is_reported_not_repeated(db: perdure.Database):
    calls: list[str] = []

    @tool
    def book(hotel: str) -> str:
        calls.append(hotel)
        return f"booked {hotel}"

    fill(db, count=10)
    with db.session("s") as s:
        s.call(book, hotel="Ritz")
    fill(db, count=60)
    db.prune("s", keep_last=1)
    with db.session("s") as s:
        s.fork("b", at=1)
    with db.session("s", branch="b") as s, pytest.raises(perdure.DoneElsewhere):
        s.call(book, hotel="Ritz")
    assert calls == ["Ritz"]


def test_branches_merge_after_pruning_as_they_would_have_before(db: perdure.Database):
    fill(db, count=30)
    with db.session("s") as s:
        s.fork("b", at=20)
        s.switch("b")
        for n in range(20):
            s.vars["b"] = n
            s.commit()
        s.switch("main")
        s.merge("b", prefer="ours")
        s.switch("b")
        for n in range(20, 30):
            s.vars["b"] = n
            s.commit()
    db.prune("s", keep_last=1)
    with db.session("s") as s:
        s.merge("b")
        assert s.vars["b"] == 29
        assert s.vars["n"] == 29
    assert db.verify().findings == ()


def test_blobs_of_dropped_checkpoints_stay_while_a_kept_state_shows_them(db: perdure.Database, clock: FakeClock):
    text = "blob " * 20_000
    fill(db, count=5)
    with db.session("s") as s:
        s.vars["inside"] = {"deep": [text, {"photo": b"\x00" * 100}], "more": ["x" * 50] * 1000}
        s.vars["old"] = "gone " * 20_000
        s.commit()
        del s.vars["old"]
        s.commit()
    fill(db, count=20)
    db.prune("s", keep_last=3)
    clock.advance(2 * HOUR)
    assert db.collect().deleted == 1
    state = db.read("s").plain()
    assert state["vars"]["inside"]["deep"][0] == text
    assert db.verify().ok


# -- how it goes ------------------------------------------------------------------------------------------------


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
            db.kernel.store.drop("s", None, "deleted")
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


def steps_there(db: perdure.Database) -> list[int]:
    return [row.step for row in db.kernel.store.slice("s", 0, 0, 1000).rows]


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


# -- sweeping ---------------------------------------------------------------------------------------------------


def test_sessions_whose_time_has_run_out_are_removed_and_leave_a_tombstone(db: perdure.Database, clock: FakeClock):
    fill(db, "short", 3, ttl=60)
    fill(db, "long", 3, ttl=6000)
    fill(db, "ever", 3, ttl=None)
    clock.advance(61_000)
    told: list[tuple[str, int]] = []
    assert db.sweep(progress=lambda id, n: told.append((id, n))) == (1, 0, (), ())
    assert told == [("short", 1)]
    assert [row.id for row in db.sessions()] == ["ever", "long"]
    with pytest.raises(Gone) as gone:
        db.read("short")
    assert gone.value.reason == "expired"
    assert db.sweep().removed == 0


def test_every_commit_slides_the_time_and_the_newest_branch_counts(db: perdure.Database, clock: FakeClock):
    fill(db, ttl=60, count=2)
    clock.advance(50_000)
    with db.session("s") as s:
        s.fork("b")
        s.switch("b")
        s.vars["n"] = 1
        s.commit()
    clock.advance(50_000)
    assert db.sweep() == (0, 0, (), ())
    clock.advance(11_000)
    assert db.sweep().removed == 1


def test_a_session_that_is_being_written_is_left_alone(db: perdure.Database, clock: FakeClock):
    fill(db, "a", 2, ttl=60)
    fill(db, "b", 2, ttl=60)
    clock.advance(61_000)
    lease = db.kernel.store.acquire("a", "someone", 100_000)
    assert db.sweep() == (1, 0, ("a",), ())
    db.kernel.store.release(lease)
    assert db.sweep().removed == 1


def test_a_wrong_column_removes_nothing(open_db: Callable[..., perdure.Database], clock: FakeClock):
    db = open_db()
    fill(db, ttl=6000, count=2)
    store, real = db.kernel.store, db.kernel.store.sessions

    def lies(**asked: Any) -> Any:
        del asked["expired_at"]
        return real(**asked)

    store.sessions = lies  # type: ignore[method-assign]
    assert db.sweep() == (0, 1, (), ())
    with db.session("s") as s:
        assert s.opened == "resumed"


@pytest.mark.parametrize("point", ["sweep.leased", "sweep.before_drop", "sweep.after_drop"])
def test_an_interrupted_sweep_is_finished_by_the_next(db: perdure.Database, clock: FakeClock, point: str):
    for n in range(5):
        fill(db, f"s{n}", 2, ttl=60)
    clock.advance(61_000)

    class Killed(BaseException):
        pass

    def kill(name: str) -> None:
        if name == point:
            raise Killed

    faults.hook = kill
    with pytest.raises(Killed):
        db.sweep()
    faults.hook = None
    left = 4 if point == "sweep.after_drop" else 5
    assert db.sweep().removed == left
    assert db.sessions() == []


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
