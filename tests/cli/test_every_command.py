"""No command without a declared schema, a page in the reference, a test of its behaviour and of its JSON."""

from __future__ import annotations

import ast
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.main import get_command

from perdure.cli import program
from perdure.cli.output import FOR_PEOPLE, OUTPUTS, schema_of
from tests.cli.cases import CASES, Stage
from tests.cli.schemas import check, shapes_of
from tests.cli.terminals import in_terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Command

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = get_command(program.app).commands  # type: ignore[attr-defined]
REFERENCE = (ROOT / "docs/reference/cli.md").read_text("utf-8")
SHAPES = (ROOT / "docs/reference/json.md").read_text("utf-8")
SHOWN_ELSEWHERE = {"demo": "tests/demo/test_check.py"}
"""Negative answers that a quick case cannot bring about."""


def typed(path: Path) -> Iterator[str]:
    """The commands that a file of tests runs: ``command("ls", ...)``, or ``"perdure.cli", "ls"`` in a row."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        words: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            words = node.args if node.func.id in ("command", "started") else []
            yield from (word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str))
        elif isinstance(node, ast.List | ast.Tuple):
            said = [e.value if isinstance(e, ast.Constant) else None for e in node.elts]
            yield from (str(b) for a, b in itertools.pairwise(said) if a == "perdure.cli")


def test_every_command_declares_what_it_prints_for_programs():
    assert OUTPUTS.keys() | FOR_PEOPLE.keys() == COMMANDS.keys()
    assert not OUTPUTS.keys() & FOR_PEOPLE.keys()
    for name, output in OUTPUTS.items():
        options = {option for p in COMMANDS[name].params for option in p.opts}
        # What follows `bench` is read by the benchmarks themselves.
        assert output.option in options or name == "bench", f"{name} has no {output.option}"
        assert not output.when or len(output.when) == len(output.shapes)
    for name in FOR_PEOPLE:
        assert not any("--json" in p.opts for p in COMMANDS[name].params), f"{name} prints JSON: declare it"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_reference_with_its_help_and_its_shape(name: str):
    part = REFERENCE.partition(f"\n### perdure {name}\n")[2].partition("\n### ")[0]
    assert f"sage: perdure {name} " in part, "run python docs/reference/generate.py"
    assert "--help" in part
    if name in FOR_PEOPLE:
        assert "No JSON: " in part
        return
    output = OUTPUTS[name]
    for shape in (one.get("$ref", "") for one in schema_of(name).get("anyOf", [schema_of(name)])):
        kind = shape.rpartition("/")[2]
        assert not kind or f"[`{kind}`](json.md#{kind.lower()})" in part
        assert not kind or f"\n### `{kind}`\n" in SHAPES
    assert not output.negative or f"Ends with 1 when {output.negative}" in part


def test_every_command_has_a_test_of_its_behaviour():
    tested: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        if path != Path(__file__):
            tested.update(typed(path))
    assert sorted(COMMANDS.keys() - tested) == []


def test_every_command_has_a_case_that_shows_its_json():
    covered = [name for names in CASES for name in names]
    assert sorted(covered) == sorted(OUTPUTS)


@pytest.mark.parametrize("names", CASES, ids="-".join)
def test_what_it_prints_for_programs_fits_its_schema(
    names: tuple[str, ...], command: Command, tmp_path: Path, trip: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DESK_LEDGER", str(tmp_path / "ledger"))
    stage = Stage(command, tmp_path, trip)
    CASES[names](stage)
    for name in names:
        done = [result for seen, result in stage.seen if seen == name]
        shown = [document for result in done for document in check(name, result.out)]
        fits = set[str]().union(*(shapes_of(name, document) for document in shown))
        assert len(fits) == len(OUTPUTS[name].shapes), f"{name} showed only {fits}"
        negative = bool(OUTPUTS[name].negative) and name not in SHOWN_ELSEWHERE
        assert {result.code for result in done} == ({0, 1} if negative else {0}), name


def test_a_document_that_does_not_fit_is_found_out(command: Command, trip: Path):
    """The check itself: a field too many, one too few and one of another type."""
    good = command("stats", "--json").out
    check("stats", good)
    for bad in (good.replace('"bytes"', '"size"'), good.replace('"fleet": {', '"fleet": 7, "x": {'), "[]"):
        with pytest.raises(AssertionError, match="perdure stats"):
            check("stats", bad)


@pytest.mark.parametrize(
    "argv", [("ls",), ("log", "trip", "--graph"), ("diff", "trip@1", "trip@2"), ("why", "trip")], ids=" ".join
)
def test_colours_are_for_terminals_only(argv: tuple[str, ...], tmp_path: Path, trip: Path):
    line = [sys.executable, "-m", "perdure.cli", *argv, "--store", f"sqlite:///{trip}"]
    env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm-256color", "COLUMNS": "200"}
    piped = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, check=True, timeout=120)
    assert b"\x1b" not in piped.stdout + piped.stderr
    assert b"\x1b[" in in_terminal(line, tmp_path, env)
    assert b"\x1b[3" not in in_terminal(line, tmp_path, {**env, "NO_COLOR": "1"}), "no colour was wanted"
