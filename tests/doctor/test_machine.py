"""``perdure doctor``: a healthy machine is found healthy, and one that keeps nothing is found out."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure.doctor import machine
from perdure.doctor.findings import OK, Finding

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_doctor_finds_a_healthy_machine_healthy(command: Command, tmp_path: Path, kind: str):
    url = f"sqlite:///{tmp_path}/agents.db" if kind == "sqlite" else f"file://{tmp_path}/store"
    with perdure.open(url) as db, db.session("s") as s:
        s.vars["x"] = 1
        s.commit()
    before = sorted(os.listdir(tmp_path))
    result = command("doctor", "--store", url, "--json")
    report = result.json
    assert (result.code, report["ok"]) == (0, True), report
    verdicts = {f["name"]: f["verdict"] for f in report["checks"]}
    assert verdicts["SIGKILL during a commit"] == verdicts["SIGKILL between commits"] == "ok"
    assert verdicts["key"] == "note"
    told = next(f["detail"] for f in report["checks"] if f["name"] == "store")
    assert "survives" in told
    # Nothing takes a commit back that has returned: what could be dropped is a lock.
    assert ("locks" in told, "take that back" in told) == (kind == "sqlite", False)
    assert sorted(os.listdir(tmp_path)) == before, "the scratch database is gone and nothing else was made"


def test_a_doctor_that_is_killed_leaves_no_process_and_no_traceback(tmp_path: Path):
    from perdure.doctor import commit_process

    for pipe_is_gone in (True, False):
        with subprocess.Popen(
            [sys.executable, "-m", "perdure.doctor.commit_process", f"sqlite:///{tmp_path}/a.db", "s"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as child:  # fmt: skip
            assert child.stdin is not None
            assert child.stdout is not None
            assert child.stderr is not None
            # What is left of whoever was killed: nothing holds the pipes any more, at once or while it waits.
            if pipe_is_gone:
                child.stdout.close()
            else:
                assert child.stdout.read(2 * commit_process.STOP_AT + 5).endswith(b"here\n")
            child.stdin.close()
            try:
                assert child.wait(60) == 1
            finally:
                child.kill()
            assert child.stderr.read() == b""


def test_doctor_makes_no_database(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PERDURE_KEY", "a key of sixteen bytes and more")
    result = command("doctor")
    assert result.code == 0
    assert "digests are keyed" in result.out
    assert list(tmp_path.iterdir()) == []


def test_a_note_is_no_check_that_has_passed(command: Command):
    told = command("doctor").out.splitlines()
    passed, notes = (sum(line[:4] == verdict for line in told) for verdict in ("ok  ", "note"))
    assert notes > 1
    assert told[-1] == f"{passed} checks passed, {notes} notes"


def test_doctor_fails_on_a_bad_key_and_on_a_damaged_store(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PERDURE_KEY", "short")
    (tmp_path / "agents.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    result = command("doctor", "--store", "agents.db")
    assert result.code == 1
    assert {"key", "store"} <= {line[6:].partition(":")[0] for line in result.out.splitlines() if line[:4] == "fail"}


def test_a_server_is_asked_for_what_is_there_and_nothing_is_tried_outside_this_folder(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "here").mkdir()
    result = command("doctor", "--store", "redis://127.0.0.1:1")
    assert (result.code, "fail  store: " in result.out) == (1, True)
    tried: list[str] = []
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(machine, "check_disk", lambda folder: tried.append(folder) or Finding("disk", OK, ""))
    monkeypatch.setattr(machine, "check_durability", lambda kind, folder: tried.append(folder) or [])
    assert [f.name for f in machine.check_machine("redis://127.0.0.1:1")] == ["versions", "key", "store", "disk"]
    assert tried == [str(tmp_path / "here")] * 2


def test_a_disk_that_keeps_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The check itself: a child that says it has committed what is not there."""
    url = f"sqlite:///{tmp_path}/scratch.db"
    with perdure.open(url) as db, db.session("killed between", ttl=None) as s:
        s.vars["number"] = 1
        s.messages.append({"role": "user", "content": "message 1"})
        s.commit()
    liar = tmp_path / "liar"
    liar.write_text("#!/bin/sh\necho 1; echo 2; echo 3; echo here; sleep 60\n")
    liar.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(liar))
    finding = machine.check_kill(url, "between")
    assert (finding.verdict, finding.words) == ("fail", "3 commits had returned, 1 are there")
