"""The command line: the exception of a tool is shown by whatever people look at a session with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import perdure
from perdure import tool
from perdure.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command


@tool
def charge(order: str) -> str:
    """Charge an order, and stumble."""
    raise KeyError(order)


@tool
def wire(order: str) -> str:
    """Wire money; the answer is lost."""
    raise TimeoutError("no word from the bank")


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """A session whose call raised, one whose call is in doubt; its URL."""
    url = f"sqlite:///{tmp_path}/agents.db"
    with perdure.open(url) as db:
        with db.session("bug") as s, pytest.raises(perdure.EffectRaised):
            s.call(charge, order="o1")
        with db.session("lost") as s, pytest.raises(perdure.InDoubt):
            s.call(wire, order="o1")
    return url


SHOWN = {
    "bug": ("KeyError", "'o1'", "raise KeyError(order)"),
    "lost": ("TimeoutError", "no word", "raise TimeoutError("),
}


@pytest.mark.parametrize("session", SHOWN)
@pytest.mark.parametrize("name", ["show", "why", "log", "resolve"])
def test_class_message_and_traceback_are_shown(command: Command, shop: str, name: str, session: str):
    found = command(name, session)
    assert found.code == 0, found.err
    for part in SHOWN[session]:
        assert part in found.out


@pytest.mark.parametrize("session", SHOWN)
def test_programs_get_them_too(command: Command, shop: str, session: str):
    told = [
        command("show", session, "--json").json["effects"][0]["exception"],
        command("why", session, "--json").json["exception"],
        command("resolve", session, "--json").json["effects"][0]["exception"],
        next(c["exception"] for c in command("log", session, "--json").json["items"] if "exception" in c),
    ]
    assert all(one == told[0] for one in told)
    error, message, where = SHOWN[session]
    assert told[0]["error"] == error
    assert message in told[0]["message"]
    assert where in told[0]["traceback"]


def test_what_raised_waits_for_nobody_and_can_be_settled(command: Command, shop: str):
    effect = command("resolve", "bug", "--json").json["effects"][0]
    assert effect["status"] == "raised"
    assert command("why", "bug", "--json").json["severity"] == "ok"
    assert command("resolve", "bug", effect["id"], "--done", '"paid"', "--by", "ana").code == 0
    with perdure.open(shop) as db, db.session("bug") as s:
        assert s.call(charge, order="o1") == "paid"


def test_a_call_that_is_tried_again_says_when(command: Command, tmp_path: Path):
    clock = FakeClock()

    class Ended(BaseException):
        """The process is killed while it waits."""

    def killed(ms: int) -> None:
        raise Ended

    clock.sleep = killed  # type: ignore[method-assign]

    @tool(if_unsure="retry")
    def pay(order: str) -> str:
        raise TimeoutError("no word from the bank")

    with perdure.open(f"sqlite:///{tmp_path}/agents.db", clock=clock) as db:
        with pytest.raises(Ended), db.session("s") as s:
            s.call(pay, order="o1")
        effect = command("show", "s", "--json").json["effects"][0]
    assert (effect["status"], effect["attempt"]) == ("started", 1)
    assert effect["lost_since_at"] < effect["retry_at"]
    assert "has got no answer since" in command("resolve", "s").out
    assert "retrying" in command("log", "s").out
