"""Real worker processes: they take what is to be done, are killed, evicted and frozen; nothing is lost or doubled."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import perdure
from perdure.cli.session_at import open_matters, open_place
from perdure.fleet.board import submit
from perdure.fleet.why.lists import stuck
from perdure.fleet.why.reading import why
from perdure.protocols import Filter
from tests.fleet.harness import LIMIT, answered, board, fleet, is_idle, until, working
from tests.store_urls import url_of

KINDS = ("sqlite", "postgres")


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The file that tools wait for."""
    return tmp_path / "gate"


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_answers_what_is_submitted_and_what_is_posted_later(kind: str, tmp_path: Path):
    url = url_of(kind, tmp_path)
    with perdure.open(url) as db, fleet(url, tmp_path) as workers:
        workers.start()
        assert submit(db, "s", "charge A", agent="desk", owner="ana", key="1")
        assert not submit(db, "s", "charge A", agent="desk", owner="ana", key="1")
        until(lambda: is_idle(db, ["s"]), workers)
        assert answered(db, "s") == ["done: charged A"]
        db.post("s", "hello", key="2")
        until(lambda: "you said hello" in answered(db, "s"), workers)
        assert workers.charges() == {"A": 1}
        assert db.look("s").agent == "desk"
        assert db.look("s").owner == "ana"


@pytest.mark.parametrize("options", [(), ("--log-json",)], ids=["plain", "json"])
def test_the_log_of_a_worker_has_the_exception_of_a_tool_without_its_secrets(tmp_path: Path, options: tuple[str, ...]):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db, fleet(url, tmp_path) as workers:
        workers.start(1, *options)
        submit(db, "s", "stumble A", agent="desk", key="1")
        until(lambda: is_idle(db, ["s"]), workers)
        (effect,) = [p.more["effect"] for p in db.history("s") if p.kind == "raised"]
    logged = workers.log.read_text()
    assert f"stumble (effect {effect}) raised KeyError: 'A with api_key=" in logged
    assert "tests/fleet/app.py" in logged
    assert " in stumble" in logged
    assert "hunter2" not in logged


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_worker_is_replaced_in_the_middle_of_a_step(kind: str, tmp_path: Path):
    url = url_of(kind, tmp_path)
    with perdure.open(url) as db, fleet(url, tmp_path) as workers:
        (one,) = workers.start(1, FLEET_GATE=str(tmp_path / "never opened"))
        sessions = [f"s{i}" for i in range(5)]
        for i, session in enumerate(sessions):
            submit(db, session, f"charge A{i} B{i}", agent="desk")
        until(lambda: len(workers.lines("charge")) == 10, workers)
        hit = working(board(db), one.pid)
        assert sorted(hit) == sessions
        workers.kill(one)
        workers.start()
        until(lambda: is_idle(db, sessions), workers)
        assert [answered(db, s) for s in sessions] == [[f"done: charged B{i}"] for i in range(5)]
        assert workers.charges() == {f"{name}{i}": 1 for i in range(5) for name in "AB"}
        until(lambda: [w.recovered for w in board(db).workers()] == [len(hit)], workers)


def test_an_evicted_worker_ends_its_step_and_leaves_nothing_behind(tmp_path: Path, gate: Path):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db, fleet(url, tmp_path, FLEET_GATE=str(gate), lease=30.0) as workers:
        (one,) = workers.start()
        submit(db, "s", "charge A", agent="desk")
        until(lambda: workers.lines("charge"), workers)
        one.terminate()
        gate.touch()
        one.wait(LIMIT)
        assert one.returncode == 0, workers.said()
        # The step under way was written down, the lease is free at once, and the session stands in the queue.
        row = db.look("s")
        assert not row.lease.holder
        assert board(db).workers() == []
        assert [w.session for w in board(db).works(Filter(state="queued"))] == ["s"]
        assert any(m["role"] == "tool" for m in db.read("s").plain()["messages"])
        workers.start()
        until(lambda: is_idle(db, ["s"]), workers)
        assert workers.charges() == {"A": 1}
        assert len(workers.lines("charge")) == 1


def test_an_evicted_worker_does_not_wait_for_the_whole_work_of_a_child(tmp_path: Path, gate: Path):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db, fleet(url, tmp_path, FLEET_GATE=str(gate), lease=30.0) as workers:
        (one,) = workers.start()
        submit(db, "s", "delegate charge A", agent="boss")
        until(lambda: workers.lines("charge"), workers)
        one.terminate()
        gate.touch()
        one.wait(LIMIT)
        assert one.returncode == 0, workers.said()
        (child,) = (row for row in db.sessions() if row.id != "s")
        assert not any(m["role"] == "assistant" and m["content"] for m in db.read(child.id).plain()["messages"])
        assert not db.look("s").lease.holder
        assert not child.lease.holder
        workers.start()
        until(lambda: is_idle(db, ["s"]), workers)
        assert answered(db, "s") == ["done: done: charged A"]
        assert len(workers.lines("charge")) == 1


def test_an_evicted_worker_goes_although_a_tool_never_ends(tmp_path: Path):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db, fleet(url, tmp_path, lease=30.0) as workers:
        (one,) = workers.start(1, "--grace", "0.2")
        submit(db, "s", "stay 3600", agent="heavy")
        until(lambda: workers.lines("stay"), workers)
        workers.kill(one, signal.SIGTERM)
        assert one.returncode == 0, workers.said()
        assert board(db).workers() == []
        assert not db.look("s").lease.holder
        assert [w.session for w in board(db).works(Filter(state="queued"))] == ["s"]


def test_a_frozen_worker_that_wakes_up_late_cannot_write(tmp_path: Path, gate: Path):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db, fleet(url, tmp_path) as workers:
        (one,) = workers.start(1, FLEET_GATE=str(gate))
        submit(db, "s", "charge A", agent="desk")
        until(lambda: workers.lines("charge"), workers)
        workers.kill(one, signal.SIGSTOP)
        workers.start()
        until(lambda: is_idle(db, ["s"]), workers)
        step = db.look("s").heads[0].step
        gate.touch()
        workers.kill(one, signal.SIGCONT)
        db.post("s", "hello")
        until(lambda: "you said hello" in answered(db, "s"), workers)
        assert db.look("s").heads[0].step == step + 1
        assert workers.charges() == {"A": 1}
        assert answered(db, "s") == ["done: charged A", "you said hello"]


def test_a_tool_that_blocks_the_whole_process_keeps_its_lease(tmp_path: Path):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db, fleet(url, tmp_path) as workers:
        workers.start(2)
        until(lambda: len(board(db).workers()) == 2, workers)
        submit(db, "s", "compute 3", agent="heavy")
        until(lambda: is_idle(db, ["s"]), workers)
        assert len(workers.lines("compute")) == 1, workers.lines()
        assert answered(db, "s") == ["done: computed"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_that_kills_its_workers_is_parked_after_as_many_as_may_try(kind: str, tmp_path: Path):
    url = url_of(kind, tmp_path)
    with perdure.open(url) as db, fleet(url, tmp_path) as workers:
        submit(db, "bad", "crash", agent="heavy")

        def parked() -> str:
            for worker in workers.workers:
                worker.poll()
            if not any(w.returncode is None for w in workers.workers):
                workers.start(1, "--tries", "2")
            return next((w.parked for w in board(db).works(Filter(state="parked"))), "")

        said: list[str] = []

        def looping() -> str:
            said.append(why(db, "bad").line)
            return parked()

        reason = until(looping, workers)
        assert any("died or failed 1 time at the same place" in line for line in said), said
        assert not any("died or failed 3 times" in line for line in said), said
        assert reason == "its worker died or failed 2 times at the same place"
        assert len(workers.lines("crash")) == 2
        told = why(db, "bad").line
        assert "It has got no further since step 2, where crash() has no outcome yet. No error was recorded." in told, (
            told
        )
        assert db.look("bad").status == "failed"
        assert db.look("bad").error == "Parked"
        assert stuck(db) == {"heavy": 1}
        # Others are served all the same.
        submit(db, "good", "charge A", agent="desk")
        until(lambda: is_idle(db, ["good"]), workers)


def test_a_model_that_is_down_is_asked_again_later_and_the_session_parked_in_the_end(tmp_path: Path):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db, fleet(url, tmp_path) as workers:
        workers.start(1, "--tries", "2")
        submit(db, "s", "down", agent="desk")
        (work,) = until(lambda: board(db).works(Filter(state="parked")), workers)
        assert "the model is down" in work.parked
        assert db.look("s").pending == 1
        # Trying again is no recovery: nobody died.
        until(lambda: [w.done for w in board(db).workers()] == [2], workers)
        assert [w.recovered for w in board(db).workers()] == [0]


def test_only_so_many_calls_of_a_narrow_tool_are_made_at_once_by_all_workers(tmp_path: Path, gate: Path):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db, fleet(url, tmp_path, FLEET_GATE=str(gate)) as workers:
        sessions = [f"s{i}" for i in range(8)]
        for session in sessions:
            submit(db, session, f"narrow {session}", agent="desk")
        workers.start(2)
        until(lambda: len(workers.lines("enter")) == 2, workers)
        gate.touch()
        until(lambda: is_idle(db, sessions), workers)
        events = sorted(
            (int(w[2]), 1 if w[0] == "enter" else -1) for w in workers.lines() if w[0] in ("enter", "leave")
        )
        inside = most = 0
        for _, change in events:
            inside += change
            most = max(most, inside)
        assert most == 2
        assert len(events) == 16


def test_an_approval_given_to_nobody_wakes_a_worker(tmp_path: Path):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db, fleet(url, tmp_path) as workers:
        (one,) = workers.start()
        submit(db, "s", "both A", agent="desk")
        until(lambda: db.look("s").status == "waiting_approval" and not db.look("s").lease.holder, workers)
        assert workers.charges() == {"A": 1}
        workers.kill(one, signal.SIGTERM)
        workers.start()
        (approval,) = open_matters(db, open_place(db, "s")).approvals
        db.approve("s", approval["id"], by="eve")
        until(lambda: is_idle(db, ["s"]), workers)
        assert workers.charges("refund") == {"A": 1}


def test_a_timer_set_before_a_kill_fires_once(tmp_path: Path):
    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db, fleet(url, tmp_path) as workers:
        (one,) = workers.start()
        submit(db, "s", "hello", agent="desk")
        until(lambda: is_idle(db, ["s"]), workers)
        db.wake("s", delay=1.0, message="charge T", key="t")
        workers.kill(one)
        workers.start(2)
        until(lambda: workers.lines("charge"), workers)
        until(lambda: is_idle(db, ["s"]), workers)
        assert workers.charges() == {"T": 1}
        assert answered(db, "s") == ["you said hello", "done: charged T"]


def test_what_nobody_serves_is_said_so_and_served_as_soon_as_somebody_does(tmp_path: Path):
    from perdure.fleet.status import fleet_of

    url = url_of("sqlite", tmp_path)
    with perdure.open(url) as db, fleet(url, tmp_path) as workers:
        (one,) = workers.start()
        until(lambda: board(db).workers(), workers)
        submit(db, "s", "hello", agent="nobody")
        assert fleet_of(db).unserved == ["nobody"]
        # A worker that died serves nobody, although nobody is left to strike its row.
        workers.kill(one)
        submit(db, "t", "hello", agent="desk")
        assert len(board(db).workers()) == 1
        assert fleet_of(db).unserved == ["desk", "nobody"]


def test_a_session_that_died_outside_the_fleet_is_taken_over(tmp_path: Path):
    import subprocess
    import sys

    url = url_of("sqlite", tmp_path)
    program = (
        "import os, sys\n"
        "from tests.fleet import app\n"
        "async def die(*_, **__): os._exit(9)\n"
        "app.charge.fn = die\n"
        f"app.desk.run_sync({url!r}, session='s', message='charge A')\n"
    )
    with perdure.open(url) as db, fleet(url, tmp_path) as workers:
        assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
        assert db.look("s").status == "running"
        workers.start()
        until(lambda: is_idle(db, ["s"]), workers)
        assert answered(db, "s") == ["done: charged A"]
        assert workers.charges() == {"A": 1}
