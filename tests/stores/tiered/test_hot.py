"""What the hot tier holds, when it is used, and when it is not: an old view of it never wins."""

from __future__ import annotations

import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure.stores.tiered import hot
from perdure.testing.clock import FakeClock
from perdure.testing.sealed_rows import commit
from tests.servers import valkey
from tests.store_urls import url_of
from tests.stores.tiered.tiers import Tiers, eventually, is_hot, said, say, tiered

if TYPE_CHECKING:
    from pathlib import Path


def warm(db: perdure.Database, session: str = "s") -> None:
    """Read until the hot tier helps."""
    db.read(session)
    eventually(lambda: is_hot(db, session), f"{session} is hot")


def test_a_second_load_comes_from_the_hot_tier_and_says_the_same(tiers: Tiers):
    db = tiers.db()
    for n in range(5):
        say(db, f"message {n}")
    warm(db)
    other = tiers.db()
    assert is_hot(other)
    assert other.read("s").plain() == tiers.truth().read("s").plain()
    assert other.read("s").checkpoint == tiers.truth().read("s").checkpoint


def test_commits_reach_the_hot_tier_by_themselves(tiers: Tiers):
    db = tiers.db()
    with db.session("s") as s:
        for n in range(2):
            s.vars["n"] = n
            s.commit()
    eventually(lambda: len(tiers.client.hkeys((tiers.held(":rows") or [b""])[0])) == 2, "two rows are there")
    bundle = tiered(tiers.db()).load("s", 0)
    assert (bundle.hot, bundle.base, [row.step for row in bundle.rows]) == (True, None, [1, 2])


def test_what_the_hot_tier_does_not_know_yet_is_read_from_the_cold_store(tiers: Tiers):
    db, truth = tiers.db(), tiers.truth()
    say(db, "first")
    warm(db)
    for n in range(3):
        say(truth, f"behind its back {n}")
    bundle = tiered(db).load("s", 0)
    assert (bundle.hot, bundle.last, bundle.rows[-1].step) == (True, 4, 4)
    assert said(db) == ["first", "behind its back 0", "behind its back 1", "behind its back 2"]


def test_rows_that_were_packed_meanwhile_are_read_all_the_same(tiers: Tiers):
    db, truth = tiers.db(), tiers.truth()
    say(db, "first")
    warm(db)
    with truth.session("s") as s:
        for n in range(40):
            s.messages.append({"role": "user", "content": f"message {n}"})
            s.commit()
    assert truth.compact("s") >= 0
    assert is_hot(db)
    assert said(db) == said(truth)


def test_a_writer_with_an_old_view_loses_and_nothing_of_it_is_stored(tiers: Tiers):
    db, truth = tiers.db(), tiers.truth()
    say(db, "first")
    warm(db)
    old = db.session("s", lease=False)
    say(truth, "second")
    old.messages.append({"role": "user", "content": "late"})
    with pytest.raises(perdure.Conflict) as lost:
        old.commit()
    assert lost.value.head.step == 2
    assert said(db) == ["first", "second"]
    db.update("s", lambda s: s.messages.append({"role": "user", "content": "again"}))
    assert said(truth) == ["first", "second", "again"]


def test_a_session_of_the_same_name_begins_anew(tiers: Tiers):
    db, truth = tiers.db(), tiers.truth()
    for n in range(3):
        say(db, f"old {n}")
    warm(db)
    # Behind the hot tier's back, with as many steps as before.
    truth.kernel.store.drop("s", None, "deleted")
    with pytest.raises(perdure.Gone):
        db.read("s")
    for n in range(3):
        say(truth, f"new {n}")
    assert said(db) == ["new 0", "new 1", "new 2"]
    assert said(tiers.db()) == ["new 0", "new 1", "new 2"]


def test_a_dropped_session_leaves_the_hot_tier(tiers: Tiers):
    db = tiers.db()
    say(db, "secret")
    warm(db)
    with db.session("s") as s:
        s.messages.append({"role": "user", "content": "just now"})
        s.commit()
    tiered(db).drop("s", None, "deleted")
    eventually(lambda: not tiers.held(), "nothing is left")
    say(db, "new")
    assert said(db) == ["new"]


def test_commits_that_the_cold_store_lost_are_not_taken_from_the_hot_tier(tiers: Tiers, tmp_path: Path):
    cold = tmp_path / "cold.db"
    with perdure.open(tiers.url) as db:
        for n in range(3):
            say(db, f"kept {n}")
    shutil.copy(cold, tmp_path / "older")
    with perdure.open(tiers.url) as db:
        for n in range(3):
            say(db, f"lost {n}")
        warm(db)
    for path in tmp_path.glob("cold.db*"):
        if path.is_file():
            path.unlink()
    shutil.copy(tmp_path / "older", cold)
    db = tiers.db()
    assert said(db) == ["kept 0", "kept 1", "kept 2"]
    for n in range(3):
        say(db, f"other {n}")
        assert said(db)[-1] == f"other {n}"
    assert said(db) == said(tiers.truth())


def test_a_new_epoch_asks_for_nothing_of_the_old_one(tiers: Tiers):
    db = tiers.db()
    say(db, "one")
    warm(db)
    before = set(tiers.held())
    tiered(db).renew_epoch()
    assert tiered(db).epoch == tiers.truth().kernel.store.epoch
    assert not is_hot(db)
    assert said(db) == ["one"]
    warm(db)
    assert not before & {key for key in tiers.held() if tiered(db).epoch.encode() in key}


def test_forks_and_rewinds_read_the_same_from_both_tiers(tiers: Tiers):
    db, truth = tiers.db(), tiers.truth()
    with db.session("s") as s:
        for n in range(6):
            s.messages.append({"role": "user", "content": f"message {n}"})
            s.commit()
    warm(db)
    with db.session("s") as s:
        s.fork("cheaper", at=4)
        s.vars["on"] = "cheaper"
        s.commit()
    with db.session("s") as s:
        s.rewind(3)
        s.vars["after"] = "the rewind"
        s.commit()
    for _ in range(3):
        for branch in ("main", "cheaper"):
            assert db.read("s", branch=branch).plain() == truth.read("s", branch=branch).plain()
        for step in range(1, 4):
            assert db.read("s", step).plain() == truth.read("s", step).plain()
        assert db.verify().ok
    assert len(db.read("s").messages) == 3
    assert len(db.read("s", branch="cheaper").messages) == 4


def test_what_retention_dropped_is_gone_from_both_tiers(tiers: Tiers):
    db = tiers.db()
    with db.session("s") as s:
        for n in range(30):
            s.messages.append({"role": "user", "content": f"message {n}"})
            s.commit()
    warm(db)
    assert db.prune("s", keep_last=5).dropped > 0
    with pytest.raises(perdure.Gone):
        db.read("s", 10)
    assert len(db.read("s").messages) == 30
    warm(db)
    assert db.read("s").plain() == tiers.truth().read("s").plain()
    assert db.read("s", 28).plain() == tiers.truth().read("s", 28).plain()
    assert db.verify().ok


def test_a_long_session_is_kept_as_one_state_not_as_ever_more_rows(tiers: Tiers):
    db = tiers.db()
    with db.session("s") as s:
        for n in range(300):
            s.messages.append({"role": "user", "content": f"message {n}"})
            s.commit()
    eventually(lambda: tiers.held(":state"), "the state is there without anybody reading it")
    db.read("s")
    eventually(lambda: is_hot(db) and len(tiered(db).load("s", 0).rows) <= 64, "few rows come after the state")
    assert said(db) == [f"message {n}" for n in range(300)]


def test_nothing_in_the_hot_tier_stays_for_ever(tiers: Tiers):
    db = tiers.db(hot_ttl=1000)
    say(db, "one")
    warm(db)
    say(db, "two")
    eventually(lambda: len(tiers.held()) == 3, "state, rows and heads")
    assert all(0 < tiers.client.pttl(key) <= 1_000_000 for key in tiers.held())


def test_a_line_without_a_state_does_not_grow_without_bound(tiers: Tiers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hot, "MOST_ROWS", 20)
    db = tiers.db(maintain=False)
    with db.session("s") as s:
        for n in range(60):
            s.messages.append({"role": "user", "content": f"message {n}"})
            s.commit()
    eventually(lambda: not tiered(db)._hot._told, "all is told")
    # What is taken to be told is not told yet.
    eventually(lambda: all(tiers.client.hlen(key) <= 20 for key in tiers.held(":rows")), "what is too much is gone")
    assert len(said(db)) == 60


def test_a_state_or_a_row_that_is_too_large_stays_with_the_cold_store(tiers: Tiers):
    db = tiers.db(hot_bytes=2000, maintain=False)
    with db.session("s") as s:
        # No value is so large that it would become a blob, and all together do not become small.
        for n in range(60):
            s.vars[f"noise {n}"] = Random(n).randbytes(500).hex()
        s.commit()
    eventually(lambda: tiers.held(":heads"), "the commit was told")
    assert not tiers.held(":rows")
    first = db.read("s").plain()
    eventually(lambda: not tiered(db).wants("s", 0), "it is known to be too large")
    assert not tiers.held(":state")
    assert db.read("s").plain() == first


def test_commits_do_not_wait_when_more_is_told_than_the_hot_tier_takes(tiers: Tiers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hot, "MOST_WAITING", 3)
    db = tiers.db()
    with db.session("s") as s:
        for n in range(50):
            s.messages.append({"role": "user", "content": f"message {n}"})
            s.commit()
            assert len(tiered(db)._hot._told) <= 3
    assert said(db) == [f"message {n}" for n in range(50)]
    assert said(tiers.db()) == said(tiers.truth())


def test_names_of_sessions_and_lines_do_not_meet(tiers: Tiers):
    db = tiers.db()
    names = ["x", "x:state", "x:rows", "0:x", "heads:x", "line:0:x", "x" * 512, "ö\n \t*?[x]"]
    for name in names:
        say(db, name, name)
        warm(db, name)
    fresh = tiers.db()
    for name in names:
        assert is_hot(fresh, name)
        assert said(fresh, name) == [name]


def test_two_stores_share_one_hot_tier(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    server = valkey().port
    with Tiers(server, tmp_path / "a") as one, Tiers(server, tmp_path / "b") as two:
        two.url = two.url.replace(two.prefix, one.prefix)
        a, b = one.db(), two.db()
        for n, db in enumerate((a, b, b)):
            say(db, f"message {n}")
        warm(a)
        warm(b)
        assert (said(a), said(b)) == (["message 0"], ["message 1", "message 2"])


def test_an_expired_session_is_gone_whatever_is_hot(tiers: Tiers):
    clock = FakeClock()
    db = tiers.db(clock)
    say(db, "one", ttl=60)
    warm(db)
    clock.advance(61_000)
    with pytest.raises(perdure.Gone):
        db.read("s")
    with db.session("s") as s:
        assert s.opened == "restarted"
        assert list(s.messages) == []


def test_keys_and_blobs_work_as_without_tiers(tiers: Tiers):
    key = b"k" * 32
    db = tiers.db(keys=key)
    with db.session("s") as s:
        s.vars["picture"] = bytes(range(256)) * 400
        s.commit()
    warm(db)
    again = tiers.db(keys=key)
    assert is_hot(again)
    assert again.read("s").vars["picture"] == bytes(range(256)) * 400
    with pytest.raises(perdure.KeyMismatch):
        tiers.db().read("s")
    with pytest.raises(perdure.KeyMismatch):
        tiers.db(keys=b"x" * 32).read("s")


@pytest.mark.parametrize("cold", ["memory", "file", "postgres"])
def test_any_store_may_be_the_cold_one(cold: str, tmp_path: Path):
    with Tiers(valkey().port, tmp_path, cold) as tiers:
        db = tiers.db()
        for n in range(3):
            say(db, f"message {n}")
        warm(db)
        assert said(db) == [f"message {n}" for n in range(3)]
        assert db.url == f"tiered:{tiers.hot},{tiers.truth().url}"
        assert url_of("memory", tmp_path, "hot").endswith(tiers.prefix)


def test_forgetting_a_line_while_others_tell_of_theirs_fails_nobody(tiers: Tiers, monkeypatch: pytest.MonkeyPatch):
    # Nothing is sent meanwhile, so that much waits to be gone through.
    monkeypatch.setattr(hot, "LINGER", 3600)
    tier = hot.Hot(tiers.hot.partition("?")[0], timeout=5.0, ttl=60.0, most=1 << 20)
    told = [hot.Told(b"line %d" % n, b"heads", commit(step=n)) for n in range(7)]
    forgotten = threading.Event()

    def tell() -> None:
        while not forgotten.is_set():
            for one in told:
                tier.tell(one)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as pool:
            others = [pool.submit(tell) for _ in range(2)]
            try:
                for n in range(200):
                    tier.forget([told[n % 7].key])
            finally:
                forgotten.set()
            for one in others:
                one.result(60)
    finally:
        sys.setswitchinterval(before)
        tier.close()
