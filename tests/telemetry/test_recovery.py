"""A worker is killed in mid-step: the one that takes over measures how long its session stood still."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import perdure
from perdure.fleet.board import submit
from tests.servers.process import free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LIMIT = 90.0


def start(store: str, folder: Path, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "perdure.cli", "worker", "tests.telemetry.app", "--store", store, "--lease", "1"]
    command += ["--metrics-port", str(port), "--log-json"]
    with (folder / f"{port}.log").open("wb") as log:
        return subprocess.Popen(command, env={**os.environ, "SCENE": str(folder)}, stdout=log, stderr=log)


def wait_until(true: Callable[[], Any]) -> Any:
    end = time.monotonic() + LIMIT
    while not (found := true()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def value(port: int, series: str) -> float:
    """What a series stands at; -1 while the worker does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    except OSError:
        return -1.0
    found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_recovery_is_measured_by_whoever_takes_over(tmp_path: Path):
    store = f"sqlite:///{tmp_path / 'agents.db'}"
    one, two = free_port(), free_port()
    with perdure.open(store) as db:
        submit(db, "visit-1", "hello", agent="patient")
    first = start(store, tmp_path, one)
    second = None
    try:
        wait_until((tmp_path / "A-1.begun").exists)
        first.kill()
        first.wait()
        killed = time.monotonic()
        second = start(store, tmp_path, two)
        (tmp_path / "go").touch()
        wait_until(lambda: value(two, 'perdure_session_outcomes_total{agent="patient",outcome="done"}') == 1)
        took = time.monotonic() - killed
        assert value(two, "perdure_worker_takeovers_total") == 1
        assert value(two, "perdure_recovery_duration_seconds_count") == 1
        assert 0 < value(two, "perdure_recovery_duration_seconds_sum") < took + LIMIT
        assert value(two, 'perdure_resumes_total{error_type="",outcome="ok",status="running"}') == 1
        assert value(two, 'perdure_effect_in_doubt_total{tool="wait_for_it"}') == 1
        # Everything about the whole fleet is there, too.
        wait_until(lambda: value(two, "perdure_workers") >= 1)
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
                process.wait()
