"""The simulated disk: what may survive a power loss, and what must."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.campaigns.crash.lossy import TracedDisk
from tests.campaigns.crash.platter import MODES, SECTOR, Platter, Trace

if TYPE_CHECKING:
    from pathlib import Path


def _after(trace: Trace) -> Platter:
    platter = Platter(trace)
    for op in trace.ops:
        platter.do(op)
    return platter


def _written(tmp_path: Path, *, sync: bool, sync_folder: bool, data: bytes = b"hello") -> Platter:
    trace = Trace(str(tmp_path))
    disk = TracedDisk(trace)
    fd = disk.open(f"{tmp_path}/a", create=True)
    disk.write(fd, data, 0)
    if sync:
        disk.fdatasync(fd)
    if sync_folder:
        disk.fsync_folder(str(tmp_path))
    disk.close(fd)
    return _after(trace)


def test_what_was_synced_survives_whatever_happens(tmp_path: Path) -> None:
    platter = _written(tmp_path, sync=True, sync_folder=True)
    for mode in MODES:
        assert platter.survivors(random.Random(1), mode) == {f"{tmp_path}/a": b"hello"}
    assert platter.in_flight == 0


def test_a_file_whose_name_was_not_synced_may_be_gone(tmp_path: Path) -> None:
    platter = _written(tmp_path, sync=True, sync_folder=False)
    assert platter.survivors(random.Random(1), "drop") == {}
    assert platter.survivors(random.Random(1), "keep") == {f"{tmp_path}/a": b"hello"}


def test_bytes_that_were_not_synced_may_be_gone_though_the_name_is_there(tmp_path: Path) -> None:
    platter = _written(tmp_path, sync=False, sync_folder=True)
    assert platter.survivors(random.Random(1), "drop") == {f"{tmp_path}/a": b""}


def test_a_torn_write_keeps_whole_sectors_or_a_beginning(tmp_path: Path) -> None:
    data = b"".join(bytes([n]) * SECTOR for n in range(1, 9))
    platter = _written(tmp_path, sync=False, sync_folder=True, data=data)
    seen: set[bytes] = set()
    for seed in range(200):
        found = platter.survivors(random.Random(seed), "tear")[f"{tmp_path}/a"]
        assert found is not None
        seen.add(found)
        for at in range(0, len(found), SECTOR):
            sector = found[at : at + SECTOR]
            assert sector in (data[at : at + len(sector)], bytes(len(sector)))
    assert len(seen) > 20


def test_names_below_a_folder_that_is_lost_are_lost(tmp_path: Path) -> None:
    trace = Trace(str(tmp_path))
    disk = TracedDisk(trace)
    disk.mkdir(f"{tmp_path}/f")
    disk.close(disk.open(f"{tmp_path}/f/a", create=True))
    disk.fsync_folder(f"{tmp_path}/f")
    assert _after(trace).survivors(random.Random(1), "drop") == {}


def test_a_renamed_file_has_its_old_name_or_its_new_one(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"1")
    (tmp_path / "new").write_bytes(b"2")
    trace = Trace(str(tmp_path))
    TracedDisk(trace).rename(f"{tmp_path}/old", f"{tmp_path}/new")
    platter = _after(trace)
    assert platter.survivors(random.Random(1), "keep") == {f"{tmp_path}/new": b"1"}
    assert platter.survivors(random.Random(1), "drop") == {f"{tmp_path}/old": b"1", f"{tmp_path}/new": b"2"}


def test_writes_that_survive_keep_their_places(tmp_path: Path) -> None:
    trace = Trace(str(tmp_path))
    disk = TracedDisk(trace)
    fd = disk.open(f"{tmp_path}/a", create=True)
    disk.fsync_folder(str(tmp_path))
    for n in range(4):
        disk.write(fd, bytes([65 + n]), n)
    disk.close(fd)
    platter = _after(trace)
    seen = {platter.survivors(random.Random(seed), "subset")[f"{tmp_path}/a"] for seed in range(100)}
    assert {b"", b"ABCD", b"\0\0\0D", b"A\0C"} <= seen
