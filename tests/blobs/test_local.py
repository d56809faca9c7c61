"""Blobs in a folder: content by hash, durable names, and collectors that never take what is being put again."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import random
import threading
import time
from typing import TYPE_CHECKING

import pytest

from perdure.blobs.local import LEFTOVER, LocalBlobs
from perdure.errors import (
    Corrupted,
    HandleClosed,
    InvalidInput,
    NotFound,
    Poisoned,
    StoreFull,
    Unavailable,
)
from perdure.system import faults
from perdure.system.clock import SystemClock
from perdure.system.disk import Disk
from perdure.testing.clock import FakeClock
from tests.blobs.durable_disk import DurableDisk

if TYPE_CHECKING:
    from pathlib import Path

DATA = b"a photograph of the hotel" * 1000


def ref_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(blobs: LocalBlobs, data: bytes = DATA) -> str:
    """Put some content; its ref."""
    ref = ref_of(data)
    blobs.put(ref, data)
    return ref


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def blobs(folder: Path, clock: FakeClock) -> LocalBlobs:
    return LocalBlobs(folder, clock=clock)


def files(folder: Path) -> list[Path]:
    """Everything in the folder but the lock."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")


# -- putting and getting ---------------------------------------------------------------------------------


def test_what_was_put_is_given_back(blobs: LocalBlobs, folder: Path):
    for data in (b"", b"x", DATA, os.urandom(100_000)):
        assert blobs.get(put(blobs, data)) == data
    ref = ref_of(DATA)
    assert (folder / ref[:2] / ref[2:]).read_bytes() == DATA
    assert LocalBlobs(folder).get(ref) == DATA


def test_what_was_never_put_is_not_found(blobs: LocalBlobs, folder: Path):
    with pytest.raises(NotFound, match="there is no blob"):
        blobs.get(ref_of(b"never"))
    assert blobs.delete(ref_of(b"never"), 1 << 60) is False
    assert list(blobs.refs()) == []
    assert not folder.exists(), "a folder is made when something is put"


@pytest.mark.parametrize(
    "ref", ["", "abc", "../../etc/passwd", "G" * 64, "A" * 64, "a" * 63, "a" * 65, "a" * 64 + "\n", "/" * 64]
)
def test_only_a_hash_is_a_ref(blobs: LocalBlobs, ref: str):
    for use in (lambda: blobs.get(ref), lambda: blobs.put(ref, b""), lambda: blobs.delete(ref, 0)):
        with pytest.raises(InvalidInput):
            use()


def test_content_that_is_not_of_its_ref_is_refused(blobs: LocalBlobs, folder: Path):
    with pytest.raises(InvalidInput, match="nothing was written"):
        blobs.put(ref_of(b"one"), b"two")
    assert not folder.exists()


def test_every_change_of_the_bytes_is_noticed(blobs: LocalBlobs, folder: Path):
    ref = put(blobs)
    (path,) = files(folder)
    rng = random.Random(3)
    for _ in range(20):
        raw = bytearray(DATA)
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        path.write_bytes(raw)
        with pytest.raises(Corrupted, match="not what was written"):
            blobs.get(ref)
    path.write_bytes(DATA[:-1])
    with pytest.raises(Corrupted):
        blobs.get(ref)


def test_putting_again_heals_a_blob_that_was_cut_short(blobs: LocalBlobs, folder: Path):
    ref = put(blobs)
    (path,) = files(folder)
    path.write_bytes(DATA[:100])
    put(blobs)
    assert blobs.get(ref) == DATA


def test_putting_again_heals_a_blob_that_was_altered(blobs: LocalBlobs, folder: Path):
    """It is acknowledged by its name, and the commit that follows relies on it."""
    large = os.urandom((2 << 20) + 7)
    for data in (DATA, large):
        for at in (0, 99, len(data) - 1):
            ref = put(blobs, data)
            path = folder / ref[:2] / ref[2:]
            for again in (lambda data=data: put(blobs, data), lambda data=data: blobs.put_stream(iter([data]))):
                raw = bytearray(data)
                raw[at] ^= 1
                path.write_bytes(raw)
                assert again() == ref
                assert blobs.get(ref) == data


def test_putting_again_heals_a_blob_of_which_a_sector_cannot_be_read(folder: Path):
    class Worn(Disk):
        worn = False

        def read(self, fd: int, size: int, offset: int) -> bytes:
            if self.worn:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().read(fd, size, offset)

    disk = Worn()
    blobs = LocalBlobs(folder, disk=disk)
    put(blobs)
    (path,) = files(folder)
    inode = path.stat().st_ino
    disk.worn = True
    put(blobs)
    assert path.stat().st_ino != inode


class SetClock(SystemClock):
    """The clock of a machine, which is wrong."""

    def __init__(self, wrong: int) -> None:
        self._wrong = wrong

    def wall(self) -> int:
        return super().wall() + self._wrong


@pytest.mark.parametrize("writer", [-7_200_000, 0, 7_200_000])
@pytest.mark.parametrize("collector", [-7_200_000, 0, 7_200_000])
def test_no_wrong_clock_makes_a_young_blob_look_old(folder: Path, writer: int, collector: int):
    """Nor an old one young for ever, where the file system's clock is right."""
    theirs, ours = SetClock(writer), SetClock(collector)
    blobs, others = LocalBlobs(folder, clock=theirs), LocalBlobs(folder, clock=ours)
    ref = put(blobs)
    (folder / "tmp-of a writer").write_bytes(b"on its way")
    cutoff = ours.wall() - 3_600_000
    ((_, at),) = others.refs()
    assert abs(at - ours.wall()) < 60_000
    assert others.delete(ref, cutoff) is False
    assert (folder / "tmp-of a writer").exists()
    # An hour and a half ago by the file system's clock.
    path = folder / ref[:2] / ref[2:]
    old = path.stat().st_mtime - 5400
    os.utime(path, (old, old))
    put(blobs)
    assert others.delete(ref, cutoff) is False, "it was renewed"
    os.utime(path, (old, old))
    assert others.delete(ref, cutoff) is True


def test_putting_again_renews_and_writes_nothing(blobs: LocalBlobs, folder: Path, clock: FakeClock):
    ref = put(blobs)
    (path,) = files(folder)
    inode = path.stat().st_ino
    made = clock.wall()
    assert list(blobs.refs()) == [(ref, made)]
    clock.advance(5000)
    put(blobs)
    assert list(blobs.refs()) == [(ref, made + 5000)]
    assert path.stat().st_ino == inode


def test_a_clock_that_was_set_back_makes_no_blob_older(blobs: LocalBlobs, clock: FakeClock):
    ref = put(blobs)
    made = clock.wall()
    clock.set_wall(made - 100_000)
    put(blobs)
    assert list(blobs.refs()) == [(ref, made)]


def test_what_is_no_blob_is_not_listed(blobs: LocalBlobs, folder: Path):
    ref = put(blobs)
    (folder / ref[:2] / "notes.txt").write_text("hello")
    (folder / "zz").mkdir()
    (folder / "readme").write_text("hello")
    assert [found for found, _ in blobs.refs()] == [ref]


def test_blobs_are_for_their_owner_only(blobs: LocalBlobs, folder: Path):
    put(blobs)
    for path in [folder, *folder.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_closed_handle_is_refused(blobs: LocalBlobs):
    ref = put(blobs)
    blobs.close()
    for use in (lambda: blobs.get(ref), lambda: put(blobs), lambda: list(blobs.refs())):
        with pytest.raises(HandleClosed):
            use()


# -- deleting --------------------------------------------------------------------------------------------


def test_a_blob_is_deleted_unless_it_was_renewed_since(blobs: LocalBlobs, clock: FakeClock):
    ref = put(blobs)
    marked = clock.wall()
    assert blobs.delete(ref, marked) is False, "renewed at that very time"
    clock.advance(10)
    marked = clock.wall()
    put(blobs)
    assert blobs.delete(ref, marked) is False
    clock.advance(10)
    assert blobs.delete(ref, clock.wall()) is True
    assert blobs.delete(ref, clock.wall()) is False
    with pytest.raises(NotFound):
        blobs.get(ref)
    put(blobs)
    assert blobs.get(ref) == DATA


class Slow(Disk):
    """Takes its time between looking at a file and acting on it, so that races happen."""

    def stat(self, path: str) -> os.stat_result:
        found = super().stat(path)
        time.sleep(0.0005)
        return found


def test_a_blob_put_again_while_a_collector_is_at_it_is_never_lost(folder: Path):
    """Both find an old blob: either the collector sees that it was renewed, or the writer writes it anew."""
    clock = FakeClock()
    writer = LocalBlobs(folder, clock=clock, disk=Slow())
    collector = LocalBlobs(folder, clock=clock, disk=Slow())
    ref = put(writer)
    path = folder / ref[:2] / ref[2:]
    deleted: list[bool] = []
    # Until both orders have happened, which is up to the machine.
    for turn in range(5000):
        if turn >= 150 and 0 < sum(deleted) < turn:
            break
        os.utime(path, (1, 1))
        start = threading.Barrier(2)

        def collect(start: threading.Barrier = start) -> None:
            start.wait()
            deleted.append(collector.delete(ref, clock.wall()))

        thread = threading.Thread(target=collect)
        thread.start()
        start.wait()
        time.sleep(0.0002 * (turn % 12))
        put(writer)
        thread.join()
        assert writer.get(ref) == DATA, turn
    assert 0 < sum(deleted) < len(deleted), "both orders must have happened"


def put_and_check(folder: str, turns: int) -> None:
    """In a process of its own: whatever was put is there, as long as no mark is younger than the put."""
    blobs = LocalBlobs(folder)
    for turn in range(turns):
        data = str(turn % 3).encode() * 2000
        put(blobs, data)
        assert blobs.get(ref_of(data)) == data


def test_a_collector_with_an_old_mark_takes_nothing_from_another_process(folder: Path):
    context = multiprocessing.get_context("spawn")
    blobs = LocalBlobs(folder)
    marked = time.time_ns() // 1_000_000
    for turn in range(3):
        data = str(turn).encode() * 2000
        put(blobs, data)
        path = folder / ref_of(data)[:2] / ref_of(data)[2:]
        os.utime(path, (1, 1))
    writer = context.Process(target=put_and_check, args=(str(folder), 200))
    writer.start()
    deleted = 0
    while writer.is_alive():
        for ref, _ in blobs.refs():
            deleted += blobs.delete(ref, marked)
    writer.join()
    assert writer.exitcode == 0
    assert deleted <= 3


# -- crashes and full disks ------------------------------------------------------------------------------

POINTS = [f"blobs.put.{where}" for where in ("before_write", "before_fsync", "before_rename", "after_rename")]


class PowerGone(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("name", [*POINTS, "blobs.put.after_fsync", "blobs.delete.before_unlink"])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_power_lost_at_any_point_leaves_whole_blobs_only(tmp_path: Path, clock: FakeClock, name: str, seed: int | None):
    folder = tmp_path / "blobs"
    disk = DurableDisk(folder)
    blobs = LocalBlobs(folder, clock=clock, disk=disk)
    promised = [put(blobs, b"first"), put(blobs, b"second" * 1000)]

    def hook(passed: str) -> None:
        if passed == name:
            raise PowerGone(passed)

    faults.hook = hook
    try:
        promised.append(put(blobs, DATA))
        blobs.delete(promised[0], 1 << 60)
    except PowerGone:
        pass
    finally:
        faults.hook = None
    left = LocalBlobs(
        disk.after_power_loss(tmp_path / "left", None if seed is None else random.Random(seed)), clock=clock
    )
    for ref in promised:
        assert ref_of(left.get(ref)) == ref
    for ref, _ in left.refs():
        assert ref_of(left.get(ref)) == ref
    put(left, DATA)
    assert left.get(ref_of(DATA)) == DATA


def test_a_put_that_was_told_durable_by_a_dying_process_is_made_durable_by_the_next(tmp_path: Path, clock: FakeClock):
    folder = tmp_path / "blobs"

    def hook(passed: str) -> None:
        if passed == "blobs.put.after_rename":
            raise PowerGone(passed)

    faults.hook = hook
    try:
        with pytest.raises(PowerGone):
            put(LocalBlobs(folder, clock=clock))
    finally:
        faults.hook = None
    disk = DurableDisk(folder)
    put(LocalBlobs(folder, clock=clock, disk=disk))
    shard = ref_of(DATA)[:2]
    assert disk.log[-2:] == [f"names {shard}", "names ."]


def test_unfinished_files_are_ignored_and_cleared_after_an_hour(blobs: LocalBlobs, folder: Path, clock: FakeClock):
    ref = put(blobs)
    left = folder / "tmp-0123"
    left.write_bytes(b"half")
    made = clock.wall() * 1_000_000
    os.utime(left, ns=(made, made))
    assert [found for found, _ in blobs.refs()] == [ref]
    assert left.exists()
    clock.advance(LEFTOVER + 1)
    assert [found for found, _ in blobs.refs()] == [ref]
    assert not left.exists()


class Failing(Disk):
    """Fails with an error code at one method."""

    def __init__(self, method: str, code: int) -> None:
        self.method, self.code = method, code

    def _do(self, method: str) -> None:
        if method == self.method:
            raise OSError(self.code, os.strerror(self.code))

    def write(self, fd: int, data: bytes, offset: int) -> int:
        if self.method == "write":
            super().write(fd, data[:10], offset)
        self._do("write")
        return super().write(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        self._do("fdatasync")
        super().fdatasync(fd)

    def rename(self, source: str, target: str) -> None:
        self._do("rename")
        super().rename(source, target)

    def mkdir(self, path: str) -> None:
        self._do("mkdir")
        super().mkdir(path)


@pytest.mark.parametrize("method", ["write", "rename"])
def test_a_full_disk_leaves_nothing_behind_and_works_again(folder: Path, method: str):
    disk = Failing(method, errno.ENOSPC)
    blobs = LocalBlobs(folder, disk=disk)
    with pytest.raises(StoreFull, match="free some space"):
        put(blobs)
    assert files(folder) == []
    disk.method = ""
    assert blobs.get(put(blobs)) == DATA


def test_a_folder_that_may_not_be_written_says_what_to_do(folder: Path):
    blobs = LocalBlobs(folder, disk=Failing("mkdir", errno.EROFS))
    with pytest.raises(Unavailable, match="mounted for writing"):
        put(blobs)


def test_a_failed_sync_poisons_the_handle(folder: Path):
    disk = Failing("fdatasync", errno.EIO)
    blobs = LocalBlobs(folder, disk=disk)
    with pytest.raises(Poisoned):
        put(blobs)
    disk.method = ""
    with pytest.raises(Poisoned, match="open these blobs again"):
        put(blobs)
    assert list(LocalBlobs(folder).refs()) == []
