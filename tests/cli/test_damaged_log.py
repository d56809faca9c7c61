"""A damaged last record of a log: every command that checks says so, until its loss is accepted."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure.errors import InvalidInput
from tests.stores.file.filing import flip, log_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

PROGRAM = """
import sys, perdure
from perdure.errors import Corrupted
with perdure.open(sys.argv[1], maintain=False) as db:
    try:
        print(db.read("trip").vars["n"])
    except Corrupted as error:
        print(error)
"""


@pytest.fixture
def damaged(tmp_path: Path) -> str:
    """A store with a session whose last, acknowledged checkpoint has one flipped bit, and one that is well."""
    url = f"file://{tmp_path}/store"
    with perdure.open(url, maintain=False) as db:
        for session in ("trip", "well"):
            with db.session(session, ttl=None) as s:
                for n in range(3):
                    s.vars["n"] = n
                    s.commit()
    log = log_of(tmp_path / "store", "trip")
    flip(log, log.stat().st_size * 8 - 200)
    return url


def test_verify_and_doctor_say_so_until_the_loss_is_accepted(command: Command, damaged: str):
    for _ in range(2):
        found = command("verify", "--all", "--store", damaged, "--json")
        assert (found.code, [f["session"] for f in found.json["findings"]]) == (1, ["trip"])
        assert found.json["sessions"] == 2
        told = command("doctor", "--store", damaged)
        assert (told.code, "perdure verify SESSION --accept-loss" in told.out) == (1, True)
    accepted = command("verify", "trip", "--accept-loss", "--store", damaged)
    assert accepted.code == 0
    assert "set aside" in accepted.out
    assert command("verify", "--all", "--store", damaged).code == 0
    told = command("doctor", "--store", damaged)
    assert (told.code, "log.damaged-" in told.out) == (0, True)
    with perdure.open(damaged, maintain=False) as db:
        assert db.read("trip").vars["n"] == 1


def test_a_second_process_sees_the_same(damaged: str):
    for _ in range(2):
        child = subprocess.run([sys.executable, "-c", PROGRAM, damaged], capture_output=True, text=True, check=True)
        assert "--accept-loss" in child.stdout


def test_a_loss_that_is_accepted_still_shows_against_a_witness(command: Command, tmp_path: Path):
    url = f"file://{tmp_path}/store"
    with perdure.open(url, maintain=False, witness=tmp_path / "heads") as db, db.session("trip", ttl=None) as s:
        for n in range(3):
            s.vars["n"] = n
            s.commit()
    log = log_of(tmp_path / "store", "trip")
    flip(log, log.stat().st_size * 8 - 200)
    assert command("verify", "trip", "--accept-loss", "--store", url).code == 0
    found = command("verify", "--all", "--store", url, "--witness", str(tmp_path / "heads"), "--json")
    assert [f["kind"] for f in found.json["findings"]] == ["lost"]


def test_accepting_needs_one_session_of_a_file_store(command: Command, tmp_path: Path):
    def words(*argv: Any) -> tuple[int, str]:
        result = command("verify", *argv, "--accept-loss")
        return result.code, result.err

    with perdure.open(f"sqlite:///{tmp_path}/a.db") as db, db.session("s") as s:
        s.commit()
    assert words("s", "--store", "a.db")[0] == 2
    assert "file store" in words("s", "--store", "a.db")[1]
    assert words("--all", "--store", "a.db")[0] == 2
    with perdure.open("memory://") as db, pytest.raises(InvalidInput, match="file store"):
        db.accept_damage("s")
