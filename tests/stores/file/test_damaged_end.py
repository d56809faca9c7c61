"""The last record of a log, written as a whole and damaged since, is never taken for an interrupted write."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from perdure.errors import Corrupted, CursorExpired
from perdure.model import Landed
from perdure.stores.file.store import FileStore, TornTail, Unreadable
from perdure.system import faults
from perdure.testing.sealed_rows import commit, entry, land, write
from tests.stores.file.filing import PowerGone, flip, log_of, make, steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def beside(root: Path, session: str = "s") -> list[str]:
    """What lies beside a log."""
    return sorted(set(os.listdir(log_of(root, session).parent)) - {"log", "lease"})


def test_any_flipped_bit_of_the_last_record_is_found_and_nothing_is_cut(root: Path):
    lengths = make(root, 3)
    whole = log_of(root).read_bytes()
    for bit in range(lengths[2] * 8, len(whole) * 8, 3):
        log_of(root).write_bytes(whole)
        raw = flip(log_of(root), bit)
        store = FileStore(root)
        with pytest.raises(Corrupted, match="--accept-loss") as found:
            steps(store)
        assert found.value.where == f"{log_of(root)}, byte {lengths[2]}"
        for use, given in (
            (land, (store, commit(step=3, expect=commit(step=2).id))),
            (store.acquire, ("s", "me", 1000)),
            (store.drop, ("s", None, "deleted")),
            (store.dump, ("s",)),
            (store.inbox, ("s",)),
            (list, (store.blob_refs(),)),
        ):
            with pytest.raises(Corrupted):
                use(*given)  # type: ignore[operator]
        (answer,) = store.post([entry("k")])
        assert isinstance(answer, Corrupted)
        assert (log_of(root).read_bytes(), beside(root)) == (raw, [])
        store.close()


def test_an_inbox_entry_is_no_less_a_record(root: Path):
    """Whatever lies at its end, and wherever a sector ends."""
    store = FileStore(root)
    for size in range(0, 1100, 13):
        write(store, f"s{size}")
        end = log_of(root, f"s{size}").stat().st_size
        assert store.post([entry("k", session=f"s{size}", body=b"\xff" * size)]) == [True]
        flip(log_of(root, f"s{size}"), end * 8 + 64)
    store.close()
    again = FileStore(root)
    assert len(again.damaged()) == len(range(0, 1100, 13))
    again.close()


def test_a_damaged_record_of_a_batch_is_damage_though_others_of_the_same_write_follow(root: Path):
    store = FileStore(root)
    write(store)
    end = log_of(root).stat().st_size
    batch = [commit(step=1, expect=commit().id), commit(step=2, expect=commit(step=1).id)]
    assert store.append(batch) == [Landed(item.id) for item in batch]
    store.close()
    flip(log_of(root), (end + 40) * 8)
    again = FileStore(root)
    with pytest.raises(Corrupted, match="--accept-loss"):
        steps(again)
    again.close()


def test_the_other_sessions_are_not_held_up_and_listings_show_what_is_intact(root: Path):
    store = FileStore(root)
    write(store, "bad", count=3)
    write(store, "good", count=2)
    store.close()
    flip(log_of(root, "bad"), log_of(root, "bad").stat().st_size * 8 - 100)
    again = FileStore(root)
    assert [row.id for row in again.sessions()] == ["bad", "good"]
    assert again.usage().checkpoints == 4
    assert len(again.changes().items) == 4
    assert [error.where.rpartition(",")[0] for error in again.damaged()] == [str(log_of(root, "bad"))]
    write(again, "good")
    again.renew_epoch()
    again.close()


def test_accepting_the_loss_keeps_the_bytes_and_goes_on_from_the_record_before(root: Path):
    lengths = make(root, 3)
    raw = flip(log_of(root), lengths[2] * 8 + 400)
    reader, store = FileStore(root), FileStore(root)
    with pytest.raises(Corrupted):
        steps(reader)
    kept = f"{log_of(root)}.damaged-{lengths[2]}"
    assert store.accept_loss("s") == kept
    with open(kept, "rb") as saved:
        assert saved.read() == raw[lengths[2] :]
    assert (store.damaged(), store.kept()) == ([], [kept])
    assert store.accept_loss("s") is None
    assert steps(reader) == [0, 1]
    write(store)
    assert steps(reader) == [0, 1, 2]
    store.close()
    reader.close()
    assert beside(root) == [os.path.basename(kept)]


def test_whoever_follows_the_changes_is_told_to_scan_again_and_misses_nothing(root: Path):
    """Those who had read the lost record, too: what takes its place must not pass for it."""
    lengths = make(root, 3)
    store = FileStore(root)
    scanning, done = (store.changes(limit=limit).cursor for limit in (2, 10))
    store.close()
    flip(log_of(root), lengths[2] * 8 + 400)
    again = FileStore(root)
    again.accept_loss("s")
    write(again)
    with pytest.raises(CursorExpired):
        again.changes(done)
    assert [change.step for change in again.changes(scanning).items] == [2]
    page = again.changes()
    assert [change.step for change in page.items] == [0, 1, 2]
    write(again)
    assert [change.step for change in again.changes(page.cursor).items] == [3]
    again.close()


def test_a_log_of_which_nothing_is_left_is_found_and_accepted_too(root: Path):
    make(root, 1)
    raw = flip(log_of(root), 300)
    store = FileStore(root)
    for use in (lambda: store.look("s"), store.changes, lambda: write(store)):
        with pytest.raises(Corrupted):
            use()
    with pytest.warns(Unreadable, match="--accept-loss"):
        assert store.sessions() == []
    assert [error.where for error in store.unreadable()] == [error.where for error in store.damaged()]
    kept = store.accept_loss("s")
    assert kept is not None
    with open(kept, "rb") as saved:
        assert saved.read() == raw
    write(store)
    assert steps(store) == [0]
    store.close()


@pytest.mark.parametrize("damaged", [False, True])
def test_however_often_it_is_interrupted_the_bytes_are_kept_once(
    root: Path, quiet: None, crash_at: Callable[[str, int], None], damaged: bool
):
    lengths = make(root, 3)
    if damaged:
        flip(log_of(root), lengths[2] * 8 + 400)
    else:
        os.truncate(log_of(root), lengths[3] - 5)
    tail = log_of(root).read_bytes()[lengths[2] :]
    for _ in range(3):
        store = FileStore(root)
        crash_at("file.accept.before_rename" if damaged else "file.torn.before_truncate", 1)
        with pytest.raises(PowerGone):
            store.accept_loss("s") if damaged else write(store)
        faults.hook = None
        store.close()
    # One that was ended while the bytes were being written.
    (name,) = (name for name in beside(root) if not name.endswith(".new"))
    os.truncate(log_of(root).parent / name, 7)
    store = FileStore(root)
    store.accept_loss("s") if damaged else write(store)
    store.close()
    assert beside(root) == [name]
    assert (log_of(root).parent / name).read_bytes() == tail


@pytest.mark.parametrize("seed", range(40))
def test_a_write_of_which_any_sectors_are_missing_is_an_interrupted_one(root: Path, seed: int):
    """What a loss of power leaves: it was never acknowledged, and nobody need accept anything."""
    rng = random.Random(seed)
    store = FileStore(root)
    write(store)
    end = log_of(root).stat().st_size
    write(store, payload=rng.randbytes(rng.randrange(1, 4000)))
    store.close()
    raw = bytearray(log_of(root).read_bytes())
    first = end - end % 512
    sectors = [(max(at, end), min(at + 512, len(raw))) for at in range(first, len(raw), 512)]
    for start, stop in rng.sample(sectors, rng.randrange(1, len(sectors) + 1)):
        raw[start:stop] = bytes(stop - start)
    log_of(root).write_bytes(raw)
    again = FileStore(root)
    assert (steps(again), again.damaged()) == ([0], [])
    with pytest.warns(TornTail):
        write(again)
    assert steps(again) == [0, 1]
    again.close()
