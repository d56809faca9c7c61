"""The commands that are suggested: each can be typed as it is, and goes to the database that was asked."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest

import perdure
from perdure.cli.program import COMMANDS
from perdure.session.actions import Action, Do
from tests.cli.desk import refund, wire

if TYPE_CHECKING:
    from tests.cli.conftest import Command


ELSEWHERE = {"cli/agents.py", "cli/server.py", "cli/which_database.py", "stores/sqlite/file.py"}
"""Their words are of no database, or name two: a new folder, what prints JSON, which commands make one, a copy."""


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
        assert commands.typed("why t", "redis://ana:s3cret@db.example") == (
            "perdure why t --store redis://ana@db.example"
        )
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


def told_by_a_program(command: Command, url: str) -> list[str]:
    """What a program that has a database open is told to type about it."""
    assert command("run", "tests.cli.desk", "s", "refund 7", "--store", url).code == 0
    with perdure.open(url) as db:
        with db.session("s") as s:
            (asked,) = s.approvals()
        asks = perdure.why(db, "s")
        decided = db.approve("s", asked.id, by="ana").words
        submitted = perdure.submit(db, "new", "hello", agent="desk").handover
        waits = perdure.why(db, "s")
    assert submitted is not None
    actions = [line for action in (*asks.actions, *waits.actions) for line in (action.command, *action.others)]
    text = "\n".join((decided, submitted.words, str(waits), *actions))
    return re.findall(r"perdure (?:resume|worker|approve|reject|retry) .*?(?=,|\.?$|\. )", text, re.MULTILINE)


def test_what_a_program_is_told_to_type_goes_to_its_database(command: Command, tmp_path: Path):
    (tmp_path / "data").mkdir()
    told = told_by_a_program(command, "sqlite:///data/my.db")
    assert len(told) >= 7
    assert [line for line in told if not line.endswith(" --store sqlite:///data/my.db")] == []
    resume = next(line for line in told if line.startswith("perdure resume"))
    assert command(*shlex.split(resume.replace("APP", "tests.cli.desk"))[1:]).code == 0


def test_what_every_command_finds_by_itself_is_not_named(command: Command, monkeypatch: pytest.MonkeyPatch):
    told = told_by_a_program(command, ".perdure/agents.db")
    assert [line for line in told if "--store" in line] == []
    monkeypatch.setenv("PERDURE_STORE", "sqlite:///other.db")
    told = told_by_a_program(command, "sqlite:///other.db")
    assert [line for line in told if "--store" in line] == []


def test_a_program_with_two_databases_is_told_of_the_one_it_asked(command: Command):
    with perdure.open("sqlite:///one.db") as one, perdure.open("sqlite:///two.db") as two:
        for db in (one, two):
            perdure.submit(db, "s", "hello", agent="desk")
        assert "perdure worker APP --store sqlite:///two.db" in str(perdure.why(two, "s"))
        (first, *_) = perdure.why(one, "s").actions
    assert first.command == "perdure worker APP --store sqlite:///one.db"


def test_an_error_at_open_names_the_database(tmp_path: Path):
    path = tmp_path / "x.db"
    perdure.open(f"sqlite:///{path}").close()
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(perdure.Corrupted, match=f" --store sqlite:///{path}$"):
        perdure.open(f"sqlite:///{path}")


def test_no_error_suggests_a_command_that_names_no_database():
    """Every command in a text of the library goes through the one function that knows the database."""
    source = Path(perdure.__file__).parent
    program = re.compile(rf"perdure ({'|'.join(COMMANDS)})\b")
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


NAMES = [
    "new\nline", "it's\x1b[2J\\n", "\t7\x017", "a\u202eb\u200b", "my trip", "$HOME `id` $(id) !! \"x\" \\", "#x", "*",
    "-x", "--retry", "--", "-", "-h", "--store=y.db", "-new\nline", "-it's", "--abort --done",
]  # fmt: skip


def pasted(*lines: str) -> list[list[str]]:
    """The words that a shell makes of commands."""
    script = "perdure() { printf '%s\\0' \"$@\"; printf '\\1'; }\n" + "\n".join(lines)
    told = subprocess.run(["bash", "-c", script], capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout
    return [one.decode().split("\0") for one in told.split(b"\0\1")[:-1]]


@pytest.mark.parametrize("name", NAMES)
def test_a_suggested_command_for_any_name_works_when_it_is_pasted(command: Command, name: str):
    url = "sqlite:///perdure.db"
    with perdure.open(url) as db, db.session(name) as s, pytest.raises(perdure.InDoubt):
        s.call(wire, 7)
    here = suggested(command("why", "--", name).out)[2]
    there = suggested(command("why", "--store", "perdure.db", "--", name).out)[2]
    (plain, named) = pasted(here, there)
    assert command(*named).code == 0
    assert suggested(command("why", "--", name).out) == []
    assert "is not in doubt" in command(*plain).err


@pytest.fixture(scope="module")
def program() -> Any:
    """All commands, as the program reads them."""
    from typer.main import get_command

    from perdure.cli.program import app

    return get_command(app)


@pytest.mark.parametrize("name", NAMES)
def test_every_suggested_command_means_what_it_names(program: Any, name: str):
    from perdure.system import commands

    about = {Do.UNHOLD: name, Do.RUN: "dry"}
    actions = [Action(deed, name, about.get(deed, "ap_1"), branch) for deed in Do for branch in ("main", "-b", "a b")]
    try:
        commands.name("--store", "-odd place.db")
        told = [(action, line) for action in actions for line in (action.command, *action.others) if line]
    finally:
        commands.forget()
    for (action, _), (command, *words) in zip(told, pasted(*(line for _, line in told)), strict=True):
        read = program.commands[command].make_context(command, words).params
        assert read["store"] == "-odd place.db"
        meant = read["agent"] if action.name == Do.UNHOLD else read.get("session", read.get("sessions"))
        assert action.name == Do.WORKER or meant in (name, [name])
        assert action.name not in (Do.RUN, Do.RESOLVE, Do.MESSAGE) or read.get("branch", "main") == action.branch
        assert read.get("done") in (None, "RESULT")
