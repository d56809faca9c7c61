"""The worker as the manifests start it, as a real process: probed, scraped, drained, its log lines read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import perdure
from tests.blobs.places import bucket_url, unique
from tests.deploy.files import DEPLOY, compose, manifest
from tests.servers import objects
from tests.servers.objects import SECRET, objects_options
from tests.servers.postgres import PASSWORD
from tests.servers.process import free_port
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LIMIT = 90.0
KEY = "correct-horse-battery-staple"


class Running:
    """A worker with the arguments of the Deployment, on a store and a port of its own."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.port = free_port()
        self.env = {**os.environ, "PERDURE_STORE": f"sqlite:///{folder / 'agents.db'}", "PERDURE_KEY": KEY, **env}
        self.store = self.env["PERDURE_STORE"]
        args = manifest("Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
        own = {"9464": str(self.port), "0.0.0.0": "127.0.0.1"}
        self._log = folder / "worker.log"
        with self._log.open("wb") as log:
            command = [sys.executable, "-m", "perdure.cli", *(own.get(word, word) for word in args)]
            self.process = subprocess.Popen(command, cwd=DEPLOY, env=self.env, stdout=log, stderr=log)

    def get(self, path: str) -> tuple[int, str]:
        """What the worker answers; 0 while nobody does."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            with e:
                return e.code, e.read().decode()
        except OSError:
            return 0, ""

    def run(self, *command: str) -> Any:
        """Run a command of ours beside it."""
        command = (sys.executable, "-m", "perdure.cli", *command)
        return subprocess.run(command, env=self.env, cwd=DEPLOY, capture_output=True, text=True, check=False)

    def lines(self) -> list[dict[str, Any]]:
        """Its log."""
        return [json.loads(line) for line in self._log.read_text(encoding="utf-8").splitlines()]

    def wait_until(self, true: Callable[[], bool]) -> None:
        """Wait for a condition; fails when the worker ends before."""
        end = time.monotonic() + LIMIT
        while not true():
            assert self.process.poll() is None, self._log.read_text(encoding="utf-8")
            assert time.monotonic() < end, self._log.read_text(encoding="utf-8")
            time.sleep(0.05)


def services() -> dict[str, Any]:
    return compose()["services"]


@contextmanager
def worker(folder: Path, **env: str) -> Iterator[Running]:
    running = Running(folder, **env)
    try:
        running.wait_until(lambda: running.get("/readyz")[0] == 200)
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def test_a_worker_is_probed_scraped_and_goes_when_it_is_told_to(tmp_path: Path):
    with worker(tmp_path) as w:
        assert w.get("/healthz") == (200, "ok\n")
        assert w.run("submit", "visit-1", "hello", "--agent", "desk").returncode == 0
        done = 'perdure_session_outcomes_total{agent="desk",outcome="done"} 1.0'
        w.wait_until(lambda: done in w.get("/metrics")[1])
        text = w.get("/metrics")[1]
        assert 'perdure_checkpoint_size_bytes_count{kind="commit",store="sqlite"}' in text
        assert "perdure_worker_slots 20.0" in text
        assert "visit-1" not in text
        w.process.send_signal(signal.SIGTERM)
        assert w.process.wait(LIMIT) == 0
        lines = w.lines()
        assert any("serves desk" in line["message"] for line in lines)
        assert KEY not in json.dumps(lines)
    with perdure.open(w.store, keys=KEY) as db:
        assert db.look("visit-1").status == "idle"


def test_the_services_of_the_compose_file_work_together(tmp_path: Path):
    """The same servers, from their wheels, and the same environment."""
    environment = services()["worker"]["environment"]
    known = objects_options(objects())
    env = {
        "PERDURE_STORE": url_of("tiered", tmp_path),
        "PERDURE_DIRECT_STORE": url_of("postgres", tmp_path),
        "PERDURE_BLOBS": bucket_url(unique(tmp_path)),
        "AWS_ENDPOINT_URL": known["aws_endpoint"],
        "AWS_REGION": environment["AWS_REGION"],
        "AWS_ACCESS_KEY_ID": known["aws_access_key_id"],
        "AWS_SECRET_ACCESS_KEY": known["aws_secret_access_key"],
    }
    assert set(env) == {name for name in environment if name.startswith(("PERDURE", "AWS"))}
    with worker(tmp_path, **env) as w:
        migrated = w.run(*services()["migrate"]["command"])
        assert migrated.returncode == 0, migrated.stderr
        submitted = w.run("submit", "visit-1", "hello" + " there" * 20_000, "--agent", "desk")
        assert submitted.returncode == 0, submitted.stderr
        done = 'perdure_session_outcomes_total{agent="desk",outcome="done"} 1.0'
        w.wait_until(lambda: done in w.get("/metrics")[1])
        assert 'kind="commit",store="tiered"' in w.get("/metrics")[1]
        w.process.send_signal(signal.SIGTERM)
        assert w.process.wait(LIMIT) == 0
        told = json.dumps(w.lines())
    assert not [secret for secret in (PASSWORD, SECRET, KEY) if secret in told]


def test_what_kubernetes_runs_before_it_stops_a_worker_drains_it(tmp_path: Path):
    stop = manifest("Deployment")["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]
    with worker(tmp_path) as w:
        assert stop["command"][0] == "perdure"
        drained = w.run(*stop["command"][1:])
        assert drained.returncode == 0, drained.stderr
        assert w.process.wait(LIMIT) == 0
