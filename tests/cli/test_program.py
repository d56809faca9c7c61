"""The program as a whole: its exit codes and its completion are what the reference says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from typer.main import get_command

import perdure
from perdure.cli import output, program

if TYPE_CHECKING:
    from tests.cli.conftest import Command

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = (ROOT / "docs/reference/cli.md").read_text("utf-8")


def test_the_documented_exit_codes_are_the_real_ones(command: Command, trip: Path):
    table = REFERENCE.partition("| exit code | meaning |")[2].partition("\n\n")[0]
    documented = {int(code): words for code, words in re.findall(r"^\| (\d+) \| (.*) \|$", table, re.MULTILINE)}
    assert list(documented) == [
        program.FINE, program.NEGATIVE, program.USAGE, program.STORE, program.TAKEN, output.STOPPED,
    ]  # fmt: skip
    assert output.STOPPED == 130
    assert command("ls").code == 0
    assert command("show", "nobody").code == 1
    assert command("ls", "--limit", "0").code == 2
    assert command("no-such-command").code == 2
    assert command("ls", "--store", "sqlite:///nowhere.db").code == 3
    with perdure.open(f"sqlite:///{trip}") as db, db.session("trip"):
        assert command("rewind", "trip@1").code == 4


def test_every_error_of_ours_has_a_documented_exit_code():
    for name in perdure.__all__:
        kind = getattr(perdure, name)
        if isinstance(kind, type) and issubclass(kind, perdure.PerdureError):
            made = kind.__new__(kind)
            assert program.exit_code(made) in (1, 2, 3, 4), name


def test_help_lists_every_command_once_under_the_heading_of_its_group(command: Command):
    parts = command("--help").out.split("\n\n")
    listed = {title: lines.splitlines() for title, _, lines in (part.partition(":\n") for part in parts[-8:])}
    assert list(listed) == list(program.GROUPS)
    names = {title: [line.split()[0] for line in lines] for title, lines in listed.items()}
    assert names["Sessions"] == ["ls", "show", "why", "stats", "tail"]
    assert names["Server and programs"] == ["serve", "console", "schema"]
    assert [name for group in names.values() for name in group] == list(get_command(program.app).commands)  # type: ignore[attr-defined]
    columns = {len(line) - len(line[2:].partition(" ")[2].lstrip()) for lines in listed.values() for line in lines}
    assert columns == {11}, "the words of all groups begin in one column"


def test_the_schema_of_every_command_can_be_asked_for(command: Command):
    one = command("schema", "ls").json
    assert command("schema", "ls").out == command("schema", "ls", "--json").out
    assert one["$ref"] == "#/$defs/SessionPage"
    assert one["$defs"]["Session"]["additionalProperties"] is False
    assert command("schema").json["ls"] == one
    for name, why in (("chat", "programs use"), ("nothing", "no such command")):
        found = command("schema", name)
        assert (found.code, found.out, why in found.err) == (1, "", True)


def test_the_benchmarks_can_be_run_from_the_command_line(command: Command, tmp_path: Path):
    found = command("bench", "cold", "--quick", "--only", "imports", "--dir", str(tmp_path))
    assert (found.code, "import.perdure_ms" in found.out) == (0, True), found.err
    assert command("bench").code == 2
    assert command("bench", "everything").code == 2


def test_the_shell_can_be_taught_the_commands(tmp_path: Path):
    env = {**os.environ, "_PERDURE_COMPLETE": "complete_bash", "COMP_WORDS": "perdure wh", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "from perdure.cli.program import app; app(prog_name='perdure')"],
        env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.stdout.split() == ["why"], done.stderr
    assert "--install-completion" in REFERENCE
