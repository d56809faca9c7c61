"""Starts processes to be killed, cheaply: everything is imported once, then each job is a fork of its own.

The process that is killed opens the store itself, after the fork; nothing of a store is ever opened here. Run
as ``python -m tests.campaigns.crash.zygote``: a job per line on standard input, how it ended per line on standard
output.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
import traceback
import warnings
from typing import TYPE_CHECKING, Any

from perdure.system import faults
from tests.campaigns.crash import plans
from tests.campaigns.crash.journal import FileJournal
from tests.campaigns.crash.oracle import Oracle
from tests.campaigns.crash.sabotage import sabotage
from tests.campaigns.crash.server_worker import Stubborn
from tests.campaigns.crash.worker import Worker, small_thresholds

if TYPE_CHECKING:
    from collections.abc import Callable

FOUND_PROBLEMS, BROKE = 3, 4
OPENING = "open"
"""The scenario that is nothing but opening a store that is not there yet."""
FULL_CHECK_EVERY = 8
PATIENCE = 300
"""Seconds after which a process that does not end is ended: something is wrong with it."""
BUSY = ("commit", "call", "run", "fork", "rewind", "merge", "tag", "post", "answer", "wake", "gather", "compact",
        "migrate", "sweep", "revive", "prune", "collect", "backup", "torn", "recall")  # fmt: skip
"""What a process does that is to be killed at any moment."""


def die_at(name: str, hit: int) -> None:
    """Have this process killed the ``hit``-th time it passes a point."""
    left = hit

    def hook(passed: str) -> None:
        nonlocal left
        if passed == name:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    faults.hook = hook


def work(job: dict[str, Any], ready: int) -> int:
    """Do one job in a process of its own: check the store, take up what was left, go on until killed."""
    rng = random.Random(job["seed"])
    journal = FileJournal(job["journal"])
    at = job.get("point")
    if at and job.get("early"):
        die_at(at, job["hit"])
    passed = count_points() if job.get("census") else {}
    folder = os.path.dirname(job["journal"])
    w = Worker(job["url"], journal, rng, maintain=job.get("maintain", False), folder=folder, **job.get("options", {}))
    history = journal.history
    full = job.get("full") or job["seed"] % FULL_CHECK_EVERY == 0
    found = Oracle(w.db, history).check(None if full else set(history.touched), 0 if full else 12, job["seed"])
    for problem in found:
        journal.note("problem", kind=problem.kind, what=problem.what)
    if history.problems:
        return FOUND_PROBLEMS
    journal.note("checked")
    os.write(ready, b"!")
    plans.take_up(w)
    if job.get("census"):
        journal.note("census", scenario=OPENING, points=passed)
        _census(w, job)
        w.close()
        return 0
    if job.get("finish"):
        return _finish(w)
    for _ in range(job.get("warm", 0)):
        plans.perform(w, rng.choice(BUSY))
    if at and not job.get("early"):
        die_at(at, job["hit"])
    if job.get("stop"):
        Stubborn(w, job["options"]["lease_ttl"]).work(job["stop"], BUSY)
        w.close()
        return 0
    for _ in range(job["rounds"]):
        for name in job["scenario"] or [rng.choice(BUSY)]:
            plans.perform(w, name)
    w.close()
    return 0


def count_points() -> dict[str, int]:
    """From now on, count how often each point is passed."""
    passed: dict[str, int] = {}

    def count(point: str) -> None:
        passed[point] = passed.get(point, 0) + 1

    faults.hook = count
    return passed


def _census(w: Worker, job: dict[str, Any]) -> None:
    """Find out which points each scenario passes, and how often."""
    for name in job["scenario"]:
        # The first time round is not counted: it makes folders and files that are there ever after.
        plans.perform(w, name)
        passed = count_points()
        plans.perform(w, name)
        faults.hook = None
        w.journal.note("census", scenario=name, points=passed)


def _finish(w: Worker) -> int:
    """Nothing is left open; then everything that was ever planned must be there, once."""
    journal = w.journal
    for session in ("inbox-0", "inbox-1", "runs-0", "runs-1"):
        with w.db.session(session) as s:
            for message in s.take():
                s.messages.append({"answers": message.key})
            if s.changed:
                s.commit()
                w.saw(s)
    oracle = Oracle(w.db, w.history)
    for problem in (*oracle.check(), *oracle.finished()):
        journal.note("problem", kind=problem.kind, what=problem.what)
    w.close()
    return FOUND_PROBLEMS if w.history.problems else 0


def _child(job: dict[str, Any], ready: int) -> int:
    try:
        # A torn tail is what a kill leaves; a session left with edits is what an exception leaves.
        warnings.simplefilter("ignore")
        signal.alarm(PATIENCE)
        sabotage(job.get("sabotage"))
        with small_thresholds():
            return work(job, ready)
    except BaseException:
        journal = FileJournal(job["journal"])
        journal.note("problem", kind="error", what=traceback.format_exc())
        return BROKE


def serve(child: Callable[[dict[str, Any], int], int] = _child) -> None:
    """Take jobs until there are no more; ``child`` does one, in a process of its own."""
    answers = os.dup(1)
    os.dup2(2, 1)
    for line in sys.stdin:
        job = json.loads(line)
        told, ready = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(told)
            os._exit(child(job, ready))
        os.close(ready)
        if job.get("delay") is not None:
            if not job.get("early"):
                select.select([told], [], [], 30)
            time.sleep(job["delay"])
            # Not waited for yet, so the number still names this process, alive or not.
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(told)
        code = os.waitstatus_to_exitcode(status)
        # Any other signal than ours is a crash of its own making.
        ended = {"killed": code == -signal.SIGKILL, "code": code}
        os.write(answers, json.dumps(ended).encode() + b"\n")


class Zygote:
    """A running zygote, from outside."""

    def __init__(self, module: str = "tests.campaigns.crash.zygote") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._jobs, self._answers = self._process.stdin, self._process.stdout

    def do(self, job: dict[str, Any]) -> dict[str, Any]:
        """Have a job done; says whether its process was killed, and how it ended otherwise."""
        self._jobs.write(json.dumps(job) + "\n")
        self._jobs.flush()
        answer = self._answers.readline()
        if not answer:
            raise RuntimeError("the zygote has ended")
        return json.loads(answer)

    def close(self) -> None:
        """End it."""
        self._jobs.close()
        self._process.wait()
        self._answers.close()


if __name__ == "__main__":
    serve()
