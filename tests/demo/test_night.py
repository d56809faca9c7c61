"""A whole small night, with real workers that are really killed: what is printed, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import perdure
from tests.store_urls import url_of

PATIENCE = 240
KEYS = {
    "sessions", "finished", "kills", "sessions_hit", "resumes", "lost_messages", "duplicate_effects",
    "recovery_p50_seconds", "recovery_max_seconds", "tokens_saved_percent", "saves_per_second", "duration_seconds",
}  # fmt: skip


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "perdure.cli", "demo", "--no-live", *options]


def played(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.run(
        command(*options), cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE
    )


def left_behind(folder: Path) -> list[int]:
    """Processes whose environment names the folder: workers, and what they have started."""
    found: list[int] = []
    for place in Path("/proc").iterdir():
        if not place.name.isdigit() or int(place.name) == os.getpid():
            continue
        try:
            if str(folder).encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_small_night_loses_nothing(tmp_path: Path, kind: str):
    url = url_of(kind, tmp_path)
    done = played(
        tmp_path, "--sessions", "40", "--kills", "4", "--workers", "3", "--factor", "0.2", "--json", "--store", url
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report.keys() >= KEYS
    assert report["ok"]
    assert report["sessions"] == report["finished"] == 40
    assert report["kills"] == 4
    assert report["evictions"] + report["freezes"] > 0
    assert report["lost_messages"] == report["duplicate_effects"] == report["missing_effects"] == 0
    assert report["sessions_hit"] > 0
    assert report["resumes"] >= report["hits"] >= report["sessions_hit"]
    assert 0 < report["recovery_p50_seconds"] <= report["recovery_max_seconds"]
    assert 0 < report["tokens_saved_percent"] < 100
    assert report["verified"]["sessions"] == 40
    assert "conversations finished" in done.stderr
    assert left_behind(tmp_path) == []
    # The store was named: it is still there to look at.
    with perdure.open(url, maintain=False) as db:
        assert len(db.sessions(limit=100)) == 40


def test_a_night_without_kills_is_told_in_words(tmp_path: Path):
    done = played(tmp_path, "--sessions", "3", "--kills", "0", "--workers", "1", "--factor", "0.01")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3" in done.stdout
    assert "Nothing was lost, and nothing was done twice." in done.stdout
    assert "\x1b" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert list(tmp_path.iterdir()) == [], "what was not asked for is not kept"


def test_a_night_that_is_broken_off_leaves_no_process(tmp_path: Path):
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command("--sessions", "30", "--kills", "1", "--workers", "2"),
        env=env, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as demo:  # fmt: skip
        assert demo.stderr is not None
        until = time.monotonic() + PATIENCE
        while "the night" not in demo.stderr.readline():
            assert time.monotonic() < until
        assert left_behind(tmp_path) != []
        demo.send_signal(signal.SIGTERM)
        demo.communicate(timeout=PATIENCE)
        assert demo.returncode != 0
    assert left_behind(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["memory://", "file:///{}/store"])
def test_a_store_that_no_fleet_can_work_on_is_refused(tmp_path: Path, url: str):
    done = played(tmp_path, "--store", url.format(tmp_path))
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
