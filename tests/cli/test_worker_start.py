"""``perdure worker`` that cannot start: one line, of the kind that its log has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE = 120
APP = "from perdure import Agent, ScriptedModel\nagent = Agent('desk', model=ScriptedModel(['hello']))\n"
WRONG = {
    "no such program": (("nothing_of_that_name",), 2, "InvalidInput"),
    "a store of no kind": (("app", "--store", "oracle://x"), 2, "UnknownStore"),
    "a store without a board": (("app", "--store", "file://./agents"), 2, "InvalidInput"),
    "a server that is not there": (("app", "--store", "redis://ana:hunter2@127.0.0.1:9/0"), 3, "Unavailable"),
    "a program that breaks": (("broken",), 2, "InvalidInput"),
}


@pytest.mark.parametrize("log_json", [True, False], ids=["json", "plain"])
@pytest.mark.parametrize("wrong", WRONG)
def test_an_error_at_the_start_is_one_line(tmp_path: Path, wrong: str, log_json: bool):
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    argv, code, kind = WRONG[wrong]
    ended = subprocess.run(
        [sys.executable, "-m", "perdure.cli", "worker", *argv, *(["--log-json"] if log_json else [])],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert ended.returncode == code, ended.stderr
    assert "hunter2" not in ended.stderr
    (line,) = ended.stderr.splitlines()
    if log_json:
        said = json.loads(line)
        assert (said["level"], said["error"]) == ("error", kind)
        assert said["message"]
    else:
        assert line.startswith("perdure: ")
