"""Copies between any two stores: the same digests, checked on both sides, brought up to date, never written over."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import apsw
import pytest

import perdure
from perdure.system import faults
from perdure.upkeep.transfer import Transferred
from tests.store_urls import STORES, url_of
from tests.upkeep.copies import book, everything, small, wire, write_everything

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from perdure.testing.clock import FakeClock

    Open = Callable[..., perdure.Database]

KEY = b"sixteen bytes or more"
DAY = 86_400_000


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    """No test leaves its hook behind."""
    yield
    faults.hook = None


@pytest.fixture
def at(tmp_path: Path, clock: FakeClock) -> Iterator[Open]:
    """Opens a store of a kind under a name; what a test leaves open is closed after it."""
    opened: list[perdure.Database] = []

    def open_at(kind: str, name: str, **options: Any) -> perdure.Database:
        db = perdure.open(url_of(kind, tmp_path, name), clock=clock, **{"maintain": False, **options})
        opened.append(db)
        return db

    yield open_at
    for db in opened:
        db.close()


@pytest.mark.parametrize(("kind", "other"), list(pairwise([*STORES, STORES[0], STORES[0]])))
def test_everything_arrives_with_the_same_digests_goes_on_there_and_comes_back(at: Open, kind: str, other: str):
    src, dst = at(kind, "one", keys=KEY), at(other, "two", keys=KEY)
    write_everything(src, "s")
    src.post("only posted to", {"hello": 1}, key="k")
    done = src.copy_to(dst)
    assert (done.copied, done.updated, done.unchanged, done.left, done.failed) == (2, 0, 0, [], [])
    assert done.checkpoints == len(everything(src, "s")["digests"])
    assert done.blobs > 0
    assert everything(dst, "s") == everything(src, "s")
    assert dst.verify().findings == ()
    with dst.session("only posted to") as s:
        assert [m.body for m in s.take()] == [{"hello": 1}]
        s.commit()
    with dst.session("s") as s:
        assert s.opened == "resumed"
        assert [m.body["n"] for m in s.take()] == [1, 2]
        assert s.run("july", wire.fn) == "sent 4"
        (doubtful,) = [e for e in s.effects() if e["status"] == "in_doubt"]
        s.resolve(doubtful["id"], done="sent after all")
        dst.approve("s", s.approvals()[0].id, by="ana")
        assert s.call(book, "BA1") == "booked BA1"
        s.fork("there")
        s.commit("written in the copy")
    assert dst.copy_to(src).failed == []
    assert everything(src, "s") == everything(dst, "s")
    assert src.verify().findings == ()


def test_a_second_copy_finds_everything_there(at: Open):
    src, dst = at("sqlite", "one"), at("file", "two")
    write_everything(src, "s")
    small(src, "a", "b")
    assert src.copy_to(dst).copied == 3
    before = dst.kernel.store.changes().cursor
    assert src.copy_to(dst) == Transferred(unchanged=3)
    assert dst.changes(before).items == ()


@pytest.mark.parametrize("kind", STORES)
def test_a_session_that_has_gone_on_is_brought_up_to_date(at: Open, kind: str, clock: FakeClock):
    src, dst = at("sqlite", "one", keys=KEY), at(kind, "two", keys=KEY)
    write_everything(src, "s")
    src.copy_to(dst)
    clock.advance(1000)
    with src.session("s", owner="ana") as s:
        assert [m.body["n"] for m in s.take()] == [1, 2]
        for n in range(250):
            s.messages.append({"role": "user", "content": f"later {n}"})
            s.vars["large"] = f"large {n // 50} " * 5000
            s.commit()
        s.rewind(s.step - 20)
        s.tag("after the copy")
        s.fork("a new one", at=3)
        s.merge("a new one", prefer="ours")
    src.post("s", {"n": 9}, key="new")
    src.post("s", {"n": 10}, key="new and taken")
    with src.session("s", branch="a new one") as s:
        taken = [m.key for m in s.take()]
        assert taken == ["new", "new and taken"]
        s.commit()
    src.post("s", {"n": 11}, key="waiting")
    src.compact("s")
    done = src.copy_to(dst)
    assert (done.copied, done.updated, done.failed) == (0, 1, [])
    assert done.checkpoints > 250
    assert everything(dst, "s", 31) == everything(src, "s", 31)
    assert dst.verify().findings == ()
    assert not dst.post("s", {"n": 10}, key="new and taken"), "a key that was used is known there, too"
    assert src.copy_to(dst) == Transferred(unchanged=1)
    with dst.session("s") as s:
        assert [m.body["n"] for m in s.take()] == [11]
        s.commit()


@pytest.mark.parametrize("kind", STORES)
def test_what_a_store_projects_is_there_also_when_the_source_does_not_keep_it(at: Open, kind: str):
    native, between, copy = at(kind, "one"), at("sqlite", "two"), at(kind, "three")
    write_everything(native, "s")
    native.copy_to(between)
    between.copy_to(copy)
    with native.session("s") as s:
        s.run("august", lambda s: s.call(wire, 2))
    native.copy_to(between)
    between.copy_to(copy)
    projected = [shown for _, shown in native.kernel.store.dump("s").rows]
    copied = [shown for _, shown in copy.kernel.store.dump("s").rows]
    assert [shown.items() <= there.items() for shown, there in zip(projected, copied, strict=True)] == [True] * len(
        copied
    )


def test_an_input_that_was_only_posted_is_brought_along(at: Open):
    src, dst = at("sqlite", "one"), at("memory", "two")
    small(src, "s")
    src.post("posted", 1, key="a")
    src.copy_to(dst)
    src.post("s", "hello", key="k")
    src.post("posted", 2, key="b")
    assert src.copy_to(dst, dry_run=True).updated == 1
    assert dst.look("s").pending == 0
    done = src.copy_to(dst)
    assert (done.copied + done.updated, done.failed) == (2, [])
    for id, bodies in (("s", ["hello"]), ("posted", [1, 2])):
        with dst.session(id) as s:
            assert [m.body for m in s.take()] == bodies
            s.commit()
    assert src.copy_to(dst) == Transferred(unchanged=2)
    assert [dst.look(id).pending for id in ("s", "posted")] == [0, 0]


def test_a_copy_that_has_gone_on_is_left_as_it_is(at: Open):
    src, dst = at("sqlite", "one"), at("memory", "two")
    small(src, "s")
    src.copy_to(dst)
    with dst.session("s") as s:
        s.vars["there"] = True
        s.commit()
    assert src.copy_to(dst) == Transferred(unchanged=1)
    assert dst.read("s").vars["there"]


def test_two_that_have_gone_separate_ways_are_a_conflict_and_stay_as_they_are(at: Open):
    src, dst = at("sqlite", "one"), at("memory", "two")
    small(src, "a", "b", "c", "d")
    src.copy_to(dst, sessions=["a", "b", "d"])
    small(dst, "c")
    small(src, "d")
    with dst.session("d") as s:
        s.fork("there")  # no checkpoint of the one has the place of one of the other
    for db in (src, dst):
        with db.session("a") as s:
            s.vars["where"] = db.url
            s.commit()
        with db.session("b") as s:
            s.fork(db.url.partition(":")[0], at=1)
    before = [everything(dst, id) for id in "abcd"]
    done = src.copy_to(dst)
    assert (done.copied, done.updated, done.unchanged) == (0, 0, 0)
    assert [id for id, _ in done.failed] == ["a", "b", "c", "d"]
    assert all("differs in memory://" in problem and "nothing was written" in problem for _, problem in done.failed)
    assert [everything(dst, id) for id in "abcd"] == before


def test_retention_on_either_side_does_not_look_like_a_difference(at: Open):
    src, dst = at("sqlite", "one"), at("memory", "two")
    write_everything(src, "s", count=120)
    src.copy_to(dst)
    with src.session("s") as s:
        for n in range(10):
            s.vars["n"] = n
            s.commit()
    dst.prune("s", keep_last=5)
    assert (src.copy_to(dst).failed, dst.verify().findings) == ([], ())
    src.prune("s", keep_last=5)
    assert src.copy_to(dst) == Transferred(unchanged=1)
    assert dst.read("s").plain() == src.read("s").plain()


def test_what_retention_dropped_before_it_came_is_named(at: Open):
    src, dst = at("sqlite", "one"), at("memory", "two")
    small(src, "s")
    src.copy_to(dst)
    with src.session("s") as s:
        for n in range(50):
            s.vars["n"] = n
            s.commit()
    src.prune("s", keep_last=5)
    ((id, problem),) = src.copy_to(dst).failed
    assert id == "s"
    assert "retention has dropped" in problem
    dst.kernel.store.drop("s", None, "to be copied anew")
    assert src.copy_to(dst, revive=True).copied == 1
    assert everything(dst, "s", 1) == everything(src, "s", 1)


def test_a_pruned_session_arrives_as_it_is(at: Open):
    src, dst = at("sqlite", "one"), at("file", "two")
    write_everything(src, "s", count=120)
    src.prune("s", keep_last=10, keep_every=10)
    assert src.copy_to(dst).copied == 1
    assert everything(dst, "s", 1) == everything(src, "s", 1)
    assert dst.verify().findings == ()


# -- what ends and what lives on ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STORES)
def test_being_copied_lets_no_session_live_longer(at: Open, kind: str, clock: FakeClock):
    src, dst = at("sqlite", "one"), at(kind, "two")
    small(src, "s", owner="ana", ttl=7 * 86_400)
    clock.advance(3 * DAY)
    src.copy_to(dst)
    row = src.look("s")
    there = dst.look("s")
    assert (there.owner, there.created, there.updated, there.expires) == row[1:2] + row[3:6]
    with src.session("s") as s:
        s.vars["n"] = 1
        s.commit()
    clock.advance(2 * DAY)
    assert src.copy_to(dst).updated == 1
    assert dst.look("s").expires == src.look("s").expires
    clock.advance(5 * DAY)
    with pytest.raises(perdure.Gone):
        dst.read("s")


def test_a_session_that_has_ended_in_the_destination_stays_ended_unless_asked_for(at: Open):
    src, dst = at("sqlite", "one"), at("memory", "two")
    small(src, "s", "t")
    src.copy_to(dst)
    dst.kernel.store.drop("s", None, "asked to forget")
    done = src.copy_to(dst)
    assert (done.unchanged, done.left, done.ok) == (1, [("s", "it has ended there: asked to forget")], True)
    with pytest.raises(perdure.Gone):
        dst.read("s")
    assert src.copy_to(dst, revive=True).copied == 1
    assert everything(dst, "s") == everything(src, "s")


def test_no_lease_comes_along_and_tokens_go_on_behind_the_old_ones(at: Open):
    src, dst = at("sqlite", "one"), at("file", "two")
    for _ in range(5):
        small(src, "other")
    with src.session("s", ttl=None) as s:
        s.vars["n"] = 1
        s.commit()
        src.copy_to(dst)
        with dst.session("s") as there:
            assert there.fence > s.fence  # type: ignore[operator]
            s.vars["n"] = 2
            s.commit()
            ((id, problem),) = src.copy_to(dst).failed
            assert id == "s"
            assert "being written" in problem
    assert src.copy_to(dst).updated == 1
    assert dst.read("s").vars["n"] == 2


def test_a_copy_is_taken_while_sessions_are_written(at: Open):
    src, dst = at("sqlite", "one"), at("memory", "two")
    with src.session("a", ttl=None) as a, src.session("b", ttl=None) as b:
        for n in range(10):
            a.vars["n"] = b.vars["n"] = n
            a.commit()
            b.commit()

        def write(id: str, done: int) -> None:
            a.vars["n"] = b.vars["n"] = f"after {id}"
            a.commit()
            b.commit()

        src.copy_to(dst, progress=write)
    assert (dst.read("a").vars["n"], dst.read("b").vars["n"]) == (9, "after a")
    assert dst.verify().ok
    assert src.copy_to(dst).updated == 2
    assert (dst.read("a").vars["n"], dst.read("b").vars["n"]) == ("after b", "after b")


# -- which ones, and trying it -----------------------------------------------------------------------------------


def test_only_those_named_or_those_of_an_owner(at: Open):
    src = at("sqlite", "one")
    small(src, "a", "b", owner="ana")
    small(src, "c", owner="bea")
    one, two = at("memory", "two"), at("memory", "three")
    told: list[tuple[str, int]] = []
    assert src.copy_to(one, owner="ana", progress=lambda id, n: told.append((id, n))).copied == 2
    assert told == [("a", 1), ("b", 2)]
    assert [row.id for row in one.sessions()] == ["a", "b"]
    done = src.copy_to(two, sessions=["c", "nobody", "a", "c"])
    assert (done.copied, [id for id, _ in done.failed]) == (2, ["nobody"])
    assert [row.id for row in two.sessions()] == ["a", "c"]
    with pytest.raises(perdure.InvalidInput):
        src.copy_to(two, sessions=["a"], owner="ana")
    with pytest.raises(perdure.InvalidInput):
        src.copy_to(two, sessions=["../" + "x" * 2000])
    with pytest.raises(perdure.InvalidInput, match="both"):
        src.copy_to(at("sqlite", "one"))


def test_a_trial_writes_nothing_and_says_what_would_be_done(at: Open):
    src, dst = at("sqlite", "one"), at("memory", "two")
    write_everything(src, "s")
    small(src, "t", "u")
    src.copy_to(dst, sessions=["t", "u"])
    with src.session("t") as s:
        s.vars["n"] = 1
        s.commit()
    before = (dst.changes().cursor, sorted(dst.kernel.blobs.refs()), dst.sessions())
    would = src.copy_to(dst, dry_run=True)
    assert (would.copied, would.updated, would.unchanged) == (1, 1, 1)
    assert (dst.changes().cursor, sorted(dst.kernel.blobs.refs()), dst.sessions()) == before
    assert src.copy_to(dst) == would


def test_a_witness_of_the_source_vouches_for_the_copy(at: Open, tmp_path: Path):
    src, dst = at("sqlite", "one", keys=KEY), at("file", "two", keys=KEY)
    write_everything(src, "s")
    small(src, "t")
    src.witness(tmp_path / "witness")
    src.copy_to(dst)
    assert dst.verify(witness=tmp_path / "witness", copied=True).findings == ()
    assert len(dst.verify(witness=tmp_path / "witness").lost) == 1, "it is of another store, and nobody said why"
    other = at("memory", "three", keys=KEY)
    src.copy_to(other, sessions=["t"])
    assert {f.session for f in other.verify(witness=tmp_path / "witness", copied=True).lost} == {"s"}


def test_the_awaited_database_copies_alike(at: Open, tmp_path: Path, clock: FakeClock):
    src = at("sqlite", "one")
    small(src, "a", "b")

    async def copy() -> tuple[Transferred, Transferred]:
        async with (
            perdure.open_async(url_of("sqlite", tmp_path, "one"), clock=clock) as one,
            perdure.open_async(url_of("file", tmp_path, "two"), clock=clock) as two,
        ):
            return await one.copy_to(two), await two.copy_to(src)

    there, back = asyncio.run(copy())
    assert (there.copied, back) == (2, Transferred(unchanged=2))


# -- when something is wrong -------------------------------------------------------------------------------------


def damage(path: Path, sql: str) -> None:
    with apsw.Connection(str(path)) as raw:
        raw.execute(sql)


def test_a_damaged_session_is_not_copied_and_does_not_stop_the_others(at: Open, tmp_path: Path):
    src, dst = at("sqlite", "one"), at("memory", "two")
    small(src, "a", "b", "c")
    damage(
        tmp_path / "one.db",
        "update commits set payload = zeroblob(30) where no = (select no from sessions where id = 'b')",
    )
    done = src.copy_to(dst)
    assert (done.copied, done.ok) == (2, False)
    ((id, problem),) = done.failed
    assert id == "b"
    assert "the source is not intact" in problem
    assert [row.id for row in dst.sessions()] == ["a", "c"]
    assert src.copy_to(dst, verify=False).copied == 1
    assert not dst.verify().ok


def test_a_copy_that_was_damaged_on_its_way_is_noticed(at: Open, tmp_path: Path):
    src, dst = at("memory", "one"), at("sqlite", "two")
    small(src, "a", "b")

    def hook(name: str) -> None:
        if name == "transfer.after_session":
            damage(tmp_path / "two.db", "update commits set payload = zeroblob(30) where no = 1")

    faults.hook = hook
    done = src.copy_to(dst)
    assert (done.copied, [id for id, _ in done.failed]) == (1, ["a"])
    faults.hook = None
    assert [id for id, _ in src.copy_to(dst).failed] == ["a"], "what is there is looked at every time"
    assert src.copy_to(dst, verify=False) == Transferred(unchanged=2)


def test_a_blob_that_is_missing_or_lost_on_its_way_is_noticed(at: Open):
    src, dst = at("memory", "one"), at("memory", "two")
    small(src, "a", "b")
    refs = {ref for ref, _ in src.kernel.blobs.refs()}

    def hook(name: str) -> None:
        if name == "transfer.after_session":
            for ref, _ in list(dst.kernel.blobs.refs()):
                dst.kernel.blobs.delete(ref, 2**60)

    faults.hook = hook
    failed = src.copy_to(dst).failed
    assert [id for id, _ in failed] == ["a", "b"]
    assert all("missing in the destination" in problem for _, problem in failed)
    faults.hook = None
    other = at("memory", "three")
    gone = min(refs)
    src.kernel.blobs.delete(gone, 2**60)
    done = src.copy_to(other)
    assert (done.copied, len(done.failed)) == (1, 1)
    assert f"blob {gone}: it is missing in the source" in done.failed[0][1]
    assert len(other.sessions()) == 1


@pytest.mark.parametrize("verify", [True, False])
def test_without_the_key_nothing_is_copied(at: Open, verify: bool):
    src = at("sqlite", "one", keys=KEY)
    write_everything(src, "s")
    for keys in (None, b"another sixteen bytes"):
        dst = at("memory", f"two {keys}", keys=keys)
        ((_, problem),) = src.copy_to(dst, verify=verify).failed
        assert "key" in problem
        assert dst.sessions() == []


def test_a_store_that_is_out_of_reach_ends_the_copy_and_a_session_that_is_does_not(at: Open):
    src, dst = at("memory", "one"), at("memory", "two")
    small(src, "a", "b", "c")

    class Failing:
        """Stands before the destination."""

        def __init__(self, store: Any, *, down: bool) -> None:
            self._store, self._down = store, down

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        def restore(self, dump: Any) -> None:
            if dump.row.id == "b" or (self._down and dump.row.id > "b"):
                raise perdure.Unavailable("the connection was lost")
            self._store.restore(dump)

        def look(self, session: str) -> Any:
            if self._down and self._store.look("a") is not None:
                raise perdure.Unavailable("nobody answers")
            return self._store.look(session)

    real = dst.kernel.store
    dst.kernel.store = Failing(real, down=True)  # type: ignore[assignment]
    with pytest.raises(perdure.Unavailable, match="nobody answers"):
        src.copy_to(dst)
    dst.kernel.store = Failing(real, down=False)  # type: ignore[assignment]
    done = src.copy_to(dst)
    assert (done.unchanged, done.copied, done.failed) == (1, 1, [("b", "the connection was lost")])
    dst.kernel.store = real
    assert src.copy_to(dst).copied == 1


@pytest.mark.parametrize("begun", [False, True], ids=["only posted to", "begun there"])
def test_a_message_there_under_the_key_of_another_one_is_not_lost(at: Open, begun: bool):
    src, dst = at("sqlite", "one"), at("memory", "two")
    with src.session("s") as s:
        s.commit()
    if begun:
        assert src.copy_to(dst).copied == 1
    src.post("s", "ours", key="m")
    with src.session("s") as s:
        s.take()
        s.commit()
    dst.post("s", "theirs", key="m")
    ((id, why),) = src.copy_to(dst).failed
    assert (id, "'m'" in why) == ("s", True)
    with dst.session("s") as s:
        assert [m.body for m in s.take()] == ["theirs"]
