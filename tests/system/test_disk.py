"""Making a folder beside others, and never those above it; and files that get their names when they are whole."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from perdure.errors import InvalidInput
from perdure.system.disk import Disk, make_folder, write_whole

if TYPE_CHECKING:
    from pathlib import Path


def test_a_folder_that_others_make_between_two_looks_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    wanted = tmp_path / "blobs"
    look, looks = os.path.isdir, 0

    def isdir(path: str) -> bool:
        nonlocal looks
        looks += 1
        found = look(path)
        if looks == 1:
            wanted.mkdir()
        return found

    monkeypatch.setattr(os.path, "isdir", isdir)
    make_folder(Disk(), str(wanted))
    assert wanted.is_dir()


def test_a_file_in_the_place_of_a_folder_is_one(tmp_path: Path):
    (tmp_path / "deep").write_text("a file")
    with pytest.raises(NotADirectoryError, match="deep"):
        make_folder(Disk(), str(tmp_path / "deep" / "blobs"))


def test_folders_above_it_are_not_made(tmp_path: Path):
    with pytest.raises(InvalidInput, match=r"there is no folder .*/two words, .* `mkdir -p '.*/two words'`"):
        make_folder(Disk(), str(tmp_path / "two words" / "blobs"))
    assert list(tmp_path.iterdir()) == []


def unfinished(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name.endswith(".tmp"))


def test_what_a_killed_writer_left_behind_is_removed_by_the_next_one_for_that_name(tmp_path: Path):
    target = tmp_path / "all.backup"
    code = f"import os\nfrom perdure.system.disk import write_whole\nwith write_whole({str(target)!r}) as f:\n"
    code += "    f.write(b'half'); f.flush(); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    (tmp_path / "other.backup.0123abcd.tmp").write_bytes(b"of another name")
    assert len(unfinished(tmp_path)) == 2
    with write_whole(target) as living:
        living.write(b"whole")
        assert len(unfinished(tmp_path)) == 2
        # One that somebody writes at this moment is none.
        with write_whole(target) as second:
            second.write(b"another")
            assert len(unfinished(tmp_path)) == 3
        assert target.read_bytes() == b"another"
    assert target.read_bytes() == b"whole"
    assert unfinished(tmp_path) == ["other.backup.0123abcd.tmp"]


def test_who_is_taken_for_dead_before_the_file_is_locked_begins_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lock, taken = fcntl.flock, list[str]()

    def slow(file: object, how: int) -> None:
        if how == fcntl.LOCK_EX and not taken:
            taken.extend(unfinished(tmp_path))
            (tmp_path / taken[0]).unlink()
        lock(file, how)  # type: ignore[arg-type]

    monkeypatch.setattr(fcntl, "flock", slow)
    with write_whole(tmp_path / "all.backup") as file:
        file.write(b"whole")
    assert len(taken) == 1
    assert (tmp_path / "all.backup").read_bytes() == b"whole"
    assert unfinished(tmp_path) == []
