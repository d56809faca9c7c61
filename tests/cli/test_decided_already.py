"""A decision that was posted and waits to be taken up: no door of the command line asks for it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import perdure
from tests.cli.desk import refund, wire

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command


@pytest.fixture
def asked(tmp_path: Path) -> str:
    """A session that waits for one refund; the id of the request."""
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db, db.session("s") as s:
        with pytest.raises(perdure.CallError):
            s.call(refund, 1)
        return s.approvals()[0].id


@pytest.mark.parametrize(("deed", "said"), [("approve", "approved by ana"), ("reject", "rejected by ana")])
def test_nobody_is_asked_again(command: Command, asked: str, deed: str, said: str):
    assert "waits for agreement" in command("approve", "s", "--list").out
    assert command(deed, "s", "--by", "ana").code == 0
    for argv in (("approve", "s"), ("reject", "s")):
        found = command(*argv)
        assert found.code == 1
        assert "waits for agreement" not in found.out
        assert f"was {said}, and waits to be taken up" in found.out
        assert "perdure approve" not in found.out
    listed = command("approve", "s", "--list")
    assert f"{asked}: refund " in listed.out
    assert "waits for agreement" not in listed.out
    shown = command("show", "s").out
    assert "waits for a decision" not in shown
    assert f"was {said}" in shown
    assert command("approve", "s", "--list", "--json").json["approvals"] == []
    assert command("show", "s", "--json").json["approvals"] == []


def test_a_decision_behind_many_messages_is_found(command: Command, asked: str, tmp_path: Path):
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db:
        for n in range(150):
            db.post("s", f"message {n}")
        db.approve("s", asked, by="ana")
    assert "for agreement" not in command("why", "s").out
    assert "waits for a decision" not in command("show", "s").out


def test_who_wants_to_approve_what_is_in_doubt_is_told_what_to_type(command: Command, tmp_path: Path):
    with (
        perdure.open(f"sqlite:///{tmp_path}/agents.db") as db,
        db.session("s") as s,
        pytest.raises(perdure.InDoubt),
    ):
        s.call(wire, 7)
    found = command("approve", "s")
    first, _, *more = found.out.splitlines()
    typed = [line for line in more if line.startswith("  perdure")]
    assert (found.code, first) == (1, "nothing in s waits for approval")
    effect = command("approve", "s", "--list", "--json").json["effects"][0]["id"]
    ways = ("--done RESULT", "--retry", "--abort")
    assert typed == [f"  perdure resolve s {effect} {way}" for way in ways]
