"""``perdure submit``, ``workers``, ``pause``, ``unpause``, ``retry``, ``drain`` and cancelling in bulk."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure.fleet.board import board_of
from perdure.fleet.why.lists import trouble
from perdure.protocols import Filter, Rest, Work, WorkerRow
from perdure.session.handover import Fleet
from perdure.system.lease_holders import new_holder, running_agent

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.model import SessionRow
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
        "session": "d", "agent": "desk", "new": True, "instead_of": "", "queued": True, "message_key": "k",
        "answer": None,
        "unserved": True,
        "next": "Nobody runs agent desk: go on with perdure resume APP d, or start perdure worker APP.",
    }  # fmt: skip
    assert command("submit", "d", "hello", "--key", "k").out.startswith("d: was there already\nNobody runs agent desk")
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
    paused = "pause: 1 of 2 sessions (not those that were paused already, or that name no agent)\n"
    assert command("pause", "--owner", "ana").out == paused
    let_go = command("unpause", "--state", "paused").out.splitlines()
    assert let_go == ["unpause: 2 of 2 sessions", "No worker serves agent desk: start one with perdure worker APP."]
    assert set(states(url).values()) == {"queued"}
    for name, options in (
        ("pause", "--agent, --owner, --status or --state"), ("cancel", "--agent, --owner or --status"),
        ("retry", "--agent, --owner, --status, --state or --all"),
    ):  # fmt: skip
        nothing = command(name)
        ways = f"say which sessions: name them, or use {options}\n"
        assert (nothing.code, nothing.err.endswith(ways)) == (2, True), nothing.err
    assert command("retry", "--all").out == "retry: 0 of 0 sessions\n"
    assert command("pause", "--all").code == 2
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
    found = command("why", "a").out
    assert [line.split()[1] for line in found.splitlines() if line.startswith("  perdure")] == ["resume", "retry"]
    # Whom nobody takes is told, with what goes on with it.
    nobody = "No worker serves agent desk: start one with perdure worker APP"
    assert command("retry", "a").out == f"retry: 1 of 1 session\n{nobody}, or go on with perdure resume APP a.\n"
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
    # Nor is there anything to stop, and that somebody wants it all the same gives nobody anything to do.
    none = command("cancel", "rests")
    assert (none.code, none.out) == (0, "cancel: 0 of 1 session (not those in which there is nothing to stop)\n")
    assert command("cancel", "rests", "--dry-run", "--json").json["sessions"] == []
    with perdure.open(url) as db:
        assert db.look("rests").pending == 0
        assert not db.cancel("rests")
        assert perdure.why(db, "rests").severity == "ok"
    assert command("retry", "rests").code == 1


def test_cancel_in_bulk_with_a_dry_run(command: Command, url: str):
    assert command("cancel").code == 2
    assert command("cancel", "--owner", "ana", "--dry-run", "--json").json["sessions"] == ["a", "c"]
    assert command("cancel", "--owner", "ana", "--by", "eve").out == "cancel: 2 of 2 sessions\n"
    with perdure.open(url) as db:
        assert {name: db.look(name).pending for name in "abc"} == {"a": 2, "b": 1, "c": 2}


def test_one_that_has_its_first_answer_before_it_is_steered_like_any_other(command: Command, url: str):
    with perdure.open(url) as db, running_agent(), db.session("first"):
        db.post("first", "hello")
        assert command("cancel", "first", "--dry-run", "--json").json["sessions"] == ["first"]
        for do in ("pause", "unpause", "retry"):
            assert command(do, "first").out.startswith(f"{do}: 0 of 1 session (not those")
        told = command("submit", "first", "and this", "--agent", "desk", "--json").json
        assert (told["queued"], told["unserved"]) == (True, False)
        assert told["next"].endswith("has the session and finds it there.")
        assert command("pause", "first").out == "pause: 1 of 1 session\n"
        assert command("cancel", "first", "--by", "ana").out == "cancel: 1 of 1 session\n"
        assert "Somebody wants it to stop: 2 messages from before that" in command("why", "first").out
        # What is read begins with the first checkpoint; until then it is said who tells more.
        asks = "session 'first' has no checkpoint yet: perdure why first tells what it waits for, or who is on it"
        for argv in (("show", "first"), ("log", "first"), ("approve", "first"), ("tail", "first")):
            refused = command(*argv)
            assert (refused.code, refused.out, refused.err) == (1, "", f"perdure: {asks}\n"), argv
    assert command("cancel", "nobody").code == 1


def test_a_message_that_has_its_answer_gives_a_fleet_nothing_to_do(command: Command, url: str):
    command("submit", "d", "hello", "--agent", "desk", "--key", "k")
    perdure.Agent("desk", model=perdure.ScriptedModel(["Hello."])).run_sync(url, session="d")
    assert "d" not in states(url)
    told = command("submit", "d", "hello", "--agent", "desk", "--key", "k", "--json").json
    assert (told["new"], told["answer"]["text"]) == (False, "Hello.")
    assert (told["queued"], told["unserved"], told["next"]) == (False, False, "It was answered already.")
    assert command("submit", "d", "hello", "--key", "k").out == "d: was answered at step 2: Hello.\n"
    assert "d" not in states(url)


def test_the_name_of_an_agent_that_was_a_slip_is_mended_before_any_worker_comes(command: Command, url: str):
    command("submit", "s", "hello", "--agent", "dsek")
    # What is said to a session of another agent may be meant for another session.
    refused = command("submit", "s", "and this", "--agent", "desk")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.endswith("give it to this one first, without a message: perdure submit s --agent desk\n")
    assert command("submit", "s", "--agent", "desk").out.splitlines()[0] == (
        "s: given to desk instead of dsek, which nobody serves"
    )
    with perdure.open(url) as db:
        assert (db.look("s").agent, db.look("s").pending) == ("desk", 1)
        (work,) = board_of(db).works(Filter(sessions=("s",)))
        assert (work.agent, work.queued) == ("desk", True)
    perdure.Agent("desk", model=perdure.ScriptedModel(["Hello."])).run_sync(url, session="s")
    kept = command("submit", "s", "more", "--agent", "other")
    assert (kept.code, "is one of agent 'desk', not 'other': say that one\n" in kept.err) == (2, True)


def test_an_agent_that_nobody_serves_is_said_and_mended(command: Command, tmp_path: Path):
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db:
        board_of(db).beat(WorkerRow(new_holder(), "host", 1, "v", ("desk", "billing"), 1))
    said = command("submit", "s", "hello", "--agent", "dsek").out.splitlines()
    assert said[0] == "s: submitted"
    nobody = "Nobody runs agent dsek (workers serve desk, billing; did you mean desk?): "
    assert said[1].startswith(nobody)
    assert said[1].endswith("Or give it to desk: perdure submit s --agent desk.")
    told = command("submit", "s", "hello", "--agent", "dsek", "--json").json
    assert (told["unserved"], told["queued"], told["next"].startswith(nobody)) == (True, True, True)
    found = command("why", "s")
    assert "No worker serves agent dsek (workers serve desk, billing; did you mean desk?)" in found.out
    assert "  perdure submit s --agent desk" in found.out.splitlines()
    # It is done as it was said, and then it is taken up.
    assert command("submit", "s", "--agent", "desk").out == ("s: given to desk instead of dsek, which nobody serves\n")
    assert command("submit", "s", "--agent", "desk").out == "s: was there already\n"
    assert command("why", "s").out.startswith("2 messages wait in its inbox, and it waits for a worker.")
    assert command("submit", "s", "--agent", "billing").code == 2, "that one has it"
    command("submit", "again", "hi", "--agent", "dsek")
    given = command("submit", "again", "hello", "--agent", "desk", "--json").json
    assert (given["agent"], given["instead_of"], given["new"]) == ("desk", "dsek", True)
    # Where nobody works at all, no name is a slip.
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db:
        board_of(db).leave(board_of(db).workers()[0].id)
    assert command("submit", "t", "hello", "--agent", "desk").out.splitlines()[1] == (
        "Nobody runs agent desk: go on with perdure resume APP t, or start perdure worker APP."
    )


@pytest.mark.parametrize("said", [(), ("",)])
def test_a_message_that_was_forgotten_is_asked_for(command: Command, url: str, said: tuple[str, ...]):
    refused = command("submit", "new0", *said, "--agent", "desk")
    assert (refused.code, refused.out) == (2, "")
    assert "the message is empty, and nothing is to be done in 'new0' (it is new): say something" in refused.err
    assert "new0" not in states(url)
    agent = perdure.Agent("desk", model=perdure.ScriptedModel(["Hello."]))
    agent.run_sync(url, session="rests", message="hello")
    assert "It has answered everything." in command("submit", "rests", *said).err
    # What waits in a session is handed over without another one.
    assert command("submit", "a", *said, "--agent", "desk").code == 0


def test_the_list_says_of_what_no_worker_will_come_for(command: Command, url: str):
    def notes() -> dict[str, str]:
        lines = command("ls").out.splitlines()
        at = lines[0].find("NOTE")
        return {line.split()[0]: line[at:].strip() for line in lines[1:]} if at > 0 else {}

    assert set(notes().values()) == {"no worker serves agent desk"}
    # What a worker had that was killed, and what only a program of another version is there for.
    ended = subprocess.Popen([sys.executable, "-c", ""])
    host, _, since, boot, space, tail = new_holder().split("/")
    dead = "/".join((host, str(ended.pid), since, boot, space, tail))
    ended.wait()
    with perdure.open(url) as db:
        board = board_of(db)
        board.beat(WorkerRow(dead, "host", ended.pid, "v1", ("desk",), 20))
        board.claim(dead, ["desk"], 2, db.kernel.clock.wall())
        assert set(notes().values()) == {"no worker serves agent desk"}
        board.leave(dead)
        alive = WorkerRow("w", "host", 7, "v1", ("desk",), 20)
        board.beat(alive)
        assert notes() == {}
        # An agent that is held, and a session that a person has paused as well.
        board.hold("desk", True)
        command("pause", "a")
        held = "All sessions of agent desk are held: no worker takes them."
        assert notes() == dict.fromkeys("abc", held)
        board.hold("desk", False)
        assert notes() == {"a": "A person has paused it: no worker takes it.", "b": "-", "c": "-"}


def test_the_list_says_of_what_workers_of_another_version_are_there_for():
    row, work = _row(pending=1), Work("s", "desk", queued=True, avoid_version="v1")
    workers = WorkerRow("w", "host", 7, "v1", ("desk",), 20), WorkerRow("w2", "host", 8, "v2", ("desk",), 20)
    assert trouble(row, work, Fleet(workers[:1])).startswith("The workers that have agent desk cannot go on with it")
    assert trouble(row, work, Fleet(workers)) == ""
    # Where nothing is to be done, or somebody has it, no worker is missing.
    assert trouble(_row(), work, Fleet()) == ""
    assert trouble(row, Work("s", "desk", worker="w"), Fleet(workers[:1])) == ""
    assert trouble(row, None, Fleet()) == ""


def _row(pending: int = 0) -> SessionRow:
    with perdure.open("memory://") as db:
        with db.session("s") as s:
            s.commit()
        return db.look("s")._replace(pending=pending, agent="desk")
