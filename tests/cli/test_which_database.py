"""The command line: which database it opens, what it refuses, and how it ends."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import TYPE_CHECKING

import apsw
import pytest

import perdure
from perdure.cli.program import exit_code
from perdure.errors import Busy, Conflict, Corrupted, InvalidInput, LeaseLost, Misuse, NotFound, Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command


def test_a_missing_database_is_said_and_not_made(command: Command, tmp_path: Path):
    for store in ([], ["--store", "sqlite:///nope.db"], ["--store", "nope.db"], ["--store", f"file://{tmp_path}/no"]):
        result = command("ls", *store)
        assert result.code == 3
        assert "there is no database" in result.err
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_not_made_into_a_database(command: Command, tmp_path: Path):
    (tmp_path / "agents.db").touch()
    result = command("ls", "--store", "agents.db")
    assert result.code == 3
    assert (tmp_path / "agents.db").stat().st_size == 0


@pytest.mark.parametrize("store", ["memory://", "nonsense://x", "sqlite://x"])
def test_a_store_nobody_can_look_at_is_wrong_usage(command: Command, store: str):
    assert command("ls", "--store", store).code == 2


def test_a_file_of_another_program_is_refused(command: Command, tmp_path: Path):
    (tmp_path / "notes.db").write_text("these are my notes, and no database")
    assert command("ls", "--store", "notes.db").code == 2


def test_several_databases_must_be_chosen_from(command: Command, trip: Path, tmp_path: Path):
    with perdure.open(f"sqlite:///{tmp_path}/other.db"):
        pass
    result = command("ls")
    assert result.code == 2
    assert "agents.db, other.db" in result.err


def test_the_store_may_come_from_the_environment(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with perdure.open(f"file://{tmp_path}/store") as db, db.session("in-files") as s:
        s.vars["x"] = 1
        s.commit()
    monkeypatch.setenv("PERDURE_STORE", f"file://{tmp_path}/store")
    assert "in-files" in command("ls").out
    monkeypatch.delenv("PERDURE_STORE")
    assert "in-files" in command("ls", "--store", "store").out


def test_a_missing_session_is_a_negative_answer(command: Command, trip: Path):
    for argv in (("show", "nobody"), ("log", "nobody"), ("diff", "nobody@1", "trip@1")):
        result = command(*argv)
        assert result.code == 1
        assert result.err.startswith("perdure: there is no session 'nobody'")
        assert result.err.count("\n") == 1


def test_damage_is_reported_in_one_line(command: Command, trip: Path):
    with apsw.Connection(str(trip)) as db:
        db.execute("update commits set envelope = zeroblob(40) where step = 3")
    result = command("show", "trip")
    assert result.code == 3
    assert result.err.count("\n") == 1


def test_a_traceback_is_shown_only_when_asked_for(command: Command, trip: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PERDURE_DEBUG", "1")
    with pytest.raises(NotFound):
        command("show", "nobody")


def test_every_family_of_errors_has_its_exit_code():
    assert exit_code(NotFound("x")) == 1
    assert exit_code(InvalidInput("x")) == exit_code(Misuse("x")) == 2
    assert exit_code(Unavailable("x")) == exit_code(Corrupted("here", "x")) == 3
    assert exit_code(Busy("s", "h", 0)) == exit_code(LeaseLost("x")) == exit_code(Conflict("x")) == 4


def test_wrong_usage_ends_with_two(command: Command):
    assert command("nonsense").code == 2
    assert command("show").code == 2
    assert command("ls", "--limit", "0").code == 2


def test_the_version_is_the_packages(command: Command):
    assert command("--version").out == f"perdure {perdure.__version__}\n"


def test_the_command_ends_quietly_when_nobody_reads_on(trip: Path):
    shell = f"'{sys.executable}' -m perdure.cli log trip --store '{trip}' --json | head -c 1"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_the_package_of_commands_is_light_until_it_is_used():
    code = "import sys, perdure.cli; print('typer' in sys.modules, 'rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


APP = "tests.cli.desk"


def test_an_agent_is_run_on_the_only_database_of_the_folder(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whatever was done there is not done again in another one."""
    monkeypatch.setenv("DESK_LEDGER", str(tmp_path / "ledger"))
    for _ in range(2):
        made = command("run", APP, "s", "book 7", "--key", "k", "--store", "agents.db")
        assert made.code == 0
    assert "had been answered before" in command("run", APP, "s", "book 7", "--key", "k").out
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n/quit\n"))
    assert "session s: resumed" in command("chat", APP, "--session", "s").out
    assert len((tmp_path / "ledger").read_text().splitlines()) == 1
    assert not (tmp_path / ".perdure").exists()


def test_a_worker_serves_the_only_database_of_the_folder(command: Command, trip: Path, monkeypatch: pytest.MonkeyPatch):
    asked = _asked_of_workers(monkeypatch)
    assert command("worker", APP).code == 0
    assert asked == ["agents.db"]


def test_where_there_are_several_an_agent_is_run_on_none(
    command: Command, trip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with perdure.open(f"sqlite:///{tmp_path}/other.db"):
        pass
    asked = _asked_of_workers(monkeypatch)
    for argv in (("run", APP, "s", "hello"), ("chat", APP), ("worker", APP)):
        refused = command(*argv)
        assert refused.code == 2
        assert "agents.db, other.db" in refused.err
    assert asked == []
    assert not (tmp_path / ".perdure").exists()


def test_a_database_that_is_made_is_told(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    told = "there was no database here: .perdure/agents.db was made"
    first = command("run", APP, "s", "hello", "--json")
    assert first.json["status"] == "done"
    assert told in first.err
    assert told not in command("run", APP, "s", "hello").err
    (tmp_path / ".perdure").rename(tmp_path / "gone")
    monkeypatch.setattr("sys.stdin", io.StringIO("/quit\n"))
    assert told in command("chat", APP).err
    assert (tmp_path / ".perdure" / "agents.db").exists()


def test_a_backup_goes_to_the_only_database_of_the_folder(command: Command, trip: Path, tmp_path: Path):
    assert command("backup", "all.bak").code == 0
    assert command("restore", "all.bak").code == 0
    assert not (tmp_path / ".perdure").exists()


def _asked_of_workers(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    asked: list[str | None] = []

    async def start(agents: object, store: str | None, *_: object, **__: object) -> None:
        asked.append(store)

    # What it sets up for its log lines would stay for other tests.
    monkeypatch.setattr("perdure.telemetry.logs.configure", lambda **_: None)
    monkeypatch.setattr("perdure.fleet.worker.start_worker", start)
    return asked
