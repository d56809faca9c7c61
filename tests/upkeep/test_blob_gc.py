"""Blob collection: what is referred to stays, whatever happens at the same time; the rest goes after a grace."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure.errors import InvalidInput, NotFound
from perdure.system import faults
from perdure.upkeep.blob_gc import collect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.testing.clock import FakeClock

HOUR = 3_600_000


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    """No test leaves its hook behind."""
    yield
    faults.hook = None


def text(n: int) -> str:
    return f"text {n} " * 5000


def put(db: perdure.Database, data: bytes) -> str:
    ref = hashlib.sha256(data).hexdigest()
    db.kernel.blobs.put(ref, data)
    return ref


def test_blobs_of_any_checkpoint_stay_and_others_go_after_their_grace(db: perdure.Database, clock: FakeClock):
    with db.session("s", ttl=None) as s:
        s.vars["a"] = text(1)
        s.commit()
        s.vars["a"] = text(2)
        s.commit()
    orphan = put(db, b"never committed")
    assert db.collect(grace=3600) == (0, 2, 1)
    clock.advance(HOUR)
    assert db.collect(grace=3600) == (0, 2, 1)
    clock.advance(1)
    assert db.collect(grace=3600) == (1, 2, 0)
    with pytest.raises(NotFound):
        db.kernel.blobs.get(orphan)
    assert db.read("s", 1).vars["a"] == text(1)
    assert db.read("s", 2).vars["a"] == text(2)
    assert db.verify().blobs == 2


def test_blobs_go_with_their_session_unless_another_one_shows_them(db: perdure.Database, clock: FakeClock):
    for id, ttl in (("a", 60), ("b", None)):
        with db.session(id, ttl=ttl) as s:
            s.vars["shared"] = text(1)
            s.vars["own"] = text(ord(id))
            s.commit()
    clock.advance(2 * HOUR)
    db.sweep()
    assert db.collect() == (0, 3, 0), "it can still be brought back"
    clock.advance(7 * 24 * HOUR)
    db.sweep()
    assert db.collect() == (1, 2, 0)
    assert db.read("b").plain()["vars"] == {"shared": text(1), "own": text(ord("b"))}
    assert db.verify().ok


def test_a_blob_that_is_put_again_begins_its_grace_anew(db: perdure.Database, clock: FakeClock):
    put(db, b"put twice")
    clock.advance(2 * HOUR)
    put(db, b"put twice")
    assert db.collect() == (0, 0, 1)
    clock.advance(HOUR + 1)
    assert db.collect().deleted == 1


@pytest.mark.parametrize("point", ["collect.marked", "collect.rechecked"])
def test_a_writer_that_finds_its_blob_there_already_keeps_it(db: perdure.Database, clock: FakeClock, point: str):
    """The moment between the look at the references and the deletion is the dangerous one."""
    put(db, text(1).encode())
    clock.advance(2 * HOUR)

    def write(name: str) -> None:
        if name == point:
            with db.session("s", ttl=None) as s:
                s.vars["a"] = text(1)
                s.commit()

    faults.hook = write
    assert db.collect().deleted == 0
    faults.hook = None
    assert db.read("s").vars["a"] == text(1)
    clock.advance(2 * HOUR)
    assert db.collect() == (0, 1, 0)


def test_a_commit_that_lands_between_marking_and_deleting_counts(db: perdure.Database, clock: FakeClock):
    """Even one whose blob was put before the collection began, and long ago: the references are read again."""
    session = db.session("s", ttl=None)
    session.vars["a"] = text(1)
    item, _, blobs = session.journal.seal("commit", session.document.collect(), {}, {}, None)
    for ref, data in blobs.items():
        db.kernel.keep(ref, data)
    clock.advance(2 * HOUR)

    def land(name: str) -> None:
        if name == "collect.marked":
            db.kernel.store.append([item._replace(token=None)])

    session.release()
    faults.hook = land
    assert db.collect() == (0, 1, 0)
    faults.hook = None
    assert db.read("s").vars["a"] == text(1)


@pytest.mark.parametrize("grace", [-1, float("nan")])
def test_an_impossible_grace_is_refused(db: perdure.Database, grace: float):
    with pytest.raises(InvalidInput, match="grace"):
        db.collect(grace=grace)


def test_a_deduplicating_writer_and_a_collector_race(tmp_path: Path, clock: FakeClock):
    """Real threads on real files: values come, go with their session, and come back, while a collector runs all the
    time. Every commit that returned must read back.

    Time passes only between commits: no commit takes longer than the grace period, which is all that is asked of one.
    """
    url = f"sqlite:///{tmp_path}/race.db"
    values = [f"value {n} " * 6000 for n in range(4)]
    committing = [threading.Lock() for _ in range(3)]
    stop = threading.Event()
    failures: list[BaseException] = []
    deleted = 0

    def collector() -> None:
        nonlocal deleted
        try:
            with perdure.open(url, clock=clock, synchronous="normal") as db:
                while not stop.is_set():
                    with contextlib.ExitStack() as stack:
                        for lock in committing:
                            stack.enter_context(lock)
                        clock.advance(HOUR + 1)
                    deleted += collect(db.kernel).deleted
        except BaseException as e:
            failures.append(e)

    def writer(me: int) -> None:
        try:
            with perdure.open(url, clock=clock, synchronous="normal", lease_ttl=1e6) as db:
                for n in range(80):
                    id, value = f"w{me}-{n}", values[(me + n) % 4]
                    with db.session(id, ttl=None) as s, committing[me]:
                        s.vars["a"] = value
                        s.commit()
                    assert db.read(id).vars["a"] == value
                    db.kernel.store.drop(id, None, "deleted")
        except BaseException as e:
            failures.append(e)

    with perdure.open(url, clock=clock):
        pass
    threads = [threading.Thread(target=writer, args=(n,)) for n in range(3)]
    watcher = threading.Thread(target=collector)
    for thread in (watcher, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    watcher.join()
    assert failures == []
    assert deleted > 0, "the collector never met an unused blob: the race was not run"
