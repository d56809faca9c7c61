"""The command line: something put into a session's inbox, for whoever writes the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import perdure
from perdure import tool
from perdure.fleet.board import board_of
from perdure.protocols import Rest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command


@tool(if_unsure="ask")
def order(number: int) -> perdure.Later:
    """Its result comes later."""
    return perdure.Later()


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """A session that waits for the result of a call; its URL."""
    url = f"sqlite:///{tmp_path}/agents.db"
    with perdure.open(url) as db, db.session("s") as s, pytest.raises(perdure.CallError):
        s.call(order, 7)
    return url


def test_a_message_waits_in_the_inbox_once(command: Command, shop: str):
    assert command("post", "s", "hello", "--key", "k").out == "s: posted\n"
    assert command("post", "s", "hello", "--key", "k").out == "s: was there already, and is not answered yet\n"
    assert command("post", "s", "other", "--key", "k").code == 2
    assert command("post", "nobody", "hello").code == 1
    with perdure.open(shop) as db, db.session("s") as s:
        assert [m.body for m in s.take()] == ["hello"]


def test_an_outcome_that_was_to_come_reaches_the_call(command: Command, shop: str):
    with perdure.open(shop) as db, db.session("s") as s:
        (effect,) = s.effects()
    assert command("outcome", "s", effect["id"]).code == 2
    assert command("outcome", "s", effect["id"], "1", "--failed", "x").code == 2
    assert command("outcome", "nobody", effect["id"], "1").code == 1
    assert command("why", "s", "--json").json["command"] == f"perdure outcome s {effect['id']} RESULT"
    assert command("outcome", "s", effect["id"], '{"parcel": 7}').out == "s: reported\n"
    with perdure.open(shop) as db, db.session("s") as s:
        assert s.call(order, 7) == {"parcel": 7}


def test_a_session_is_woken_later_and_not_when_it_is_taken_back(command: Command, shop: str):
    assert command("wake", "s", "good morning", "--delay", "2h", "--key", "w").out == "s: will be woken\n"
    assert command("wake", "s", "--at", "2099-01-01T09:00:00+01:00", "--json").json["new"] is True
    assert command("wake", "s", "--cancel", "w").out == "s: taken back\n"
    assert command("wake", "nobody", "x", "--delay", "2h").code == 1
    when = "say when, in exactly one way: --at TIME, --delay 2h, or --cron '0 9 * * *'"
    assert command("wake", "s", "x").err == f"perdure: {when}\n"
    for argv in (
        ("x",), ("x", "--delay", "2h", "--cron", "0 9 * * *"), ("x", "--delay", "soon"), ("x", "--at", "tomorrow"),
        ("x", "--at", "2099-01-01T09:00:00"), ("x", "--cron", "every day"), ("--cancel", "w", "--delay", "2h"),
        ("x", "--cron", "0 9 * * *", "--zone", "Nowhere/Atall"), ("x", "--delay", "-1h"),
    ):  # fmt: skip
        ended = command("wake", "s", *argv)
        assert (ended.code, ended.err.count("\n")) == (2, 1), (argv, ended.err)


def test_what_was_taken_back_is_not_due_and_what_never_was_cannot_be(command: Command, tmp_path: Path):
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db:
        with db.session("h") as s:
            s.commit()
        assert db.wake("h", 1, key="w") is True
        assert command("why", "h").out.startswith("A timer is due")
        assert db.cancel_wake("h", "w") is True
        assert db.cancel_wake("h", "w") is False
    (row,) = command("ls", "--json").json["items"]
    assert row["inbox"] == 0
    assert command("ls", "--sort", "inbox", "--json").json["items"] == [row]
    assert command("show", "h", "--json").json["session"]["inbox"] == 0
    found = command("why", "h", "--json").json
    assert (found["summary"], found["inputs"]) == ("Nothing in it is open.", [])
    unknown = command("wake", "h", "--cancel", "w3")
    assert (unknown.code, unknown.out) == (1, "h: no wake w3 waits there, so nothing was taken back\n")


def test_a_message_to_a_session_that_no_worker_takes_says_so(command: Command, tmp_path: Path):
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db:
        perdure.submit(db, "p", "hello", agent="desk")
        board, now = board_of(db), db.kernel.clock.wall()
        board.claim("w", ["desk"], 1, now)
        board.rest("w", [Rest("p", 0, failed=True, park="it failed 5 times")], now)
    told = command("post", "p", "more").out.splitlines()
    assert told[0] == "p: posted"
    assert told[1].startswith("No worker takes it any more: it failed 5 times.")
    assert told[1].endswith("Mend what it fails of, then retry it.")
    assert told[2:] == ["  perdure retry p", "  perdure resume APP p"]
