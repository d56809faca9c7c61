"""The commands that are suggested: each can be typed as it is, and goes to the database that was asked."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest

import perdure
from perdure.cli.program import COMMANDS
from perdure.session.actions import Action, Do
from tests.cli.desk import refund, wire

if TYPE_CHECKING:
    from tests.cli.conftest import Command


ELSEWHERE = {"cli/agents.py", "cli/server.py", "cli/transfer.py", "system/commands.py", "upkeep/backup.py"}
"""Their words are of no database: a new folder, what prints JSON, what a file is called."""


@pytest.fixture
def named(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database that no command finds by itself, with a call in doubt and one that waits; its path."""
    (tmp_path / "other place").mkdir()
    with perdure.open(f"sqlite:///{tmp_path}/other place/x.db") as db:
        with db.session("doubt") as s, pytest.raises(perdure.InDoubt):
            s.call(wire, 7)
        with db.session("asks") as s, pytest.raises(perdure.CallError):
            s.call(refund, 1)
    return "other place/x.db"


def suggested(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.startswith("  perdure ")]


def test_a_suggested_command_settles_the_call_in_the_database_that_was_asked(command: Command, named: str):
    done, retry, abort = suggested(command("why", "doubt", "--store", named).out)
    assert done.endswith("--done RESULT --store 'other place/x.db'")
    assert shlex.split(retry)[-3:] == ["--retry", "--store", named]
    assert command(*shlex.split(abort)[1:]).code == 0
    assert suggested(command("why", "doubt", "--store", named).out) == []


def test_every_door_of_the_command_line_names_the_database(command: Command, named: str):
    for argv in (("why", "asks"), ("approve", "asks", "--list")):
        ways = suggested(command(*argv, "--store", named).out)
        assert len(ways) == 3
        assert all(shlex.split(typed)[-2:] == ["--store", named] for typed in ways)
    found = command("why", "doubt", "--store", named, "--json").json
    (action,) = found["actions"]
    for typed in (found["command"], action["command"], *action["others"]):
        assert shlex.split(typed)[-2:] == ["--store", named]
    typed = shlex.split(command("ls", "--limit", "1", "--store", named).out.splitlines()[-1].partition(": ")[2])
    assert "doubt" in command(*typed[1:]).out


def test_what_the_environment_names_is_not_repeated_and_nothing_stays_for_the_next(
    command: Command, named: str, monkeypatch: pytest.MonkeyPatch
):
    assert "--store" in command("why", "doubt", "--store", named).out
    monkeypatch.setenv("PERDURE_STORE", named)
    assert "--store" not in command("why", "doubt").out


def test_a_password_is_not_repeated():
    from perdure.system import commands

    try:
        commands.name("--store", "postgresql://ana:s3cret@db.example/agents")
        assert commands.typed("why t") == "perdure why t --store postgresql://ana@db.example/agents"
    finally:
        commands.forget()


def test_how_a_witness_is_written_names_the_database(command: Command, named: str):
    refused = command("verify", "--all", "--witness", "nowhere at all", "--store", named)
    assert refused.err.rstrip().endswith(
        "perdure verify --all --witness 'nowhere at all' --update-witness --store 'other place/x.db'"
    )


def test_a_command_for_programs_is_only_a_command(command: Command, named: str):
    found = command("why", "doubt", "--store", named, "--json").json
    (action,) = found["actions"]
    effect = action["argument"]
    tail = ["--store", named]
    assert shlex.split(found["command"]) == ["perdure", "resolve", "doubt", effect, "--done", "RESULT", *tail]
    assert [shlex.split(one)[4:] for one in action["others"]] == [["--retry", *tail], ["--abort", *tail]]


def test_how_a_loss_is_accepted_names_the_database():
    from perdure.system import commands
    from perdure.upkeep.verify import Finding
    from perdure.upkeep.witness import behind

    try:
        commands.name("--store", "x.db")
        told = str(behind("seen by", [Finding("lost", "s", "session 's'", "it is gone")]))
    finally:
        commands.forget()
    assert told.endswith("perdure verify --all --witness 'seen by' --accept-loss --store x.db")


@pytest.mark.parametrize("deed", list(Do))
def test_a_suggested_command_knows_the_options_that_it_is_given(deed: Do):
    from perdure.cli.program import COMMANDS

    action = Action(deed, "s", "a")
    for typed in (action.command, *action.others):
        if typed:
            parameters = inspect.signature(COMMANDS[typed.split()[1]][1]).parameters
            assert {"store", "blobs"} <= set(parameters), typed


def test_what_was_found_in_the_folder_every_suggested_command_finds_again(command: Command, tmp_path: Path):
    with perdure.open(f"sqlite:///{tmp_path}/my agents.db") as db:
        perdure.submit(db, "queued", "hello", agent="desk")
    worker, resume = suggested(command("why", "queued").out)
    assert (worker, resume) == ("perdure worker APP", "perdure resume APP queued")


def test_an_error_of_a_program_names_the_database_that_it_has_open(command: Command, tmp_path: Path):
    (tmp_path / "far away").mkdir()
    url = f"sqlite:///{tmp_path}/far away/x.db"
    with perdure.open(url) as db:
        with db.session("s") as s:
            s.commit()
        connection = apsw.Connection(f"{tmp_path}/far away/x.db")
        connection.cursor().execute("update commits set digest = randomblob(32)").fetchall()
        connection.close()
        with pytest.raises(perdure.Corrupted) as damaged:
            db.read("s")
        words = str(damaged.value)
        with perdure.open(f"sqlite:///{tmp_path}/y.db"), pytest.raises(perdure.Corrupted, match=r" --store URL$"):
            db.read("s")
    found = command(*shlex.split(words[words.index("perdure verify") :])[1:])
    assert found.code == 1
    assert "corrupted: session 's'" in found.out


def test_an_error_at_open_names_the_database(tmp_path: Path):
    path = tmp_path / "x.db"
    perdure.open(f"sqlite:///{path}").close()
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(perdure.Corrupted, match=f" --store sqlite:///{path}$"):
        perdure.open(f"sqlite:///{path}")


def test_no_error_suggests_a_command_that_names_no_database():
    """Every command in a text of the library goes through the one function that knows the database."""
    source = Path(perdure.__file__).parent
    program = re.compile(rf"perdure ({'|'.join(COMMANDS)})\\b")
    spoken_of = {
        "server/auth.py",
        "server/api/openapi.py",
        "server/request_checks.py",
        "bench/report.py",
        "bench/__init__.py",
    }
    for path in source.rglob("*.py"):
        name = str(path.relative_to(source))
        tree = ast.parse(path.read_text("utf-8"))
        docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
        helps = {id(k.value) for n in ast.walk(tree) if isinstance(n, ast.Call) for k in n.keywords if k.arg == "help"}
        said = [
            n.value
            for n in ast.walk(tree)
            if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in docs | helps
            and program.search(n.value)
        ]  # fmt: skip
        assert not said or name in spoken_of | ELSEWHERE, (name, said)


@pytest.mark.parametrize("name", ["new\nline", "it's\x1b[2J\\n", "\t7\x017", "a\u202eb\u200b", "my trip"])
def test_a_suggested_command_for_a_name_that_cannot_be_seen_works_when_it_is_pasted(command: Command, name: str):
    url = "sqlite:///perdure.db"
    with perdure.open(url) as db, db.session(name) as s, pytest.raises(perdure.InDoubt):
        s.call(wire, 7)
    _, _, abort = suggested(command("why", name).out)
    script = "perdure() { printf '%s\\0' \"$@\"; }; "
    pasted = subprocess.run(["bash", "-c", script + abort], capture_output=True, check=True).stdout.decode()
    assert command(*pasted.split("\0")[:-1]).code == 0
    assert suggested(command("why", name).out) == []
