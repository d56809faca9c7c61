"""Making folders beside others who make the same ones."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from perdure.system.disk import Disk, make_folders

if TYPE_CHECKING:
    from pathlib import Path


def test_a_folder_that_others_make_between_two_looks_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    wanted = tmp_path / "deep" / "blobs"
    look, looks = os.path.isdir, 0

    def isdir(path: str) -> bool:
        nonlocal looks
        looks += 1
        found = look(path)
        if looks == 1:
            wanted.mkdir(parents=True)
        return found

    monkeypatch.setattr(os.path, "isdir", isdir)
    make_folders(Disk(), str(wanted))
    assert wanted.is_dir()


def test_a_file_in_the_place_of_a_folder_is_one(tmp_path: Path):
    (tmp_path / "deep").write_text("a file")
    with pytest.raises(NotADirectoryError, match="deep"):
        make_folders(Disk(), str(tmp_path / "deep" / "blobs"))
