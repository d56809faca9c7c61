"""A session with a screenshot in its state, its blobs in a bucket: from one machine to another, into a backup and out
of it, and gone when nothing refers to it any more."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import perdure
import tests.servers
from perdure.blobs import open_blobs
from perdure.errors import InvalidInput
from perdure.testing.clock import FakeClock
from tests.blobs.places import bucket_url, unique, variables
from tests.servers.objects import SECRET, objects_options

SCREENSHOT = random.Random(8).randbytes(3_000_000)
READ = """
import hashlib, sys, perdure
with perdure.open(sys.argv[1], blobs=sys.argv[2]) as db:
    seen = db.read("trip")
    print(hashlib.sha256(seen.messages[0]["screenshot"]).hexdigest(), seen.vars["budget"])
"""


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix in a bucket, reachable as people set it up: by variables of the environment."""
    for name, value in variables(tests.servers.objects()).items():
        monkeypatch.setenv(name, value)
    return bucket_url(unique(tmp_path))


@pytest.fixture
def url(tmp_path: Path, bucket: str) -> str:
    """A database with one session, one screenshot in it."""
    url = f"sqlite:///{tmp_path}/agents.db"
    with perdure.open(url, blobs=bucket) as db, db.session("trip", owner="ana") as s:
        s.messages.append({"role": "tool", "screenshot": SCREENSHOT})
        s.vars["budget"] = 12_000
        s.commit()
    return url


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args], env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=120
    )


def perdure_says(*args: str, blobs: str = "") -> subprocess.CompletedProcess[str]:
    return run("-m", "perdure.cli", *args, **({"PERDURE_BLOBS": blobs} if blobs else {}))


def test_another_machine_reads_it(url: str, bucket: str, tmp_path: Path):
    assert not list(tmp_path.glob("*blobs*")), "nothing of it is beside the store"
    done = run("-c", READ, url, bucket)
    assert done.stderr == ""
    assert done.stdout.split() == [hashlib.sha256(SCREENSHOT).hexdigest(), "12000"]


def test_commands_find_the_blobs_by_an_option_or_a_variable(url: str, bucket: str):
    wanted = "1 session, 1 checkpoint, 1 blob: all as they were written"
    assert wanted in perdure_says("verify", "--all", "--store", url, "--blobs", bucket).stdout
    assert wanted in perdure_says("verify", "--all", "--store", url, blobs=bucket).stdout
    without = perdure_says("verify", "--all", "--store", url)
    assert without.returncode == 1
    assert "missing" in without.stdout
    assert f"Its blobs are in {bucket}" in perdure_says("doctor", "--store", url, blobs=bucket).stdout


def test_a_backup_carries_it_into_another_store_and_another_bucket(url: str, bucket: str, tmp_path: Path):
    file = str(tmp_path / "monday.perdure")
    done = perdure_says("backup", file, "--store", url, "--json", blobs=bucket)
    assert json.loads(done.stdout)["blobs"] == 1, done.stderr
    copy = f"sqlite:///{tmp_path}/copy.db"
    refused = perdure_says("restore", file, "--store", copy, blobs=bucket)
    assert refused.returncode == 2
    assert "holds the blobs of another store" in refused.stderr
    assert SECRET not in refused.stderr + done.stderr
    done = perdure_says("restore", file, "--store", copy, "--blobs", f"{bucket}-copy")
    assert done.stdout.startswith("1 session restored: 1 checkpoint, 1 blob, "), done.stdout + done.stderr
    assert run("-c", READ, copy, f"{bucket}-copy").stdout.split()[0] == hashlib.sha256(SCREENSHOT).hexdigest()


def test_it_goes_when_nothing_refers_to_it_any_more(tmp_path: Path, bucket: str):
    clock = FakeClock()
    url = f"sqlite:///{tmp_path}/agents.db"
    with perdure.open(url, clock=clock) as db:
        store_id = db.kernel.store.id
    blobs = open_blobs(bucket, store_id, clock=clock, config=objects_options(tests.servers.objects()))
    with perdure.open(url, blobs=blobs, clock=clock) as db:
        with db.session("trip", ttl=60) as s:
            for n in range(40):
                s.vars["screenshot"] = SCREENSHOT[: 1_000_000 + n % 2]
                s.commit()
        assert len(list(blobs.refs())) == 2, "the same screenshot in forty checkpoints is stored once"
        db.prune("trip", keep_last=1)
        clock.advance(3_600_001)
        assert db.sweep().removed == 1
        before = db.collect()
        assert before.kept >= 1, "it can still be brought back"
        clock.advance(7 * 86_400_000)
        assert db.sweep().deleted == 1
        assert db.collect() == (2 - before.deleted, 0, 0)
        assert list(blobs.refs()) == []


def test_a_database_does_not_open_with_blobs_that_are_not_its_own(url: str, bucket: str, tmp_path: Path):
    with pytest.raises(InvalidInput, match="another store"):
        perdure.open(f"sqlite:///{tmp_path}/other.db", blobs=bucket)
    with perdure.open(url, blobs=bucket) as db:
        assert db.read("trip").messages[0]["screenshot"] == SCREENSHOT
