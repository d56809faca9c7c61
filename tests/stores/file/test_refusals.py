"""What the system refuses: full disks, failed syncs, folders without permission."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from perdure.errors import (
    Poisoned,
    StoreFull,
    Unavailable,
)
from perdure.model import ANCHOR, Artifact, Landed, Rewrite, Span
from perdure.stores.file.store import FileStore
from perdure.testing.sealed_rows import commit, entry, land, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


from tests.stores.file.filing import FailingDisk, grow, log_of, steps


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
