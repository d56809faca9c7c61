"""``perdure tail``: what is committed, as it happens, to people and to programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import perdure
from tests.cli import desk

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.cli.conftest import Command

CHANGE = ["session", "branch", "line", "step", "id", "kind", "status", "at", "cursor"]
EVENT = ["event", "session", "branch", "step", "position"]


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_all_commits_from_the_beginning(command: Command, trip: Path):
    told = command("tail", "--all", "--once", "--json")
    found = lines(told.out)
    assert told.code == 0
    assert all(list(change) == CHANGE for change in found)
    assert {(c["session"], c["branch"], c["step"]) for c in found} >= {("trip", "main", 3), ("visit", "main", 1)}
    cursor = found[-1]["cursor"]
    assert command("tail", "--since", cursor, "--once").out == ""
    with perdure.open(f"sqlite:///{trip}") as db, db.session("visit") as s:
        s.vars["n"] = 1
        s.commit()
    missed = lines(command("tail", "--since", cursor, "--once", "--json").out)
    assert [(c["session"], c["step"]) for c in missed] == [("visit", 2)]
    assert command("tail", "--since", cursor, "--once").out.rstrip().endswith("visit@2  commit  idle")


def test_only_what_comes_from_now_on_until_it_is_interrupted(tmp_path: Path, trip: Path):
    child = subprocess.Popen(
        [sys.executable, "-m", "perdure.cli", "tail", "--json", "--store", f"sqlite:///{trip}"],
        cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    over = threading.Event()

    def write() -> None:
        """Until it was seen: nobody knows from outside when a reader has begun."""
        with perdure.open(f"sqlite:///{trip}") as db, db.session("visit") as s:
            for n in range(10_000):
                s.vars["n"] = n
                s.commit()
                if over.wait(0.05):
                    return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        first = json.loads(child.stdout.readline())
    finally:
        over.set()
        writer.join()
        child.send_signal(signal.SIGINT)
    assert (first["session"], first["kind"]) == ("visit", "commit")
    assert child.wait(60) == 130
    child.stdout.close()


def test_one_session_is_told_until_its_run_has_ended(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DESK_LEDGER", str(tmp_path / "ledger"))
    url = f"sqlite:///{tmp_path}/agents.db"
    desk.agent.run_sync(url, session="s", message="book 7")
    events = lines(command("tail", "s", "--after", "0", "--once", "--json").out)
    assert all(list(event)[:5] == EVENT for event in events)
    assert [e["step"] for e in events] == [1, 2, 3]
    assert events[-1]["text"] == "booked 7"
    shown = command("tail", "s", "--after", "0", "--once")
    assert shown.out.splitlines()[-1] == "booked 7"
    assert command("tail", "s", "--once").out == ""
    # Who was cut off goes on right there; all of it was told before, up to the end of the run.
    rest = lines(command("tail", "s", "--after", events[0]["position"], "--json").out)
    assert rest[:-1] == events[1:]
    assert rest[-1]["event"] == "ended"


def test_hostile_words_are_only_text(command: Command, tmp_path: Path):
    nasty = "\x1b]0;x\x07\x1b[2J<b>" + "w" * 100_000
    desk.agent.run_sync(f"sqlite:///{tmp_path}/agents.db", session="s\x1b[1m", message=nasty)
    for argv in (("s\x1b[1m", "--after", "0"), ("s\x1b[1m", "--after", "0", "--json"), ("--all",)):
        found = command("tail", *argv, "--once")
        assert found.code == 0
        assert found.out
        assert "\x1b" not in found.out
        assert "\x07" not in found.out


def test_what_makes_no_sense(command: Command, trip: Path):
    for argv in (
        ("trip", "--all"),
        ("--after", "1"),
        ("trip", "--after", "x"),
        ("trip", "--after", "-1"),
        ("--since", "x", "--all"),
        ("--since", "no cursor", "--once"),
    ):
        found = command("tail", *argv)
        assert (found.code, found.err.count("\n")) == (2, 1), argv
    assert command("tail", "nobody", "--once").code == 1
    assert os.listdir(trip.parent)


def test_people_who_read_through_a_pipe_see_it_as_it_happens(tmp_path: Path, trip: Path):
    # As in a shell of people: nobody has said there that nothing is to be held back.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    child = subprocess.Popen(
        [sys.executable, "-m", "perdure.cli", "tail", "--all", "--store", f"sqlite:///{trip}"],
        cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    assert child.stdout is not None
    # One that waits for more before it says anything would wait for ever: nothing more is written.
    timer = threading.Timer(60, child.kill)
    timer.start()
    try:
        assert "trip@1" in child.stdout.readline()
        assert child.poll() is None, "it was ended before it said anything"
    finally:
        timer.cancel()
        child.kill()
        child.wait()
        child.stdout.close()
