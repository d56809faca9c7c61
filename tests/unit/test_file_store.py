"""The file store's own promises: torn tails, damage, full disks, failed syncs, other processes, compaction."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import random
import signal
import struct
import threading
import warnings
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from perdure import disk as disk_module
from perdure import faults
from perdure.disk import Disk
from perdure.errors import (
    Conflict,
    Corrupted,
    CursorExpired,
    ForkedProcess,
    HandleClosed,
    InvalidInput,
    LeaseLost,
    PerdureError,
    Poisoned,
    StoreFull,
    Unavailable,
    UnsupportedFormat,
)
from perdure.model import ANCHOR, PACK, Artifact, Landed, Rewrite, Span
from perdure.stores import _fileframes as frames
from perdure.stores import _filepool as pool
from perdure.stores._fileindex import Place, SessionIndex
from perdure.stores._fileroot import salt_of, session_name
from perdure.stores.file import FileStore, TornTail
from tests.clock import FakeClock
from tests.contract.writing import commit, entry, land, write
from tests.unit.durable_disk import DurableDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from perdure.stores._filerecords import Record


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the store is."""
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> Iterator[FileStore]:
    """A handle of it."""
    handle = FileStore(root, clock=FakeClock())
    yield handle
    handle.close()


def log_of(root: Path, session: str = "s") -> Path:
    """The log of a session."""
    name = session_name(session)
    return root / "sessions" / name[:2] / name / "log"


def steps(store: FileStore, session: str = "s") -> list[int]:
    """The steps of the first line that can be loaded."""
    return [row.step for row in store.load(session, 0).rows]


def grow(store: FileStore, count: int, session: str = "s", size: int = 100) -> None:
    """Append commits with payloads that do not compress."""
    payload = random.Random(count).randbytes(size)
    write(store, session, count=count, payload=payload)


# -- records ---------------------------------------------------------------------------------------------


def test_what_was_packed_is_scanned_again():
    records = [(1, b"one"), (2, b""), (3, bytes(3000))]
    raw, starts = frames.pack(records, 100, salt=7)
    data = bytes(100) + raw
    found = list(frames.scan(lambda size, at: data[at : at + size], 100, len(data), 7))
    assert [(frame.kind, frame.body) for frame in found] == records
    assert [frame.offset for frame in found] == starts


def test_a_record_longer_than_the_buffer_is_scanned():
    raw, _ = frames.pack([(1, b"a"), (2, os.urandom(3 << 20)), (3, b"b")], 0, salt=7)
    found = list(frames.scan(lambda size, at: raw[at : at + size], 0, len(raw), 7))
    assert [frame.kind for frame in found] == [1, 2, 3]


def test_a_record_is_valid_only_at_its_place_and_in_its_log():
    raw, _ = frames.pack([(1, b"one")], 0, salt=7)
    assert frames.unpack(raw, 0, 0, 7) is not None
    assert frames.unpack(raw, 0, 512, 7) is None
    assert frames.unpack(raw, 0, 0, 8) is None


def test_every_flipped_bit_of_a_record_is_noticed():
    raw, _ = frames.pack([(1, b"some body")], 0, salt=7)
    for bit in range(len(raw) * 8):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        assert frames.unpack(bytes(flipped), 0, 0, 7) is None, bit


# -- torn tails ------------------------------------------------------------------------------------------


def test_a_tail_cut_anywhere_is_cut_off_kept_and_reported(root: Path):
    with_three = make(root, 3)
    two = with_three[2]
    whole = log_of(root).read_bytes()
    for length in range(two + 1, len(whole), 7):
        log_of(root).write_bytes(whole[:length])
        store = FileStore(root)
        with pytest.warns(TornTail, match="interrupted"):
            land(store, commit(step=2, expect=commit(step=1).id))
        assert steps(store) == [0, 1, 2]
        (torn,) = store.torn
        assert (torn.session, torn.offset, torn.bytes) == ("s", two, length - two)
        with open(torn.file, "rb") as saved:
            assert saved.read() == whole[two:length]
        store.close()


def make(root: Path, count: int) -> list[int]:
    """A store with some commits, and the length of its log before each of them (and after the last)."""
    store = FileStore(root)
    lengths: list[int] = []
    for step in range(count):
        lengths.append(log_of(root).stat().st_size if step else 0)
        write(store)
    store.close()
    return [*lengths, log_of(root).stat().st_size]


@pytest.mark.parametrize("tail", [bytes(5000), b"\x9ePd", b"\xff" * 64, random.Random(1).randbytes(100)])
def test_garbage_at_the_end_is_a_torn_tail(root: Path, tail: bytes):
    make(root, 2)
    with log_of(root).open("ab") as log:
        log.write(tail)
    store = FileStore(root)
    with pytest.warns(TornTail):
        write(store)
    assert steps(store) == [0, 1, 2]
    assert [torn.bytes for torn in store.torn] == [len(tail)]
    store.close()


def test_whoever_only_reads_leaves_a_torn_tail_alone(root: Path):
    make(root, 2)
    with log_of(root).open("ab") as log:
        log.write(bytes(100))
    length = log_of(root).stat().st_size
    store = FileStore(root)
    assert steps(store) == [0, 1]
    assert steps(store) == [0, 1]
    assert log_of(root).stat().st_size == length
    assert store.torn == []
    store.close()


def test_a_length_beyond_the_file_allocates_nothing(root: Path):
    class Asked(Disk):
        most = 0

        def read(self, fd: int, size: int, offset: int) -> bytes:
            self.most = max(self.most, size)
            return super().read(fd, size, offset)

    make(root, 1)
    end = log_of(root).stat().st_size
    salt = salt_of(session_name("s"))
    # A header that is intact, and tells of a body of a gigabyte.
    head = struct.pack("<3sBIII", frames.MAGIC, 2, frames.MAX_BODY, 0, 0)
    seed = zlib.crc32(struct.pack("<Q", end), salt)
    with log_of(root).open("ab") as log:
        log.write(head + struct.pack("<I", zlib.crc32(head, seed)))
    disk = Asked()
    store = FileStore(root, disk=disk)
    assert steps(store) == [0]
    with pytest.warns(TornTail):
        write(store)
    assert disk.most < 100_000
    store.close()


def test_a_first_write_that_was_torn_leaves_no_session(root: Path):
    make(root, 1)
    whole = log_of(root).read_bytes()
    log_of(root).write_bytes(whole[:30])
    store = FileStore(root)
    assert store.look("s") is None
    with pytest.warns(TornTail):
        write(store)
    assert steps(store) == [0]
    store.close()


def test_a_batch_is_one_write_so_any_of_its_records_may_be_torn(root: Path):
    """Blocks reach a disk in any order: the second record of a write may be there and the first not."""
    store = FileStore(root)
    write(store)
    end = log_of(root).stat().st_size
    batch = [commit(step=1, expect=commit().id), commit(step=2, expect=commit(step=1).id)]
    assert store.append(batch) == [Landed(item.id) for item in batch]
    store.close()
    raw = bytearray(log_of(root).read_bytes())
    raw[end + 40] ^= 1
    log_of(root).write_bytes(raw)
    again = FileStore(root)
    with pytest.warns(TornTail):
        write(again)
    assert steps(again) == [0, 1]
    assert again.torn[0].offset == end
    again.close()


def test_bytes_inside_a_record_that_look_like_a_record_do_not_matter(root: Path):
    store = FileStore(root)
    write(store)
    end = log_of(root).stat().st_size
    fake, _ = frames.pack([(2, b"x")], end, salt_of(session_name("other")))
    write(store, payload=fake * 20)
    store.close()
    raw = log_of(root).read_bytes()
    log_of(root).write_bytes(raw[:-3])
    again = FileStore(root)
    with pytest.warns(TornTail):
        write(again)
    assert steps(again) == [0, 1]
    again.close()


# -- damage ----------------------------------------------------------------------------------------------


def test_a_damaged_record_that_is_not_the_last_is_never_cut(root: Path):
    lengths = make(root, 3)
    whole = log_of(root).read_bytes()
    rng = random.Random(5)
    for _ in range(60):
        bit = rng.randrange(lengths[2] * 8)
        raw = bytearray(whole)
        raw[bit // 8] ^= 1 << bit % 8
        log_of(root).write_bytes(raw)
        store = FileStore(root)
        with pytest.raises(Corrupted, match=r"log, byte \d+") as refused:
            steps(store)
        assert refused.value.where.startswith(str(log_of(root)))
        with pytest.raises(Corrupted):
            land(store, commit(step=3, expect=commit(step=2).id))
        assert log_of(root).read_bytes() == raw
        store.close()


def test_a_record_that_goes_bad_under_an_open_handle_is_noticed(store: FileStore, root: Path):
    write(store, count=3)
    with log_of(root).open("r+b") as log:
        log.seek(-10, os.SEEK_END)
        log.write(b"!")
    with pytest.raises(Corrupted):
        store.load("s", 0)


def test_what_was_durable_before_a_log_was_rewritten_is_never_taken_for_a_torn_tail(root: Path):
    store = FileStore(root)
    write(store, count=2)
    store.drop("s", None, "deleted")
    store.close()
    whole = log_of(root).read_bytes()
    damaged = [whole[:-1], whole[:-20], whole[:-5] + b"!" + whole[-4:], whole + b"garbage"]
    for raw in damaged[:3]:
        log_of(root).write_bytes(raw)
        again = FileStore(root)
        with pytest.raises(Corrupted):
            again.look("s")
        with pytest.raises(Corrupted):
            land(again, commit())
        again.close()
    log_of(root).write_bytes(damaged[3])
    again = FileStore(root)
    with pytest.warns(TornTail):
        write(again)
    again.close()


def test_a_log_that_lost_records_is_noticed_by_those_who_had_read_them(store: FileStore, root: Path):
    write(store, count=2)
    length = log_of(root).stat().st_size
    write(store)
    os.truncate(log_of(root), length)
    for _ in range(2):
        with pytest.raises(Corrupted, match="shorter"):
            store.look("s")


def test_damage_of_one_session_is_the_answer_to_its_items_only(root: Path):
    store = FileStore(root)
    write(store, "bad", count=3)
    store.close()
    raw = bytearray(log_of(root, "bad").read_bytes())
    raw[70] ^= 1
    log_of(root, "bad").write_bytes(raw)
    again = FileStore(root)
    one, two = again.append([commit("bad", 3, expect=b"x"), commit("good")])
    assert isinstance(one, Corrupted)
    assert isinstance(two, Landed)
    again.close()


@pytest.mark.parametrize("said", ["{}", "not json", '{"id": 3}', ""])
def test_a_damaged_identity_is_refused(store: FileStore, root: Path, said: str):
    (root / "perdure.json").write_text(said)
    with pytest.raises(Corrupted, match=r"perdure\.json"):
        FileStore(root)


def test_an_altered_identity_is_refused(store: FileStore, root: Path):
    said = json.loads((root / "perdure.json").read_text())
    said["id"] = said["id"][::-1]
    (root / "perdure.json").write_text(json.dumps(said))
    with pytest.raises(Corrupted):
        FileStore(root)


def test_a_missing_identity_is_not_made_anew_when_there_are_sessions(store: FileStore, root: Path):
    write(store)
    (root / "perdure.json").unlink()
    with pytest.raises(Corrupted, match="missing"):
        FileStore(root)


def test_a_newer_format_is_refused(store: FileStore, root: Path):
    said = json.loads((root / "perdure.json").read_text())
    (root / "perdure.json").write_text(json.dumps({**said, "format": 99}))
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        FileStore(root)


def test_a_record_of_a_newer_version_is_refused_not_cut(root: Path):
    make(root, 1)
    end = log_of(root).stat().st_size
    raw, _ = frames.pack([(99, b"from the future")], end, salt_of(session_name("s")))
    with log_of(root).open("ab") as log:
        log.write(raw)
    store = FileStore(root)
    for _ in range(2):
        with pytest.raises(UnsupportedFormat):
            write(store)
    assert log_of(root).stat().st_size == end + len(raw)
    store.close()


# -- what the system refuses -----------------------------------------------------------------------------


class FailingDisk(Disk):
    """Fails where it is told to."""

    def __init__(self) -> None:
        self.fail: dict[str, OSError | int] = {}
        """By method: what to raise; for ``write``, a number is how many bytes it still takes."""

    def _do(self, name: str) -> None:
        error = self.fail.get(name)
        if isinstance(error, OSError):
            raise error

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = True) -> int:
        if write:
            self._do("open")
        return super().open(path, create=create, exclusive=exclusive, write=write)

    def mkdir(self, path: str) -> None:
        self._do("mkdir")
        super().mkdir(path)

    def write(self, fd: int, data: bytes, offset: int) -> int:
        self._do("write")
        left = self.fail.get("write")
        if isinstance(left, int):
            if not left:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.fail["write"] = left - len(data[:left])
            return super().write(fd, data[:left], offset)
        return super().write(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        self._do("truncate")
        super().truncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        self._do("fdatasync")
        super().fdatasync(fd)

    def fsync_folder(self, path: str) -> None:
        self._do("fsync_folder")
        super().fsync_folder(path)

    def rename(self, source: str, target: str) -> None:
        self._do("rename")
        super().rename(source, target)


@pytest.fixture
def disk() -> FailingDisk:
    """A disk that fails on demand."""
    return FailingDisk()


@pytest.fixture
def failing(root: Path, disk: FailingDisk) -> Iterator[FileStore]:
    """A store on it, with two commits."""
    handle = FileStore(root, disk=disk, clock=FakeClock())
    write(handle, count=2)
    yield handle
    handle.close()


@pytest.mark.parametrize("left", [0, 1, 100])
def test_a_full_disk_takes_nothing_and_works_again_when_there_is_space(
    failing: FileStore, disk: FailingDisk, root: Path, left: int
):
    before = log_of(root).read_bytes()
    disk.fail["write"] = left
    item = commit(step=2, expect=commit(step=1).id)
    (answer,) = failing.append([item])
    assert isinstance(answer, StoreFull)
    assert "free some space" in str(answer)
    assert log_of(root).read_bytes() == before
    assert steps(failing) == [0, 1]
    disk.fail.clear()
    assert land(failing, item) == Landed(item.id)
    assert steps(failing) == [0, 1, 2]


def test_a_full_disk_that_cannot_even_be_cut_back_poisons(failing: FileStore, disk: FailingDisk):
    disk.fail = {"write": 10, "truncate": OSError(errno.EIO, "Input/output error")}
    with pytest.raises(Poisoned):
        land(failing, commit(step=2, expect=commit(step=1).id))
    with pytest.raises(Poisoned):
        failing.look("s")


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_disk_that_may_not_be_written_says_what_to_do(failing: FileStore, disk: FailingDisk, code: int):
    disk.fail["write"] = OSError(code, os.strerror(code))
    with pytest.raises(Unavailable, match="mounted for writing"):
        failing.append([commit(step=2, expect=commit(step=1).id)])
    assert steps(failing) == [0, 1]


def test_a_store_that_may_only_be_read_can_be_read(failing: FileStore, root: Path):
    disk = FailingDisk()
    disk.fail["open"] = OSError(errno.EROFS, os.strerror(errno.EROFS))
    store = FileStore(root, disk=disk)
    assert steps(store) == [0, 1]
    with pytest.raises(Unavailable):
        store.append([commit(step=2, expect=commit(step=1).id)])
    with pytest.raises(Unavailable):
        store.acquire("s", "me", 1000)
    store.close()


def test_a_failed_sync_poisons_the_handle_for_good(failing: FileStore, disk: FailingDisk, root: Path):
    disk.fail["fdatasync"] = OSError(errno.EIO, "Input/output error")
    item = commit(step=2, expect=commit(step=1).id)
    with pytest.raises(Poisoned, match=item.id.hex()):
        failing.append([item])
    disk.fail.clear()
    uses: list[Callable[[], object]] = [
        lambda: failing.append([item]),
        lambda: failing.look("s"),
        lambda: failing.post([entry()]),
        lambda: failing.acquire("s", "me", 1),
        failing.sessions,
        failing.changes,
        failing.renew_epoch,
        lambda: list(failing.blob_refs()),
    ]
    for use in uses:
        with pytest.raises(Poisoned, match="open a new one"):
            use()
    other = FileStore(root)
    land(other, item)
    assert steps(other) == [0, 1, 2]
    other.close()


def test_bytes_whose_sync_failed_are_not_read_as_durable_by_anyone(failing: FileStore, disk: FailingDisk, root: Path):
    other = FileStore(root)
    disk.fail["fdatasync"] = OSError(errno.EIO, "Input/output error")
    with pytest.raises(Poisoned):
        failing.append([commit(step=2, expect=commit(step=1).id)])
    assert steps(other) == [0, 1]
    other.close()


def test_a_failed_sync_is_told_only_to_those_it_concerns(failing: FileStore, disk: FailingDisk):
    class Later(OSError):
        pass

    items = [commit("a"), commit("b"), commit("c")]
    failing.append([commit("a0")])
    original = disk.fdatasync
    synced: list[int] = []

    def once(fd: int) -> None:
        synced.append(fd)
        if len(synced) > 1:
            raise Later(errno.EIO, "Input/output error")
        original(fd)

    disk.fdatasync = once  # type: ignore[method-assign]
    one, two, three = failing.append(items)
    assert isinstance(one, Landed)
    assert isinstance(two, Poisoned)
    assert items[1].id.hex() in str(two)
    assert isinstance(three, Poisoned)


def test_a_log_that_cannot_be_rewritten_stays_as_it_is(failing: FileStore, disk: FailingDisk, root: Path):
    grow(failing, 40, size=5000)
    disk.fail["rename"] = OSError(errno.ENOSPC, "No space left on device")
    assert failing.rewrite(Rewrite("s", put=(Artifact(ANCHOR, 0, 0, 30, b""),), drop=(Span(0, 0, 30),)))
    assert not log_of(root).with_name("log.new").exists()
    assert steps(failing) == list(range(31, 42))
    full = log_of(root).stat().st_size
    disk.fail.clear()
    write(failing)
    assert log_of(root).stat().st_size < full / 2
    assert steps(failing) == list(range(31, 43))


# -- crashes and lost power ------------------------------------------------------------------------------

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


class PowerGone(BaseException):
    """The process ends here."""


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


@pytest.fixture
def quiet() -> Iterator[None]:
    """Torn tails are expected here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TornTail)
        yield


@pytest.fixture
def crash_at() -> Iterator[Callable[[str, int], None]]:
    """Ends what runs when it passes a point for the n-th time."""

    def install(name: str, times: int = 1) -> None:
        left = [times]

        def hook(passed: str) -> None:
            if passed == name:
                left[0] -= 1
                if not left[0]:
                    raise PowerGone(name)

        faults.hook = hook

    yield install
    faults.hook = None


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


# -- tokens and leases -----------------------------------------------------------------------------------


def test_a_damaged_slot_of_the_token_counter_never_makes_a_token_appear_twice(root: Path):
    given: list[int] = []
    for turn in range(8):
        store = FileStore(root, clock=FakeClock())
        given.append(store.acquire(f"s{turn}", "me", 1000).token)
        store.close()
        with (root / "token").open("r+b") as counter:
            counter.seek(4096 * (turn % 2) + turn)
            counter.write(b"!")
    assert given == sorted(set(given))


def test_a_lost_token_counter_is_damage(store: FileStore, root: Path):
    (root / "token").write_bytes(b"")
    with pytest.raises(Corrupted, match="token"):
        store.acquire("s", "me", 1000)


def test_a_lease_that_cannot_be_read_is_nobodys_and_its_holder_is_fenced(store: FileStore, root: Path):
    lease = store.acquire("s", "me", 10_000)
    log_of(root).with_name("lease").write_bytes(b"damaged")
    (answer,) = store.append([commit(token=lease.token)])
    assert isinstance(answer, LeaseLost)
    assert store.acquire("s", "you", 1000).token > lease.token


def test_no_flipped_bit_makes_another_lease(store: FileStore, root: Path):
    lease = store.acquire("s", "me", 10_000)
    path = log_of(root).with_name("lease")
    whole = path.read_bytes()
    used = len(whole.rstrip(b"\0"))
    for bit in range(used * 8):
        raw = bytearray(whole)
        raw[bit // 8] ^= 1 << bit % 8
        path.write_bytes(raw)
        row = store.look("s")
        assert row is not None
        assert row.lease.holder == "", bit
    path.write_bytes(whole)
    row = store.look("s")
    assert row is not None
    assert (row.lease.holder, row.lease.token) == ("me", lease.token)


def test_a_tombstone_keeps_its_token_when_the_lease_file_is_lost(store: FileStore, root: Path):
    lease = store.acquire("s", "me", 10_000)
    land(store, commit(token=lease.token))
    store.drop("s", lease.token, "deleted")
    log_of(root).with_name("lease").write_bytes(b"")
    row = store.look("s")
    assert row is not None
    assert row.lease.token == lease.token


def test_commits_in_quick_succession_prolong_the_lease_without_writing_it(root: Path):
    clock = FakeClock()
    disk = DurableDisk(root)
    store = FileStore(root, clock=clock, disk=disk)
    lease = store.acquire("s", "me", 32_000)
    disk.log.clear()
    expect = None
    for step in range(100):
        item = commit(step=step, expect=expect, token=lease.token)
        land(store, item)
        expect = item.id
        clock.advance(100)
    assert 5 <= disk.log.count("write lease") <= 10
    row = store.look("s")
    assert row is not None
    assert row.lease.until - clock.wall() >= 32_000 - 1100
    store.close()


def test_a_holders_name_that_does_not_fit_is_refused(store: FileStore):
    with pytest.raises(InvalidInput):
        store.acquire("s", "x" * 5000, 1000)


# -- several handles -------------------------------------------------------------------------------------


def test_another_handle_reads_only_what_is_new(root: Path):
    class Counting(Disk):
        read_bytes = 0

        def read(self, fd: int, size: int, offset: int) -> bytes:
            data = super().read(fd, size, offset)
            self.read_bytes += len(data)
            return data

    one, disk = FileStore(root), Counting()
    two = FileStore(root, disk=disk)
    grow(one, 200, size=1000)
    assert two.look("s") is not None
    before = disk.read_bytes
    write(one)
    row = two.look("s")
    assert row is not None
    assert row.heads[0].step == 200
    assert disk.read_bytes - before < 3000
    one.close()
    two.close()


def test_another_handle_notices_that_a_log_was_replaced(root: Path):
    one, two = FileStore(root), FileStore(root)
    grow(one, 20, size=20_000)
    assert steps(two) == list(range(20))
    one.rewrite(Rewrite("s", put=(Artifact(ANCHOR, 0, 0, 17, b""),), drop=(Span(0, 0, 17),)))
    assert log_of(root).stat().st_size < 100_000
    assert steps(two) == [18, 19]
    write(two)
    write(one)
    assert steps(one) == steps(two) == [18, 19, 20, 21]
    two.drop("s", None, "deleted")
    row = one.look("s")
    assert row is not None
    assert row.reason == "deleted"
    one.close()
    two.close()


def add_until(root: str, name: str, count: int) -> None:
    """In a process of its own: add commits on whatever head there is."""
    store = FileStore(root)
    done = 0
    while done < count:
        row = store.look("s")
        head = row.heads[0] if row and row.heads else None
        step = head.step + 1 if head else 0
        item = commit(step=step, expect=head.id if head else None, id=f"{name}-{done}".encode())
        (answer,) = store.append([item])
        if isinstance(answer, Landed):
            done += 1
        elif not isinstance(answer, Conflict):
            raise answer
    store.close()


def test_processes_that_race_for_a_head_each_land_all_their_commits(root: Path):
    context = multiprocessing.get_context("spawn")
    names = ["a", "b", "c"]
    workers = [context.Process(target=add_until, args=(str(root), name, 30)) for name in names]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    store = FileStore(root)
    ids = [row.id.decode() for row in store.load("s", 0).rows]
    assert len(ids) == 90
    for name in names:
        assert [id for id in ids if id.startswith(name)] == [f"{name}-{n}" for n in range(30)]
    store.close()


def commit_forever(root: str) -> None:
    """In a process of its own: commits, and prints each step that has landed."""
    store = FileStore(root)
    while True:
        write(store, payload=os.urandom(20_000))
        row = store.look("s")
        assert row is not None
        os.write(1, f"{row.heads[0].step}\n".encode())


def test_a_killed_process_loses_nothing_that_it_said_had_landed(root: Path, tmp_path: Path, quiet: None):
    context = multiprocessing.get_context("spawn")
    said = tmp_path / "said"
    for turn in range(4):
        worker = context.Process(target=_to_file, args=(str(root), str(said)))
        worker.start()
        while not said.exists() or len(said.read_bytes().splitlines()) < 5 * (turn + 1):
            assert worker.is_alive()
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        last = int(said.read_bytes().split(b"\n")[-2])
        store = FileStore(root)
        assert steps(store)[: last + 1] == list(range(last + 1))
        store.close()


def _to_file(root: str, said: str) -> None:
    os.dup2(os.open(said, os.O_CREAT | os.O_APPEND | os.O_WRONLY), 1)
    commit_forever(root)


def test_a_process_that_was_stopped_while_it_writes_stops_nobody_for_good(
    store: FileStore, root: Path, monkeypatch: pytest.MonkeyPatch
):
    write(store)
    monkeypatch.setattr(disk_module, "PATIENCE", 0.05)
    with log_of(root).with_name("lease").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match="held the lock"):
            store.look("s")
        with pytest.raises(Unavailable, match="held the lock"):
            write(store)
    write(store)
    assert steps(store) == [0, 1]


def test_threads_may_share_a_handle(root: Path):
    store = FileStore(root)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(30):
                write(store, f"own {number}")
                store.post([entry(f"{number}-{step}", "shared")])
                store.look("shared")
                store.sessions(limit=3)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(item.seq for item in store.inbox("shared", 1000)) == list(range(1, 181))
    assert all(steps(store, f"own {number}") == list(range(30)) for number in range(6))
    store.close()


def test_few_files_are_open_however_many_sessions_there_are(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool, "OPEN", 8)
    monkeypatch.setattr(pool, "KEPT", 20)
    monkeypatch.setattr(pool, "ROWS", 60)
    store = FileStore(root)
    before = len(os.listdir("/proc/self/fd"))
    for turn in range(3):
        for number in range(50):
            write(store, f"s{number}", count=2)
            assert store.look(f"s{(number * 7) % 50}") is not None or not turn
    assert len(os.listdir("/proc/self/fd")) - before <= 2 * 9
    assert all(steps(store, f"s{number}") == list(range(6)) for number in range(50))
    before = len(os.listdir("/proc/self/fd"))
    store.close()
    assert len(os.listdir("/proc/self/fd")) < before - 8


def test_a_handle_from_before_a_fork_is_refused(store: FileStore):
    write(store)
    pid = os.fork()
    if not pid:
        try:
            store.look("s")
        except ForkedProcess:
            store.close()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert steps(store) == [0]


def test_a_closed_handle_is_refused(root: Path):
    store = FileStore(root)
    store.close()
    store.close()
    with pytest.raises(HandleClosed):
        store.look("s")
    with pytest.raises(HandleClosed):
        list(store.blob_refs())


def test_another_handle_sees_a_new_epoch_when_it_asks_for_changes(root: Path):
    one, two = FileStore(root), FileStore(root)
    write(one)
    cursor = two.changes().cursor
    one.renew_epoch()
    with pytest.raises(CursorExpired):
        two.changes(cursor)
    assert two.epoch == one.epoch
    one.close()
    two.close()


# -- names and values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("session", ["../../etc/passwd", "/", "a/b", ".", "x" * 5000, "a\0b", "größe", "\n"])
def test_no_session_id_becomes_a_path(store: FileStore, root: Path, session: str):
    write(store, session)
    assert store.sessions()[0].id == session
    assert log_of(root, session).exists()
    folders = {path.name for path in root.iterdir()}
    assert folders == {"perdure.json", "token", "lock", "sessions"}


def test_a_session_id_that_is_no_text_is_refused(store: FileStore):
    with pytest.raises(InvalidInput):
        store.look("\ud800")


@pytest.mark.parametrize(
    "wrong",
    [{"payload": "text"}, {"step": "one"}, {"owner": None}, {"at": 1 << 70}, {"tool": "\ud800"}, {"blobs": (1,)}],
)
def test_a_value_of_the_wrong_type_is_refused_and_spoils_nothing(store: FileStore, root: Path, wrong: dict[str, Any]):
    write(store)
    one, two = store.append([commit(step=1, expect=commit().id)._replace(**wrong), commit(step=1, expect=commit().id)])
    assert isinstance(one, InvalidInput)
    assert isinstance(two, Landed)
    other = FileStore(root)
    assert steps(other) == [0, 1]
    other.close()


def test_files_are_for_their_owner_only(store: FileStore, root: Path):
    write(store)
    for path in [root, *root.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path):
    (tmp_path / "store").write_text("a letter")
    with pytest.raises(InvalidInput, match="folder of its own"):
        FileStore(tmp_path / "store")


# -- compaction ------------------------------------------------------------------------------------------


def test_rewriting_costs_in_proportion_to_what_was_written(root: Path):
    class Counting(Disk):
        written = 0

        def write(self, fd: int, data: bytes, offset: int) -> int:
            self.written += len(data)
            return super().write(fd, data, offset)

    disk = Counting()
    store = FileStore(root, disk=disk)
    asked = 0
    for turn in range(60):
        grow(store, 8, size=4000)
        asked += 8 * 4300
        lo, hi = turn * 8, turn * 8 + 7
        pack = Artifact(PACK, 0, lo, hi, bytes(2000))
        assert store.rewrite(Rewrite("s", put=(pack,), thin=(Span(0, lo, hi),)))
        asked += 2100
    assert disk.written < 3.2 * asked
    assert log_of(root).stat().st_size < 60 * (8 * 400 + 2100) + 2 * 64 * 1024
    store.close()
    again = FileStore(root)
    bundle = again.load("s", 0)
    assert [row.step for row in bundle.rows] == list(range(480))
    assert len(bundle.packs) == 60
    again.close()


def test_a_rewritten_log_is_the_same_session(root: Path):
    clock = FakeClock()
    store = FileStore(root, clock=clock)
    lease = store.acquire("s", "me", 50_000)
    store.post([entry("a"), entry("b"), entry("c", body=bytes(1000))])
    grow_fenced(store, lease.token)
    land(store, commit(step=20, expect=commit(step=19).id, token=lease.token, takes=("b",), ttl=60))
    clock.advance(10)
    fork = commit(step=1, branch="other", line=1, starts=True, token=lease.token, blobs=("aa",))
    land(store, fork)
    put = (Artifact(PACK, 0, 5, 9, b"pack", (Span(0, 1, 2),), ("bb",)), Artifact(ANCHOR, 0, 0, 4, b"anchor"))
    store.rewrite(Rewrite("s", put=put, thin=(Span(0, 5, 9),)))
    cursor = store.changes().cursor
    before = (store.look("s"), store.dump("s"), store.load("s", 1), store.artifacts("s"))
    inode = log_of(root).stat().st_ino
    with store._handle.known("s", exclusive=True) as file:
        assert file is not None
        file.compact()
    assert log_of(root).stat().st_ino != inode
    for handle in (store, FileStore(root, clock=clock)):
        assert (handle.look("s"), handle.dump("s"), handle.load("s", 1), handle.artifacts("s")) == before
        assert handle.changes(cursor).items == ()
        assert set(handle.blob_refs()) == {"aa", "bb"}
        (answer,) = handle.post([entry("b")])
        assert answer is False
    land(store, commit(step=2, expect=fork.id, branch="other", line=1, token=lease.token))
    assert [change.step for change in store.changes(cursor).items] == [2]
    store.close()


def test_a_rewritten_log_remembers_that_something_was_dropped(root: Path):
    store = FileStore(root)
    write(store, count=2)
    cursor = store.changes().cursor
    grow(store, 20, size=20_000)
    store.rewrite(Rewrite("s", put=(Artifact(ANCHOR, 0, 0, 19, b""),), drop=(Span(0, 0, 19),)))
    store.close()
    again = FileStore(root)
    with pytest.raises(CursorExpired):
        again.changes(cursor)
    page = again.changes()
    assert [change.step for change in page.items] == [20, 21]
    assert again.changes(page.cursor).items == ()
    again.close()


def grow_fenced(store: FileStore, token: int) -> None:
    """Twenty commits under a lease."""
    expect = None
    for step in range(20):
        item = commit(step=step, expect=expect, token=token, payload=os.urandom(1000))
        land(store, item)
        expect = item.id


def test_leftovers_of_an_interrupted_rewrite_are_removed(root: Path):
    make(root, 2)
    left = log_of(root).with_name("log.new")
    left.write_bytes(b"half a log")
    store = FileStore(root)
    write(store)
    assert not left.exists()
    assert steps(store) == [0, 1, 2]
    store.close()


def test_an_error_of_the_store_reads_as_advice(store: FileStore):
    with pytest.raises(PerdureError, match="there is no session"):
        store.load("nobody", 0)
