"""``perdure submit``, ``workers``, ``pause``, ``unpause``, ``retry``, ``drain`` and cancelling in bulk."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure.fleet.board import board_of
from perdure.protocols import Filter, Rest, WorkerRow
from perdure.system.lease_holders import new_holder

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A database with three sessions on the board."""
    found = f"sqlite:///{tmp_path / 'agents.db'}"
    with perdure.open(found) as db:
        for name, owner in (("a", "ana"), ("b", "bea"), ("c", "ana")):
            perdure.submit(db, name, f"hello from {name}", agent="desk", owner=owner, key="1")
    return found


def states(url: str) -> dict[str, str]:
    """Where each session is on the board."""
    found: dict[str, str] = {}
    with perdure.open(url) as db:
        for state in ("queued", "working", "waiting", "parked", "paused"):
            found |= {w.session: state for w in board_of(db).works(Filter(state=state))}
    return found


def test_submit_puts_a_message_there_once(command: Command, url: str):
    first = command("submit", "d", "hello", "--agent", "desk", "--owner", "dan", "--key", "k", "--json")
    assert first.json == {
        "session": "d", "agent": "desk", "new": True, "queued": True, "message_key": "k", "answer": None,
    }  # fmt: skip
    assert command("submit", "d", "hello", "--key", "k").out == "d: was there already\n"
    with perdure.open(url) as db:
        row = db.look("d")
        assert (row.agent, row.owner, row.pending) == ("desk", "dan", 1)
    assert states(url)["d"] == "queued"


def test_submit_needs_to_know_the_agent_of_a_new_session(command: Command, url: str):
    found = command("submit", "new", "hello")
    assert (found.code, "--agent" in found.err) == (2, True)
    assert command("submit", "new", "hello", "--agent", "x" * 500).code == 2
    assert command("submit", "new", "hello", "--agent", "desk", "--priority", "5000").code == 2


def test_a_store_without_a_board_says_so(command: Command, tmp_path: Path):
    with perdure.open(f"file://{tmp_path}/log") as db, db.session("s") as s:
        s.commit()
    found = command("workers", "--store", f"file://{tmp_path}/log")
    assert found.code == 2
    assert "postgresql" in found.err


def test_workers_says_who_works_and_what_nobody_serves(command: Command, url: str):
    assert "no worker is running" in command("workers").out
    assert "desk: 3 queued (unserved: no worker has this agent)" in command("workers").out
    with perdure.open(url) as db:
        board_of(db).beat(WorkerRow("w", "host", 7, "v1", ("desk", "other"), 20, done=12, recovered=2))
        board_of(db).claim("w", ["desk"], 2, db.kernel.clock.wall())
    found = command("workers", "--json").json
    (worker,) = found["workers"]
    assert worker["agents"] == ["desk", "other"]
    assert {k: worker[k] for k in ("id", "pid", "busy", "concurrency", "done", "recovered")} == {
        "id": "w", "pid": 7, "busy": 2, "concurrency": 20, "done": 12, "recovered": 2,
    }  # fmt: skip
    assert found["agents"] == {"desk": {"queued": 1, "working": 2}}
    assert (found["unserved_agents"], found["held_agents"]) == ([], [])
    assert "desk, other  2/20" in command("workers").out


def test_what_a_worker_had_that_was_killed_waits_for_another_one(command: Command, url: str):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    host, _, since, boot, space, tail = new_holder().split("/")
    dead = "/".join((host, str(ended.pid), since, boot, space, tail))
    ended.wait()
    with perdure.open(url) as db:
        board_of(db).beat(WorkerRow(dead, "host", ended.pid, "v1", ("desk",), 20, 2, 1))
        board_of(db).claim(dead, ["desk"], 2, db.kernel.clock.wall())
    found = command("workers", "--json").json
    assert [(w["busy"], w["has_died"]) for w in found["workers"]] == [(0, True)]
    assert (found["busy"], found["concurrency"], found["states"]) == (0, 0, {"queued": 3})
    told = command("workers").out
    assert "desk: 3 queued (unserved" in told
    assert "has died" in told
    assert "oldest" not in told
    assert "fleet: 0 workers, 0 of 0 places busy, 3 queued" in command("stats").out
    assert command("drain", "--wait", "0.1").out == "0 told to go, 0 still there\n"


def test_a_worker_that_was_just_claimed_for_is_not_as_old_as_the_epoch(command: Command, url: str):
    with perdure.open(url) as db:
        now = db.kernel.clock.wall()
        board_of(db).claim("early", ["desk"], 1, now)
        board_of(db).beat(WorkerRow("w", "host", 7, "v1", ("desk",), 20, 0, now - 5000))
    assert "the oldest worker began 5 s ago" in command("workers").out


def test_drain_tells_workers_to_go(command: Command, url: str):
    with perdure.open(url) as db:
        board = board_of(db)
        row = WorkerRow("w", "host", 7, "v1", ("desk",), 20)
        board.beat(row)
        assert command("drain", "8").code == 1
        assert command("drain", "--here").out == "0 told to go\n"
        assert command("drain", "7", "--json").json == {"told": 1, "left": 1}
        assert board.beat(row) == "drain"
        assert command("drain", "--wait", "0.2").code == 1
        board.leave("w")
        assert command("drain").out == "0 told to go\n"


def test_pause_and_unpause_by_name_and_by_filter(command: Command, url: str):
    assert command("pause", "a", "--json").json == {
        "action": "pause", "dry_run": False, "sessions": ["a"], "changed": 1, "failed": [], "next": None,
    }  # fmt: skip
    assert states(url) == {"a": "paused", "b": "queued", "c": "queued"}
    dry = command("pause", "--owner", "ana", "--dry-run", "--json").json
    assert dry == {
        "action": "pause", "dry_run": True, "sessions": ["a", "c"], "changed": 0, "failed": [], "next": None,
    }  # fmt: skip
    assert states(url)["c"] == "queued"
    paused = "pause: 1 of 2 sessions (not those that were paused already, or that no worker was ever given)\n"
    assert command("pause", "--owner", "ana").out == paused
    assert command("unpause", "--state", "paused").out == "unpause: 2 of 2 sessions\n"
    assert set(states(url).values()) == {"queued"}
    nothing = command("pause")
    assert (nothing.code, "say which sessions" in nothing.err) == (2, True)
    assert command("pause", "--status", "sleepy").code == 2
    assert command("pause", "--state", "sleepy").code == 2


def test_a_whole_agent_is_held_and_let_go(command: Command, url: str):
    command("pause", "--agent", "desk")
    with perdure.open(url) as db:
        assert board_of(db).held() == ["desk"]
        perdure.submit(db, "late", "hello", agent="desk")
        assert board_of(db).claim("w", ["desk"], 10, db.kernel.clock.wall()) == []
    assert "held" in command("workers").out
    command("unpause", "--agent", "desk")
    with perdure.open(url) as db:
        assert board_of(db).held() == []
        assert len(board_of(db).claim("w", ["desk"], 10, db.kernel.clock.wall())) == 4


def test_retry_takes_parked_sessions_up_again(command: Command, url: str):
    with perdure.open(url) as db:
        board, now = board_of(db), db.kernel.clock.wall()
        board.claim("w", ["desk"], 3, now)
        board.rest("w", [Rest("a", 0, failed=True, park="failed 5 times"), Rest("b", 0), Rest("c", 0)], now)
    assert states(url)["a"] == "parked"
    assert command("retry", "--dry-run", "--state", "parked").out.splitlines()[-1].startswith("would retry 1 session;")
    assert command("retry", "a").out == "retry: 1 of 1 session\n"
    assert states(url)["a"] == "queued"


def test_there_is_nothing_to_be_tried_again_in_a_session_that_has_answered_everything(command: Command, url: str):
    agent = perdure.Agent("desk", model=perdure.ScriptedModel(["Hello."]))
    agent.run_sync(url, session="rests", message="hello")
    for argv in (("rests",), ("rests", "--dry-run"), ("rests", "--json")):
        none = command("retry", *argv)
        assert (none.code, none.out) == (1, "")
        assert none.err.startswith(
            "perdure: there is nothing to be tried again in 'rests': It has answered everything."
        )
    some = command("retry", "--status", "idle", "--agent", "desk", "--dry-run", "--json").json["sessions"]
    assert "rests" not in some
    assert "rests" not in states(url)


def test_cancel_in_bulk_with_a_dry_run(command: Command, url: str):
    assert command("cancel").code == 2
    assert command("cancel", "--owner", "ana", "--dry-run", "--json").json["sessions"] == ["a", "c"]
    assert command("cancel", "--owner", "ana", "--by", "eve").out == "cancel: 2 of 2 sessions\n"
    with perdure.open(url) as db:
        assert {name: db.look(name).pending for name in "abc"} == {"a": 2, "b": 1, "c": 2}
