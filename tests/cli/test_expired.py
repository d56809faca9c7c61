"""Expired sessions at the command line: every door says the same, before a sweep and after one, and keeps its word."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure import tool

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

APP = "tests.cli.desk"
THERE = ("--store", "agents.db")


@tool(approve=True, approval_valid_for=1)
def refund(order: str) -> str:
    return order


@pytest.fixture(params=[False, True], ids=["before a sweep", "after a sweep"])
def swept(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture
def over(command: Command, tmp_path: Path) -> str:
    """Sessions whose time has run out; one of them is kept by a message that came in time. The URL."""
    url = f"sqlite:///{tmp_path}/agents.db"
    with perdure.open(url) as db:
        with db.session("note", ttl=2) as s:
            s.vars["x"] = 1
            s.commit()
        with db.session("asks", ttl=1) as s, pytest.raises(perdure.CallError):
            s.call(refund, "o1")
        db.create("chat", agent="desk", ttl=1)
        db.create("kept", agent="desk", ttl=1)
        db.post("kept", "came in time")
        while not all(db.look(name).over for name in ("note", "asks", "chat", "kept")):
            time.sleep(0.05)
    return url


def sweep(command: Command, swept: bool) -> None:
    if swept:
        assert command("sweep", "--json").json["removed"] == 3


def test_nobody_reads_it(command: Command, over: str, swept: bool):
    sweep(command, swept)
    for argv in (("show", "note"), ("diff", "note@1", "note@1"), ("log", "note"), ("approve", "asks", "--list"),
                 ("approve", "asks"), ("outcome", "note", "ef_1", "1"), ("tag", "note", "t"),
                 ("tail", "note", "--once")):  # fmt: skip
        found = command(*argv)
        assert (found.code, found.out) == (1, ""), argv
        assert "expired" in found.err, argv
        assert swept or "perdure revive " in found.err, argv


def test_it_is_listed_and_brought_back(command: Command, over: str, swept: bool):
    sweep(command, swept)
    assert {one["session"] for one in command("revive", "--json").json["items"]} == {"note", "asks", "chat"}
    assert command("revive", "note").out.startswith("note is back: as it was at 2")
    with perdure.open(over) as db:
        assert db.read("note").vars["x"] == 1
        assert "note" not in {life.session for life in db.set_aside()}
    assert "nothing of session 'kept'" in command("revive", "kept").err


def test_what_it_is_told_about_bringing_it_back_is_so(command: Command, over: str, swept: bool):
    sweep(command, swept)
    told = command("why", "note")
    assert "brings it back as it was" in told.out
    assert "  perdure revive note" in told.out.splitlines()
    assert command("revive", "note").code == 0
    assert command("show", "note").code == 0


def test_a_message_begins_it_anew_and_says_so(command: Command, over: str, swept: bool):
    sweep(command, swept)
    assert "A message to it" in command("why", "chat").out
    found = command("post", "chat", "hello")
    said = "chat: posted. It is gone (expired): whoever takes this up begins it anew\n"
    assert (found.code, found.out) == (0, said)
    told = command("post", "chat", "more", "--json").json
    assert (told["session"], told["new"], told["begins_anew"], told["kept"]) == ("chat", True, True, True)
    told = command("why", "chat", "--json").json
    assert told["severity"] == "act"
    assert "begins anew" in f"{told['summary']} {told['next_step']}"
    assert "revive" in {action["name"] for action in told["actions"]}
    resumed = command("resume", APP, "chat")
    assert resumed.code == 0, resumed.err
    assert "chat was gone (expired), and began anew" in resumed.out
    assert "You said:" in resumed.out
    assert command("post", "chat", "again").out.startswith("chat: posted\n")


def test_without_anything_new_there_is_nothing_to_resume(command: Command, over: str, swept: bool):
    sweep(command, swept)
    found = command("resume", APP, "chat")
    assert (found.code, "expired" in found.err) == (1, True)


def test_a_run_says_that_it_began_anew(command: Command, over: str, swept: bool):
    sweep(command, swept)
    assert "chat was gone (expired), and began anew" in command("run", APP, "chat", "hello", *THERE).out
    assert "began anew" not in command("run", APP, "chat", "hello", *THERE).out
    assert command("run", APP, "asks", "hello", *THERE, "--json").json["began_anew"] == "expired"
    assert command("run", APP, "asks", "hello", *THERE, "--json").json["began_anew"] == ""


def test_what_helps_to_wake_it_helps(command: Command, over: str):
    refused = command("wake", "chat", "--delay", "2h")
    assert (refused.code, "perdure revive chat" in refused.err) == (1, True)
    assert "post to it" not in refused.err
    assert command("run", APP, "chat", "hello", *THERE).code == 0
    assert command("wake", "chat", "--delay", "2h").code == 0
    assert command("revive", "note").code == 0
    assert command("wake", "note", "--delay", "2h").code == 0


def test_one_that_a_message_keeps_is_not_said_to_go(command: Command, over: str):
    shown = command("show", "kept")
    assert shown.code == 0
    assert "the next sweep removes it" not in shown.out
    assert "no sweep takes it: something waits in its inbox that came in time" in shown.out
    assert command("post", "kept", "hello").out.startswith("kept: posted\n")
    assert command("sweep", "--json").json["removed"] == 3
    assert command("show", "kept").code == 0


def test_a_session_that_never_was_is_no_place_for_a_message(command: Command, over: str):
    assert command("post", "nobody", "hello").code == 1
    assert command("resume", APP, "nobody").code == 1


def test_lives_of_one_name_are_told_apart_and_each_can_be_chosen(command: Command, tmp_path: Path):
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db:
        for life in ("A", "B"):
            with db.session("t", ttl=1 if life == "A" else 600) as s:
                s.vars["life"] = life
                s.commit()
            while life == "A" and not db.look("t").over:
                time.sleep(0.05)
    back = command("revive", "t").out.splitlines()
    assert back[0].startswith("t is back: as it was at ")
    (there,) = command("revive", "--json").json["items"]
    assert back[1] == (
        f"The one that had begun since is set aside: perdure revive t --life {there['life']} brings it back instead."
    )
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db:
        assert db.read("t").vars["life"] == "A"
        while not db.look("t").over:
            time.sleep(0.05)
    # B was written last, and A has expired last.
    assert "Reviving it brings it back as it was." in command("why", "t").out
    listed = [line.split()[:2] for line in command("revive").out.splitlines()[1:]]
    assert listed == [["t", str(there["life"])], ["t", "0"]]
    told = command("revive", "t", "--json").json
    assert (told["life"], told["made_way"]) == (0, None)
    told = command("revive", "t", "--life", str(there["life"]), "--json").json
    assert (told["life"], told["made_way"]) == (there["life"], 0)
    assert '"B"' in command("show", "t", "--json").out
    assert "life 7 of session 't' is not set aside" in command("revive", "t", "--life", "7").err
    assert "name the session" in command("revive", "--life", "0").err
