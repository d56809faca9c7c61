"""Checks of somebody's own app: whether it would survive a kill, by killing it; and what to fix.

The app runs in child processes (:mod:`perdure.doctor.app_process`), each in a scratch folder with a scratch database.
Its tools really run. What its runs mean is judged in :mod:`perdure.doctor.app_checks`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from typing import TYPE_CHECKING, Any

from perdure.doctor import app_checks
from perdure.doctor.app_process import AGENT, PROGRAM, Task
from perdure.doctor.findings import FAIL, NOTE, AppRun, Finding
from perdure.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def check_app(app: str, say: list[str], *, really: bool, timeout: float) -> Iterator[Finding]:
    """All checks of an app, one after the other; places in it are told as seen from this folder.

    ``say`` is what an agent is told, in this order; one with a real model is only run when that is ``really`` wanted.
    """
    for finding in _findings(AppRunner(app, tuple(say) or ("Hello.",), timeout), bool(say), really=really):
        yield finding._replace(where=_from_here(finding.where))


def _findings(runner: AppRunner, said: bool, *, really: bool) -> Iterator[Finding]:
    about = runner.about
    if about["kind"] == AGENT and not about["offline"] and not really:
        yield app_checks.judge_window(about)
        words = f"{about['model']} is a real model: nothing was run; say --really to run it, and its tools, for real"
        yield Finding("run", NOTE, words)
        return
    with tempfile.TemporaryDirectory(prefix="perdure-doctor-") as place:
        first = runner.run(place, "first")
        left = app_checks.ending(first.url)
        yield app_checks.judge_run(first, about, said)
        yield app_checks.judge_values(first, left)
        writers = app_checks.judge_writers(first, left, lambda: runner.run(place, "contended", contend=True))
        yield writers
        yield app_checks.judge_saves(first, left)
        yield from app_checks.judge_cached_reads(first)
        if first.error is not None or first.late:
            yield Finding("resume", NOTE, "not tried: it does not run to its end undisturbed")
            return
        if writers.verdict == FAIL:
            yield Finding("resume", NOTE, "not tried: what its writers lose differs from run to run; see to them first")
        else:
            yield _resumes(runner, place, first, left)
        yield _history(runner, place, first)


class AppRunner:
    """Runs an app in children of its own."""

    def __init__(self, app: str, say: tuple[str, ...], timeout: float) -> None:
        place, colon, name = app.rpartition(":") if ":" in app else (app, "", "")
        # The children work in scratch folders: what is named must not depend on where they are.
        self._app = f"{os.path.abspath(place)}{colon}{name}" if place.endswith(".py") else app
        self._say = say
        self._timeout = timeout
        self.about = self._look()

    def _look(self) -> dict[str, Any]:
        """What the app is."""
        with tempfile.TemporaryDirectory(prefix="perdure-doctor-") as place:
            seen = run_child(Task(self._app, f"sqlite:///{place}/look.db", look=True), place, self._timeout)
        told = [event for event in seen.events if "kind" in event and "event" not in event]
        if not told or seen.error is not None:
            why = seen.error["words"] if seen.error is not None else "it ended while it was loaded"
            raise InvalidInput(f"{self._app[:200]} cannot be loaded: {why}"[:600])
        return told[0]

    def run(self, place: str, name: str, **how: Any) -> AppRun:
        """Run it once in a folder of its own, which stays for the next time."""
        folder = os.path.join(place, name)
        os.makedirs(folder, exist_ok=True)
        how = {"say": self._say, "program": self.about["kind"] == PROGRAM, **how}
        return run_child(Task(self._app, f"sqlite:///{folder}/doctor.db", **how), folder, self._timeout)


def run_child(task: Task, folder: str, timeout: float, paths: Sequence[str] = ()) -> AppRun:
    """Run an app in a process of its own until it ends, is stopped to be killed, or has no time left."""
    ours, theirs = os.pipe()
    paths = [*(paths or [os.getcwd()]), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "perdure.doctor.app_process", str(theirs), json.dumps(task)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    env.pop("PERDURE_STORE", None)
    # In a group of its own: what the app starts ends with it.
    child = subprocess.Popen(
        command, cwd=folder, env=env, pass_fds=(theirs,), start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(theirs)
    late = threading.Event()

    def end() -> None:
        # Also when only something that the app has left behind still holds on. Nobody asks how the app itself is:
        # that would give its number back, and with it the way to all that it has started.
        late.set()
        _kill(child)

    timer = threading.Timer(timeout, end)
    timer.start()
    events: list[dict[str, Any]] = []
    killed = False
    try:
        with os.fdopen(ours, encoding="utf-8") as lines:
            for line in lines:
                events.append(json.loads(line))
                if events[-1].get("event") == "here":
                    _kill(child)
                    killed = True
    finally:
        timer.cancel()
        _kill(child)
        child.wait()
    return AppRun(events, killed, task.url, late.is_set())


def _kill(child: subprocess.Popen[bytes]) -> None:
    # Its number stays its own until it has been waited for.
    if child.returncode is None:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            child.kill()


def _resumes(runner: AppRunner, place: str, first: AppRun, left: dict[str, Any]) -> Finding:
    """Kill it after some of its saves and inside some of its calls and answers, start it again, and compare its end."""
    points = app_checks.kill_points(first, agent=runner.about["kind"] == AGENT)
    if not points:
        return Finding("resume", NOTE, "there is no moment between two saves at which it could be killed")
    steady = app_checks.steadily_alike(left, app_checks.ending(runner.run(place, "second").url))
    if steady is None:
        return Finding("resume", NOTE, "two undisturbed runs end differently, so that a resumed one cannot be compared")
    killed: list[tuple[str, int]] = []
    parked: list[dict[str, Any]] = []
    for what, number in points:
        name = f"killed-{what}-{number}"
        cut_off = runner.run(place, name, stop=(what, number))
        if not cut_off.killed:
            # It has come less far than the first time.
            continue
        killed.append((what, number))
        seen = runner.run(place, name)
        now = app_checks.ending(seen.url)
        if steady and app_checks.steadily_alike(left, now) is not True:
            # What differs from run to run by itself, such as who of two is first, may have been alike by chance.
            steady = (
                app_checks.steadily_alike(left, app_checks.ending(runner.run(place, f"control-{what}-{number}").url))
                is True
            )
        found = app_checks.judge_resumed((what, number), seen, now, left, first, steady=steady)
        if found is None:
            parked.append(_cut_call(what, cut_off, first))
        elif found.verdict == FAIL:
            return found
    return app_checks.judge_ending(killed, parked, first)


def _cut_call(what: str, cut_off: AppRun, first: AppRun) -> dict[str, Any]:
    """The call that was cut off, or was about to be made."""
    made, calls = len(cut_off.of("tool")), first.of("tool")
    at = made - 1 if what == "tool" else made
    return calls[at] if at < len(calls) else {"name": "a call", "where": ""}


def _history(runner: AppRunner, place: str, first: AppRun) -> Finding:
    """See whether what an agent sends, or what an app keeps, only grows."""
    about = runner.about
    if about["kind"] != AGENT:
        return app_checks.judge_growth(runner.run(place, "many", repeat=app_checks.ROUNDS))
    found = app_checks.judge_window(about)
    if found.verdict == FAIL or not about["offline"] or (about["window"] or 0) > app_checks.LARGEST:
        return found
    # Long messages to a model that takes less than they come to; or, with a window, to one that takes everything.
    plain = max((event["size"] for event in first.of("answer")), default=0)
    limit = about["window"] or max(app_checks.SMALL, 4 * plain)
    played = 0 if about["window"] else limit
    talk = runner.run(place, "long", say=("Hello.",) * app_checks.MESSAGES, padding=limit // 8, limit=played)
    return app_checks.judge_long_talk(talk, about, limit) or found


def _from_here(where: str) -> str:
    file, colon, line = where.rpartition(":")
    here = os.getcwd() + os.sep
    return f"{file.removeprefix(here)}{colon}{line}"
