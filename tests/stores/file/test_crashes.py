"""Crashes at every point and lost power."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from perdure.model import ANCHOR, Artifact, Landed, Rewrite, Span
from perdure.stores.file.index import Place, SessionIndex
from perdure.stores.file.root import session_name
from perdure.stores.file.store import FileStore
from perdure.system import faults
from perdure.testing.clock import FakeClock
from perdure.testing.sealed_rows import commit, entry, land, write
from tests.blobs.durable_disk import DurableDisk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from perdure.stores.file.records import Record

from tests.stores.file.filing import PowerGone, grow, log_of, steps

POINTS = [
    *(f"file.append.{where}" for where in ("before_write", "before_fsync", "after_fsync")),
    *(f"file.post.{where}" for where in ("before_write", "before_fsync", "after_fsync")),
    *(f"file.acquire.{where}" for where in ("before_write", "before_fsync", "after_fsync")),
    *(f"file.token.{where}" for where in ("before_write", "before_fsync", "after_fsync")),
    *(f"file.rewrite.{where}" for where in ("before_write", "before_fsync", "after_fsync")),
    *(
        f"file.{what}.{where}"
        for what in ("compact", "drop", "restore")
        for where in ("before_write", "before_fsync", "before_rename", "after_rename", "after_fsync")
    ),
    *(f"file.epoch.{where}" for where in ("before_fsync", "before_rename", "after_rename")),
    *(f"file.torn.{where}" for where in ("before_truncate", "before_fsync", "after_fsync")),
]


def run_all(store: FileStore, done: dict[str, Any], root: Path) -> None:
    """Every operation that writes, each noted in ``done`` when it has returned."""
    grow(store, 3, size=30_000)
    done["rows"] = 3
    store.post([entry("k1"), entry("k2")])
    done["posted"] = True
    done["token"] = store.acquire("new", "me", 10_000).token
    lease = store.acquire("s", "me", 10_000)
    done["token"] = lease.token
    land(store, commit(step=3, expect=commit(step=2).id, token=lease.token, takes=("k1",)))
    done["rows"] = 4
    store.release(lease)
    with log_of(root).open("ab") as log:
        log.write(b"torn")
    write(store)
    done["rows"] = 5
    store.rewrite(Rewrite("s", put=(Artifact(ANCHOR, 0, 0, 2, b""),), drop=(Span(0, 0, 2),)))
    done["dropped"] = 3
    dump = store.dump("s")
    store.restore(dump._replace(row=dump.row._replace(id="copy")))
    done["copy"] = True
    done["epoch"] = store.epoch
    store.renew_epoch()
    done["epoch"] = store.epoch
    write(store, "gone", count=2)
    store.drop("gone", None, "deleted")
    done["gone"] = True


def check_all(store: FileStore, done: dict[str, Any]) -> None:
    """Whatever was done is there; what was not yet may be."""
    row = store.look("s")
    if done.get("rows"):
        assert row is not None
        assert row.heads[0].step >= done["rows"] - 1
    if row is not None and row.heads:
        last = row.heads[0].step
        first = steps(store)[0]
        assert first in {0, 3}
        assert first == 3 or "dropped" not in done
        assert steps(store) == list(range(first, last + 1))
        assert (row.heads[0].id, row.lines) == (store.load("s", 0).rows[-1].id, 1)
    if done.get("posted"):
        assert len(store.inbox("s")) in ({1} if done["rows"] >= 4 else {1, 2})
    if "token" in done:
        lease = store.acquire("fresh", "me", 1)
        store.release(lease)
        assert lease.token > done["token"]
    if "copy" in done:
        assert steps(store, "copy") == [3, 4]
    if "gone" in done:
        gone = store.look("gone")
        assert gone is not None
        assert gone.reason == "deleted"
    if row is not None and not row.reason:
        write(store, count=2)


def test_the_crash_points_are_the_ones_that_exist(root: Path, quiet: None):
    passed: set[str] = set()
    faults.hook = passed.add
    try:
        store = FileStore(root)
        run_all(store, {}, root)
        store.close()
    finally:
        faults.hook = None
    assert set(POINTS) <= passed
    assert {name for name in passed if not name.startswith("file.create")} == set(POINTS)


@pytest.mark.parametrize("name", POINTS)
@pytest.mark.parametrize("times", [1, 2])
def test_a_process_that_ends_at_any_point_leaves_a_sound_store(
    root: Path, quiet: None, crash_at: Callable[[str, int], None], name: str, times: int
):
    done: dict[str, Any] = {}
    clock = FakeClock()
    store = FileStore(root, clock=clock)
    crash_at(name, times)
    try:
        run_all(store, done, root)
    except PowerGone:
        pass
    finally:
        faults.hook = None
    clock.advance(20_000)  # so that no lease is left of it
    other = FileStore(root, clock=clock)
    check_all(other, done)
    other.close()
    # The handle itself, had it lived on, sees the same.
    check_all(store, done)
    store.close()


@pytest.mark.parametrize("name", POINTS)
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_power_lost_at_any_point_takes_nothing_that_was_promised(
    root: Path, tmp_path: Path, quiet: None, crash_at: Callable[[str, int], None], name: str, seed: int | None
):
    done: dict[str, Any] = {}
    disk = DurableDisk(tmp_path / "store")
    store = FileStore(root, clock=FakeClock(), disk=disk)
    crash_at(name, 2 if name.startswith("file.append") else 1)
    try:
        run_all(store, done, root)
    except PowerGone:
        pass
    finally:
        faults.hook = None
    left = disk.after_power_loss(tmp_path / "left", None if seed is None else random.Random(seed))
    # What was torn by hand in run_all never went through the disk.
    other = FileStore(left, clock=FakeClock(monotonic=9_000_000))
    check_all(other, done)
    other.close()
    store.close()


@pytest.mark.parametrize("seed", range(20))
def test_power_lost_after_any_number_of_commits_keeps_them_all(root: Path, tmp_path: Path, quiet: None, seed: int):
    rng = random.Random(seed)
    disk = DurableDisk(root)
    store = FileStore(root, disk=disk)
    for turn in range(rng.randrange(1, 12)):
        write(store, rng.choice("abc"), count=rng.randrange(1, 4), payload=rng.randbytes(rng.randrange(3000)))
        if turn % 4 == 3:
            store.rewrite(Rewrite("b", put=(Artifact(ANCHOR, 0, 0, 0, b""),), drop=(Span(0, 0, 0),)))
    left = FileStore(disk.after_power_loss(tmp_path / "left", rng))
    assert left.id == store.id
    for row in store.sessions():
        again = left.look(row.id)
        assert again is not None
        assert again.heads == row.heads
        if row.heads:
            assert left.load(row.id, 0).rows == store.load(row.id, 0).rows
    left.close()
    store.close()


def test_an_interrupt_while_a_record_is_taken_in_is_no_reason_to_take_it_twice(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
):
    write(store)
    original = SessionIndex.apply

    def interrupted(self: SessionIndex, record: Record, place: Place) -> None:
        original(self, record, place)
        raise KeyboardInterrupt

    monkeypatch.setattr(SessionIndex, "apply", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(store)
    with pytest.raises(KeyboardInterrupt):
        store.look("s")
    monkeypatch.undo()
    assert steps(store) == [0, 1]
    assert [change.step for change in store.changes().items] == [0, 1]
    write(store)
    assert steps(store) == [0, 1, 2]


def test_a_commit_is_one_write_and_one_sync(root: Path):
    disk = DurableDisk(root)
    store = FileStore(root, disk=disk)
    lease = store.acquire("s", "me", 60_000)
    first = commit(token=lease.token)
    land(store, first)
    disk.log.clear()
    land(store, commit(step=1, expect=first.id, token=lease.token))
    assert disk.log == ["write log", "sync log"]
    disk.log.clear()
    batch = [commit(step=n, expect=commit(step=n - 1).id, token=lease.token) for n in range(2, 50)]
    store.append(batch)
    assert disk.log == ["write log", "sync log"]
    store.close()


def test_the_first_commit_syncs_its_log_before_all_the_names_above_it(root: Path):
    disk = DurableDisk(root)
    store = FileStore(root, disk=disk)
    disk.log.clear()
    write(store)
    name = session_name("s")
    shard = f"sessions/{name[:2]}"
    assert disk.log == [
        "write log", "sync log", f"names {shard}/{name}", f"names {shard}", "names sessions",
    ]  # fmt: skip
    store.close()


def test_what_a_killed_process_wrote_is_synced_before_it_is_called_durable(
    root: Path, crash_at: Callable[[str, int], None]
):
    store = FileStore(root)
    write(store)
    crash_at("file.append.before_fsync", 1)
    item = commit(step=1, expect=commit().id)
    with pytest.raises(PowerGone):
        store.append([item])
    faults.hook = None
    disk = DurableDisk(root)
    other = FileStore(root, disk=disk)
    disk.log.clear()
    assert land(other, item) == Landed(item.id, again=True)
    assert disk.log[0] == "sync log"
    disk.log.clear()
    land(other, item)
    assert disk.log == []
    other.close()
    store.close()


def test_what_a_killed_process_wrote_is_synced_before_it_is_built_upon(
    root: Path, crash_at: Callable[[str, int], None]
):
    store = FileStore(root)
    write(store)
    disk = DurableDisk(root)
    other = FileStore(root, disk=disk)
    write(other)
    crash_at("file.append.before_fsync", 1)
    with pytest.raises(PowerGone):
        write(store)
    faults.hook = None
    disk.log.clear()
    write(other)
    assert disk.log == ["sync log", "write log", "sync log"]
    other.close()
    store.close()
