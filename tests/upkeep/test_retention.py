"""What retention keeps, and what else needs it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure.errors import Gone
from perdure.history.hydrate import load
from perdure.session.tools.declaration import tool
from perdure.system import faults
from tests.upkeep.aging import HOUR, fill, steps, steps_there
from tests.upkeep.pasts import all_states, write_past

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perdure.testing.clock import FakeClock


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    """No test leaves its hook behind."""
    yield
    faults.hook = None


# With a key, once in one part and once in many: it changes what digests are made of, and not which rows are kept.
@pytest.mark.parametrize(("seed", "keyed"), [*((seed, False) for seed in range(5)), (0, True), (1, True)])
def test_kept_checkpoints_read_exactly_as_before_and_dropped_ones_are_gone(
    open_db: Callable[..., perdure.Database], seed: int, keyed: bool, monkeypatch: pytest.MonkeyPatch
):
    rng = random.Random(seed)
    if seed % 2:
        # In many small parts instead of one.
        monkeypatch.setattr("perdure.upkeep.retention.CHUNK_ROWS", 3)
        monkeypatch.setattr("perdure.upkeep.retention.WINDOW", 7)
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
