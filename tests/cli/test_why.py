"""``perdure why`` and ``perdure stats``: one session, and all of them, in a few words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure import tool
from perdure.fleet.board import board_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

WHY = [
    "session", "branch", "summary", "next_step", "severity", "action", "command", "actions", "inputs", "exception",
    "objective",
]  # fmt: skip
STATS = [
    "url", "promise", "sessions", "set_aside", "checkpoints", "bytes", "statuses", "agents", "errors", "counts",
    "fleet",
]  # fmt: skip


@tool(approve=True)
def refund(order: str, amount: int) -> int:
    return amount


@tool
def wire(amount: int) -> None:
    raise TimeoutError


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """A database in which one session waits for a person, one is in doubt, one rests and one is queued; its URL."""
    url = f"sqlite:///{tmp_path}/agents.db"
    with perdure.open(url) as db:
        with db.session("my refund", owner="ana") as s, pytest.raises(perdure.CallError):
            s.call(refund, "o1", 100)
        with db.session("doubt") as s, pytest.raises(perdure.InDoubt):
            s.call(wire, 7)
        with db.session("rest") as s:
            s.commit()
        perdure.submit(db, "queued", "hello", agent="desk")
    return url


def test_a_request_for_agreement_is_told_with_what_to_type(command: Command, shop: str):
    found = command("why", "my refund")
    assert found.code == 0
    told, typed, *others = found.out.splitlines()
    assert told.startswith('refund(order="o1", amount=100) waits for agreement.')
    assert told.endswith("Approve it, change it, or reject it.")
    assert re.fullmatch("  perdure approve 'my refund' ap_[0-9a-f]+", typed)
    assert others == [f"{typed} --edit ARGUMENTS", typed.replace("approve", "reject")]


def test_the_json_has_the_documented_shape(command: Command, shop: str):
    found = command("why", "doubt", "--json").json
    assert list(found) == WHY
    assert (found["session"], found["branch"]) == ("doubt", "main")
    assert (found["severity"], found["action"]) == ("act", "resolve")
    (action,) = found["actions"]
    effect = action["argument"]
    assert found["command"] == f"perdure resolve doubt {effect} --done RESULT"
    assert action["http"] == f"POST /api/v1/sessions/doubt/effects/{effect}/resolve"
    resting = command("why", "rest", "--json").json
    assert (resting["severity"], resting["action"], resting["command"]) == ("ok", "", "")


def test_a_queued_session_without_a_worker_and_a_held_agent(command: Command, shop: str):
    found = command("why", "queued", "--json").json
    assert (found["severity"], found["action"], found["command"]) == (
        "act",
        "worker",
        "perdure worker APP",
    )
    with perdure.open(shop) as db:
        board_of(db).hold("desk", True)
    assert command("why", "queued", "--json").json["command"] == "perdure unpause --agent desk"


def test_what_is_not_there_is_one_line_and_the_exit_code_says_so(command: Command, shop: str):
    for argv in (("why", "nobody"), ("why", "rest", "--branch", "nowhere")):
        found = command(*argv)
        assert (found.code, found.out, found.err.count("\n")) == (1, "", 1)
    assert command("why").code == 2
    assert command("why", "x" * 2000).code == 2


def test_hostile_words_of_a_call_are_only_text(command: Command, tmp_path: Path):
    nasty = "\x1b]0;owned\x07\x1b[2J<script>" + "y" * 100_000
    url = f"sqlite:///{tmp_path}/agents.db"
    with perdure.open(url) as db, db.session("s\x1b[31m") as s, pytest.raises(perdure.CallError):
        s.call(refund, nasty, 1)
    for argv in (("why", "s\x1b[31m"), ("why", "s\x1b[31m", "--json"), ("stats",)):
        found = command(*argv)
        assert found.code == 0
        assert "\x1b" not in found.out
        assert "\x07" not in found.out
        assert len(found.out) < 3000


def test_stats_count_sessions_by_what_they_are(command: Command, shop: str):
    found = command("stats", "--json").json
    assert list(found) == STATS
    assert found["sessions"] == 4
    assert found["statuses"] == {"idle": 2, "in_doubt": 1, "waiting_approval": 1}
    assert found["agents"] == {"desk": 1}
    assert found["checkpoints"] >= 4
    assert found["fleet"] == {
        "supported": True, "workers": [], "busy": 0, "concurrency": 0, "states": {"queued": 1},
        "agents": {"desk": {"queued": 1}}, "unserved_agents": ["desk"], "held_agents": [],
    }  # fmt: skip
    lines = command("stats").out.splitlines()
    assert lines[0] == "sqlite:///agents.db"
    assert lines[1].startswith("4 sessions, ")
    assert "status: 2 idle, 1 in_doubt, 1 waiting_approval" in lines
    assert "no worker serves desk" in lines


def test_stats_of_a_store_without_a_board_have_no_fleet(command: Command, tmp_path: Path):
    with perdure.open(f"file://{tmp_path}/log") as db, db.session("s") as s:
        s.commit()
    found = command("stats", "--store", f"file://{tmp_path}/log", "--json").json
    assert (found["sessions"], found["fleet"]["supported"], found["fleet"]["workers"]) == (1, False, [])


def test_stats_of_nothing_make_nothing(command: Command, tmp_path: Path):
    assert command("stats").code == 3
    assert list(tmp_path.iterdir()) == []


def test_who_merely_has_a_session_open_is_not_said_to_answer_it(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DESK_LEDGER", str(tmp_path / "ledger"))
    for session, said in (("c", "hello"), ("asks", "refund 7")):
        assert command("run", "tests.cli.desk", session, said).code == 0
    (asked,) = command("approve", "asks", "--list", "--json").json["approvals"]
    with perdure.open() as db, db.session("c"), db.session("asks"), db.session("plain") as plain:
        # Whatever reads the inbox of a session without an agent is the program that has it.
        plain.commit()
        db.post("plain", "hello")
        assert command("why", "plain", "--json").json["severity"] == "wait"
        for session in ("c", "asks"):
            if session == "c":
                told = command("post", "c", "again").out
            else:
                told = command("approve", "asks").out
                decided = command("approve", "asks", asked["id"], "--json")
                assert decided.code == 1
            assert "has it open without running its agent" in told, told
            assert "perdure worker APP" in told
            found = command("why", session, "--json").json
            assert "has it open without running its agent" in found["summary"]
            assert "It has to be let go first." in found["next_step"]
            assert (found["severity"], found["action"]) == ("act", "worker")
    assert command("resume", "tests.cli.desk", "asks").code == 0


def test_who_runs_the_agent_is_on_it(tmp_path: Path):
    found: list[perdure.Why] = []

    def said(request: object) -> str:
        with perdure.open(url) as db:
            db.post("s", "more", key="more")
            found.append(perdure.why(db, "s"))
        return "done"

    url = f"sqlite:///{tmp_path}/agents.db"
    agent = perdure.Agent("desk", model=perdure.ScriptedModel(said))
    for message in ("hello", "again"):
        agent.run_sync(url, session="s", message=message)
    # Before anything was committed, and afterwards.
    assert [why.severity for why in found[::2]] == ["wait", "wait"], found
    assert [why for why in found if "has it open" in why.line] == []
