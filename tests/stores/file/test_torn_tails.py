"""A torn tail of a log is cut and reported."""

from __future__ import annotations

import random
import struct
import zlib
from typing import TYPE_CHECKING

import pytest

from perdure.errors import Corrupted
from perdure.model import Landed
from perdure.stores.file.records import MAGIC, MAX_BODY, pack
from perdure.stores.file.root import salt_of, session_name
from perdure.stores.file.store import FileStore, TornTail
from perdure.system.disk import Disk
from perdure.testing.sealed_rows import commit, land, write

if TYPE_CHECKING:
    from pathlib import Path


from tests.stores.file.filing import log_of, make, steps


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


@pytest.mark.parametrize("tail", [bytes(5000), b"\x9ePd", bytes(700) + b"\xff" * 64, b"\xff" * 1000 + bytes(1024)])
def test_what_was_not_written_as_a_whole_is_a_torn_tail(root: Path, tail: bytes):
    make(root, 2)
    with log_of(root).open("ab") as log:
        log.write(tail)
    store = FileStore(root)
    with pytest.warns(TornTail):
        write(store)
    assert steps(store) == [0, 1, 2]
    assert [torn.bytes for torn in store.torn] == [len(tail)]
    store.close()


@pytest.mark.parametrize("tail", [b"\xff" * 64, random.Random(1).randbytes(100), random.Random(2).randbytes(3000)])
def test_garbage_at_the_end_that_no_interrupted_write_leaves_is_refused_and_kept_when_that_is_accepted(
    root: Path, tail: bytes
):
    make(root, 2)
    with log_of(root).open("ab") as log:
        log.write(tail)
    store = FileStore(root)
    with pytest.raises(Corrupted):
        write(store)
    kept = store.accept_loss("s")
    assert kept is not None
    with open(kept, "rb") as saved:
        assert saved.read() == tail
    write(store)
    assert steps(store) == [0, 1, 2]
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
    head = struct.pack("<3sBIII", MAGIC, 2, MAX_BODY, 0, 0)
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
    payload = random.Random(3).randbytes(600)
    batch = [commit(step=1, expect=commit().id, payload=payload), commit(step=2, expect=commit(step=1).id)]
    assert store.append(batch) == [Landed(item.id) for item in batch]
    store.close()
    raw = bytearray(log_of(root).read_bytes())
    raw[end:512] = bytes(512 - end)
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
    fake, _ = pack([(2, b"x")], end, salt_of(session_name("other")))
    write(store, payload=fake * 20)
    store.close()
    raw = log_of(root).read_bytes()
    log_of(root).write_bytes(raw[:-3])
    again = FileStore(root)
    with pytest.warns(TornTail):
        write(again)
    assert steps(again) == [0, 1]
    again.close()
