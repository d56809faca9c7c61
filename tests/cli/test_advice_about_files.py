"""What is said of damaged files names a command that works, and makes nothing."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure.cli.program import run
from perdure.errors import Corrupted

if TYPE_CHECKING:
    from pathlib import Path


def test_the_command_suggested_for_a_store_given_by_its_path_finds_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "agents.db"
    with perdure.open(path) as db, db.session("s") as s:
        s.vars["n"] = "x" * 20_000
        s.commit()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\1" * 8192)
    with pytest.raises(Corrupted) as told:
        perdure.open(path)
    (words,) = re.findall("see what is left: perdure (.*)", str(told.value))
    run(shlex.split(words))
    assert "SQLite finds the file damaged" in capsys.readouterr().err


def test_no_database_is_made_for_a_backup_that_is_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with perdure.open(tmp_path / "agents.db") as db, db.session("s") as s:
        s.commit()
        db.backup(tmp_path / "backup")
    whole = (tmp_path / "backup").read_bytes()
    (tmp_path / "cut").write_bytes(whole[:-40])
    assert run(["restore", str(tmp_path / "cut"), "--store", str(tmp_path / "new.db")])
    told = capsys.readouterr().err
    assert "take another copy of this file" in told
    assert "verify" not in told
    assert not (tmp_path / "new.db").exists()


def test_prune_names_its_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with perdure.open(tmp_path / "agents.db") as db, db.session("s") as s:
        s.commit()
    assert run(["prune", "s", "--store", str(tmp_path / "agents.db")])
    assert "--keep-last 100, --keep-every 10" in capsys.readouterr().err
