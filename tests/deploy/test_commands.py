"""The commands that deploy/ runs, or tells people to run, exist and take the options they are given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import typer.main

from perdure.cli.program import app
from tests.deploy.files import DEPLOY, ROOT, manifest, run_commands, told_commands
from tests.store_urls import url_of

if TYPE_CHECKING:
    from pathlib import Path

TELLING = [
    *sorted(p for p in DEPLOY.rglob("*") if p.is_file() and p.suffix not in (".json", ".pyc")),
    ROOT / "docs/howto/deploy.md",
    ROOT / "docs/howto/telemetry.md",
]


def parse(command: list[str]) -> Any:
    """Have the command line take a command apart without running it."""
    group: Any = typer.main.get_command(app)
    name, *rest = command
    assert name in group.commands, f"there is no command perdure {name}"
    return group.commands[name].make_context(name, rest)


@pytest.mark.parametrize("command", sorted({" ".join(command) for command in run_commands()}))
def test_what_is_run_can_be_run(command: str):
    parse(command.split())


@pytest.mark.parametrize("name", sorted({command[0] for command in run_commands()}))
def test_what_is_run_helps_itself(name: str):
    done = subprocess.run([sys.executable, "-m", "perdure.cli", name, "--help"], capture_output=True, check=False)
    assert done.returncode == 0


def test_an_option_that_there_is_not_is_found():
    with pytest.raises(Exception, match="No such option"):
        parse(["worker", "app", "--gracefully", "45"])


@pytest.mark.parametrize("path", TELLING, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_people_are_told_to_type_exists(path: Path):
    for command in told_commands(path.read_text(encoding="utf-8")):
        parse(command)


def test_enough_is_read_to_find_something_wrong():
    found = [command[0] for path in TELLING for command in told_commands(path.read_text(encoding="utf-8"))]
    assert {"workers", "drain", "ls", "verify", "worker", "submit", "migrate"} <= set(found)


def run(*command: str, **env: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "perdure.cli", *command, "--json"],
        capture_output=True, text=True, check=False, env={**os.environ, **env}, cwd=DEPLOY,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["postgres", "tiered"])
def test_the_migration_makes_the_tables_and_may_be_run_again(kind: str, tmp_path: Path):
    args = manifest("Job")["spec"]["template"]["spec"]["containers"][0]["args"]
    store = url_of(kind, tmp_path)
    for _ in range(2):
        answer = run(*args, PERDURE_STORE=store)
        assert (answer["migrated"], answer["failed"]) == (0, [])
