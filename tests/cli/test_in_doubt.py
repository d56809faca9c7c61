"""The command line: calls in doubt of many sessions settled the same way, after a look at which they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import perdure
from perdure import tool

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

YES = ("--by", "eve", "--yes")


@tool(if_unsure="ask")
def charge(order: str) -> str:
    """Charge an order; the connection drops."""
    raise ConnectionError(order)


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """Three sessions of ana and one of ben with a call in doubt, and one of ana with none; its URL."""
    url = f"sqlite:///{tmp_path}/agents.db"
    with perdure.open(url, schema="2.0.0") as db:
        for name, owner in (("a", "ana"), ("b", "ana"), ("c", "ana"), ("d", "ben")):
            for _ in range(2):
                with pytest.raises((perdure.InDoubt, ConnectionError)), db.session(name, owner=owner) as s:
                    s.call(charge, order=name)
        with db.session("fine", owner="ana") as s:
            s.commit()
    return url


def statuses(command: Command) -> dict[str, str]:
    return {row["id"]: row["status"] for row in command("ls", "--json").json["items"]}


def outcome(url: str, session: str) -> object:
    with perdure.open(url, schema="2.0.0") as db, db.session(session) as s:
        (effect,) = s.effects()
        return effect["status"], effect.get("result"), effect.get("resolved_by")


def test_many_are_named_first_and_then_settled(command: Command, shop: str):
    dry = command("resolve", "--owner", "ana", "--abort", "--dry-run", "--json").json
    assert (dry["sessions"], dry["changed"], dry["failed"]) == (["a", "b", "c"], 0, [])
    words = command("resolve", "--owner", "ana", "--dry-run").out
    assert words.splitlines()[-1] == "would resolve 3 sessions; nothing was done"
    assert set(statuses(command).values()) == {"in_doubt", "idle"}
    done = command("resolve", "--owner", "ana", "--abort", *YES, "--json").json
    assert (done["action"], done["sessions"], done["changed"]) == ("resolve", ["a", "b", "c"], 3)
    assert outcome(shop, "a") == ("failed", None, "eve")
    assert statuses(command)["d"] == "in_doubt"
    assert command("resolve", "--status", "in_doubt", "--done", '{"paid": 1}', *YES).out == "resolve: 1 of 1 session\n"
    assert outcome(shop, "d") == ("done", {"paid": 1}, "eve")


def test_all_calls_of_one_session_are_settled_when_none_is_named(command: Command, shop: str):
    assert command("resolve", "a", "--done", '"paid"', *YES).out == "resolve: 1 of 1 session\n"
    assert outcome(shop, "a") == ("done", "paid", "eve")
    for argv in (("--retry", *YES), ("--retry", "--dry-run"), ("--dry-run", "--json")):
        none = command("resolve", "fine", *argv)
        assert (none.code, none.out) == (1, "")
        assert none.err == "perdure: nothing in 'fine' is in doubt: perdure why fine tells what it does\n"
    assert command("resolve", "--status", "idle", "--dry-run", "--json").json["sessions"] == []


def killed(url: str) -> None:
    """Let somebody begin a call in a session and be gone before it ends."""

    @tool(if_unsure="ask")
    def freeze(order: str) -> str:
        """Stop the process, as far as the store can see."""
        raise KeyboardInterrupt

    with perdure.open(url, schema="2.0.0") as db, pytest.raises(KeyboardInterrupt), db.session("killed") as s:
        s.call(freeze, order="k")


def test_what_could_not_find_out_is_told_with_its_error(command: Command, shop: str):
    def find(order: str) -> None:
        raise RuntimeError("no route to the bank")

    @tool(if_unsure=find)
    def pay(order: str) -> str:
        """Pay an order; the connection drops."""
        raise ConnectionError(order)

    with perdure.open(shop, schema="2.0.0") as db, pytest.raises(perdure.InDoubt), db.session("lost") as s:
        s.call(pay, order="k")
    for name in ("why", "show", "resolve"):
        assert "could not find out, it failed with RuntimeError: no route to the bank" in command(name, "lost").out
    (listed,) = command("resolve", "lost", "--json").json["effects"]
    assert listed["lookup_error"] == "RuntimeError: no route to the bank"


def test_a_call_that_was_left_behind_is_settled_with_the_session_as_it_is_alone(command: Command, shop: str):
    killed(shop)
    (listed,) = command("resolve", "killed", "--json").json["effects"]
    assert listed["status"] == "started"
    assert command("resolve", "killed", "--abort", "--dry-run", "--json").json["sessions"] == ["killed"]
    assert command("resolve", "killed", "--abort", *YES).out == "resolve: 1 of 1 session\n"
    assert outcome(shop, "killed") == ("failed", None, "eve")


def test_a_call_that_somebody_is_at_is_not_in_doubt(command: Command, shop: str):
    killed(shop)
    with perdure.open(shop, schema="2.0.0") as db, db.session("killed"):
        assert command("resolve", "killed", "--abort", *YES).code == 1


def test_nothing_is_done_by_mistake(command: Command, shop: str):
    for argv, words in (
        (("--retry", "--yes"), "say which sessions"),
        (("--owner", "ana", "--yes"), "say what became of it"),
        (("--owner", "ana", "--retry", "--abort", "--yes"), "exactly one"),
        (("--owner", "ana", "--retry"), "add --yes"),
        (("a", "--retry"), "add --yes"),
        (("a", "--owner", "ana", "--retry", "--yes"), "a session is named"),
        (("a", "ef_x", "--retry", "--dry-run"), "one call is named"),
        (("--status", "unsure", "--retry", "--yes"), "there is no status"),
        (("--owner", "", "--retry", "--yes"), "say which sessions"),
    ):
        ended = command("resolve", *argv)
        assert (ended.code, ended.out) == (2, ""), argv
        assert words in ended.err, argv
        assert ended.err.count("\n") == 1
    assert command("resolve", "nobody", "--retry", "--yes").code == 1
    assert [s for s, status in statuses(command).items() if status == "in_doubt"] == ["a", "b", "c", "d"]


def test_one_that_is_being_written_keeps_nobody_from_the_others(command: Command, shop: str):
    with perdure.open(shop, schema="2.0.0") as db, db.session("b"):
        ended = command("resolve", "--owner", "ana", "--abort", *YES)
        assert ended.code == 4
        assert ended.out.startswith("resolve: 2 of 3 sessions\nb: session 'b' is being written")
        (failed,) = command("resolve", "b", "--abort", *YES, "--json").json["failed"]
        assert (failed["session"], failed["type"]) == ("b", "urn:perdure:error:busy")
    found = statuses(command)
    assert (found["b"], outcome(shop, "c")) == ("in_doubt", ("failed", None, "eve"))


def test_a_filter_that_nothing_fits_is_no_mistake(command: Command, shop: str):
    assert command("resolve", "--owner", "nobody", "--retry").out == "resolve: 0 of 0 sessions\n"


def test_one_of_two_doubts_that_is_settled_names_the_other(command: Command, tmp_path: Path):
    with perdure.open(f"sqlite:///{tmp_path}/two.db") as db, db.session("s") as s:
        for order in ("one", "two"):
            with pytest.raises(perdure.InDoubt):
                s.call(charge, order=order)
        first, second = (e["id"] for e in s.effects())
    found = command("resolve", "s", first, "--abort", "--by", "eve", "--store", "two.db").out
    assert "1 more call is in doubt, and it does not go on before that is settled: charge(order=" in found
    assert f"perdure resolve s {second} --done RESULT" in found
    assert "more call" not in command("resolve", "s", second, "--abort", "--by", "eve", "--store", "two.db").out


def test_what_main_was_found_to_have_done_is_nothing_to_settle_on_a_branch(command: Command, shop: str):
    with perdure.open(shop, schema="2.0.0") as db, db.session("a") as s:
        (effect,) = (e["id"] for e in s.effects())
        s.fork("b")
    assert effect in command("resolve", "a", "--branch", "b").out
    assert command("resolve", "a", effect, "--done", '"paid"', *YES[:2]).code == 0
    assert command("resolve", "a", "--branch", "b").out == "nothing in a waits for anybody on branch b\n"
    refused = command("resolve", "a", effect, "--branch", "b", "--retry", *YES[:2])
    assert refused.code == 1
    assert "was done on another branch or before a rewind, and that outcome is taken when it goes on" in refused.err
    with perdure.open(shop, schema="2.0.0") as db, db.session("a", branch="b") as s:
        assert s.call(charge, order="a") == "paid"
