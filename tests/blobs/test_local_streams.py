"""Streams into a folder of blobs: whole or not at all, through power losses, full disks and failing syncs."""

from __future__ import annotations

import errno
import random
from typing import TYPE_CHECKING

import pytest

from perdure.blobs.local import LocalBlobs
from perdure.errors import Poisoned, StoreFull
from perdure.system import faults
from tests.blobs.durable_disk import DurableDisk
from tests.blobs.test_local import POINTS, Failing, PowerGone, files, ref_of

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.testing.clock import FakeClock

PIECES = [b"a film " * 1000, b"", b"in three " * 1000, b"parts"]
WHOLE = b"".join(PIECES)


@pytest.mark.parametrize("name", [*POINTS, "blobs.put.after_fsync", "never"])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_power_lost_at_any_point_leaves_whole_blobs_only(tmp_path: Path, clock: FakeClock, name: str, seed: int | None):
    disk = DurableDisk(tmp_path / "blobs")
    blobs = LocalBlobs(tmp_path / "blobs", clock=clock, disk=disk)
    promised = [blobs.put_stream([b"first"])]

    def hook(passed: str) -> None:
        if passed == name:
            raise PowerGone(passed)

    faults.hook = hook
    try:
        promised.append(blobs.put_stream(PIECES))
    except PowerGone:
        assert name != "never"
    faults.hook = None
    left = LocalBlobs(
        disk.after_power_loss(tmp_path / "left", None if seed is None else random.Random(seed)), clock=clock
    )
    for ref in {*promised, *(ref for ref, _ in left.refs())}:
        assert ref_of(b"".join(left.get_stream(ref))) == ref


@pytest.mark.parametrize("method", ["write", "rename"])
def test_a_full_disk_leaves_nothing_behind_and_works_again(tmp_path: Path, method: str):
    disk = Failing(method, errno.ENOSPC)
    blobs = LocalBlobs(tmp_path / "blobs", disk=disk)
    with pytest.raises(StoreFull, match="free some space"):
        blobs.put_stream(PIECES)
    assert files(tmp_path / "blobs") == []
    disk.method = ""
    assert b"".join(blobs.get_stream(blobs.put_stream(PIECES))) == WHOLE


def test_a_failed_sync_poisons_the_handle(tmp_path: Path):
    disk = Failing("fdatasync", errno.EIO)
    blobs = LocalBlobs(tmp_path / "blobs", disk=disk)
    with pytest.raises(Poisoned):
        blobs.put_stream(PIECES)
    disk.method = ""
    with pytest.raises(Poisoned, match="open these blobs again"):
        blobs.put_stream(PIECES)


def test_a_stream_of_what_is_there_leaves_one_file(tmp_path: Path):
    blobs = LocalBlobs(tmp_path / "blobs")
    for _ in range(3):
        blobs.put_stream(PIECES)
    assert len(files(tmp_path / "blobs")) == 1
