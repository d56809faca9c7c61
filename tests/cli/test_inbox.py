"""The command line: something put into a session's inbox, for whoever writes the session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import tool
from perdure.fleet.board import board_of
from perdure.protocols import Rest
from perdure.system.lease_holders import running_agent

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


def test_one_that_has_no_answer_yet_at_all_is_told_more(command: Command, shop: str):
    with perdure.open(shop) as db, running_agent(), db.session("first"):
        db.post("first", "hello")
        assert command("post", "first", "and this", "--key", "k").out == "first: posted\n"
        assert command("post", "first", "hello").out == (
            "first: was there already, and is not answered yet (--again says it once more)\n"
        )
        assert command("wake", "first", "later", "--delay", "2h", "--key", "w").out == "first: will be woken\n"
        assert command("wake", "first", "--cancel", "w").out == "first: taken back\n"


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
    assert told[2:] == ["  perdure resume APP p", "  perdure retry p"]


def refuse(url: str) -> None:
    """A session whose newest message its provider refuses."""

    def refused(request: Any) -> str:
        if "forbidden" in str(request.messages):
            raise perdure.RequestRefused("it answered 400: forbidden contents")
        return "Hello."

    desk = perdure.Agent("desk", model=perdure.ScriptedModel(refused))
    desk.run_sync(url, session="r", message="hello", key="k0")
    desk.run_sync(url, session="r", message="forbidden words", key="k1")


def test_what_is_not_answered_is_listed_withdrawn_and_edited(command: Command, tmp_path: Path):
    refuse(f"sqlite:///{tmp_path}/agents.db")
    assert command("inbox", "nobody").code == 1
    listed = command("inbox", "r").out.splitlines()
    assert listed[0].split()[:4] == ["KEY", "KIND", "ROLE", "STANDS"]
    assert listed[1].split()[:4] == ["k1", "message", "user", "waits"]
    assert listed[1].endswith("forbidden words")
    # What is said to do is done, word by word.
    suggested = command("why", "r", "--json").json
    assert [suggested["command"], *suggested["actions"][0]["others"]] == [
        "perdure inbox r --withdraw k1", "perdure inbox r --edit k1 --message TEXT",
    ]  # fmt: skip
    edited = command("inbox", "r", "--edit", "k1", "--message", "kind words", "--by", "eve")
    assert edited.out.startswith("r: k1 edited. Nobody runs agent desk")
    (one,) = command("inbox", "r", "--json").json["items"]
    assert (one["text"], one["edited_by"], one["size_bytes"]) == ("kind words", "eve", 11)
    assert command("why", "r").out.splitlines()[-1].endswith("kind words")
    told = command(*suggested["command"].split()[1:], "--by", "eve", "--reason", "rude", "--json").json
    assert (told["did"], told["new"], told["woken"]) == ("withdrawn", True, "nobody")
    assert command("inbox", "r", "--withdraw", "k1").out.startswith("r: k1 withdrawn before. Nothing else waits")
    assert command("inbox", "r").out == "nothing waits in it, and nothing that was said is unanswered\n"
    assert "eve withdrew message 'k1': rude" in command("log", "r").out
    assert command("log", "r").out.count("from the inbox") == 1, "that which was answered"
    assert command("why", "r").out.startswith("It has answered everything.")
    # Said again in other words it is another message, and by its key it is told what became of it.
    assert command("post", "r", "kind words").out.startswith("r: posted")
    assert command("post", "r", "forbidden words", "--key", "k1").err.strip().endswith("eve withdrew it: rude")
    for argv, code in (
        (("--withdraw", "k1", "--edit", "k1", "--message", "x"), 2), (("--edit", "k1"), 2), (("--message", "x"), 2),
        (("--by", "eve"), 2), (("--edit", "k1", "--message", ""), 2), (("--withdraw", "other"), 1),
        (("--withdraw", "k0"), 1),
    ):  # fmt: skip
        ended = command("inbox", "r", *argv)
        assert (ended.code, ended.err.count("\n")) == (code, 1), (argv, ended.err)
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db, db.session("r"):
        assert command("inbox", "r", "--withdraw", "k1").code == 4
