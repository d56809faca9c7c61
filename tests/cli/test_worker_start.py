"""``perdure worker`` that cannot start: one line, of the kind that its log has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.server.listening import until

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


def test_a_server_and_a_worker_are_started_together_where_there_is_no_database(tmp_path: Path):
    """Whoever is first makes it: neither fails, nor waits for the other."""
    (tmp_path / "app.py").write_text(APP)
    env = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")}
    argv = (("serve", "--port", "0", "--json"), ("worker", "app", "--log-json"), ("serve", "--port", "0", "--json"))
    outs = [(tmp_path / f"{number}.out", tmp_path / f"{number}.err") for number in range(len(argv))]
    begun: list[subprocess.Popen[bytes]] = []
    try:
        for words, (out, err) in zip(argv, outs, strict=True):
            with out.open("wb") as told, err.open("wb") as logged:
                begun.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "perdure.cli", *words], cwd=tmp_path, env=env, stdout=told, stderr=logged
                    )
                )

        def ready() -> bool:
            assert [one.poll() for one in begun] == [None] * 3, [err.read_text() for _, err in outs]
            serving = ('"url"', "serves desk", '"url"')
            files = [outs[0][0], outs[1][1], outs[2][0]]
            return all(sign in file.read_text() for sign, file in zip(serving, files, strict=True))

        until(ready)
    finally:
        for one in begun:
            one.kill()
            one.wait()
    # Who merely looks makes none, and what is no database is refused by all.
    (tmp_path / "notes.txt").write_text("notes")
    for words in (("console", "--no-browser", "--store", "other.db"), ("serve", "--store", "notes.txt")):
        ended = subprocess.run(
            [sys.executable, "-m", "perdure.cli", *words], cwd=tmp_path, env=env, capture_output=True, check=False,
            timeout=PATIENCE,
        )  # fmt: skip
        assert ended.returncode != 0, words
    assert not (tmp_path / "other.db").exists()
