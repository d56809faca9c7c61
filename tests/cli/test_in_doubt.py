"""The command line: calls in doubt of many sessions settled the same way, after a look at which they are."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import pytest

import perdure
from perdure import tool
from perdure.shapes.approvals import effect as effect_shape
from perdure.state.document import plain

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Command

YES = ("--by", "eve", "--yes")


@tool(if_unsure="ask")
def charge(order: str) -> Any:
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


WRONG = ("sent", True, None, {"a": 1}, perdure.Done)
WANTED = "and must return perdure.Done(result), perdure.NotDone or perdure.Unknown"


@pytest.mark.parametrize("answer", WRONG, ids=repr)
def test_a_lookup_that_gives_something_else_is_told_what_it_must_return(command: Command, shop: str, answer: object):
    @tool(if_unsure=lambda order: answer)
    def pay(order: str) -> str:
        """Pay an order; the connection drops."""
        raise ConnectionError(order)

    told = f"if_unsure gave {answer!r}, {WANTED}"
    with perdure.open(shop, schema="2.0.0") as db, db.session("lost") as s:
        with pytest.raises(perdure.InDoubt) as doubt:
            s.call(pay, order="k")
        assert told in str(doubt.value)
    for name in ("why", "show", "resolve"):
        assert told in command(name, "lost").out
    (listed,) = command("resolve", "lost", "--json").json["effects"]
    assert listed["lookup_error"] == f"TypeError: {told}"


@pytest.mark.parametrize(
    "answer", [perdure.Unknown, perdure.Unknown(), perdure.NotDone, perdure.NotDone("no")], ids=repr
)
def test_what_a_lookup_may_return_is_no_mistake(shop: str, answer: object):
    @tool(if_unsure=lambda order: answer)
    def pay(order: str) -> str:
        raise KeyError(order)

    with perdure.open(shop, schema="2.0.0") as db, db.session("fine") as s:
        with pytest.raises((perdure.EffectRaised, perdure.EffectFailed)):
            s.call(pay, order="k")
        assert "lookup_error" not in s.effects()[-1]


@pytest.mark.parametrize("poll", [lambda handle: "finished", lambda handle: {}["no such job"]], ids=["wrong", "raises"])
def test_a_poll_that_tells_nothing_is_told_until_it_is_mended(
    command: Command, shop: str, poll: Callable[[str], object], caplog: pytest.LogCaptureFixture
):
    told = "KeyError: 'no such job'"
    with suppress(KeyError):
        told = f"TypeError: poll gave {poll('')!r}, {WANTED}, or None"
    answers = [poll, poll, lambda handle: None, poll, lambda handle: perdure.Done("there")]

    def ask(handle: str) -> object:
        return answers.pop(0)(handle)

    @tool(poll=ask)
    def order(n: int) -> str:
        """Order something that comes later."""
        return perdure.Later("job-1")  # pyright: ignore[reportReturnType]

    def go_on() -> object:
        with perdure.open(shop, schema="2.0.0") as db, db.session("late") as s:
            try:
                return s.call(order, 1)
            except perdure.ResultPending as e:
                return (str(e), s.step)

    first, step = cast("tuple[str, int]", go_on())
    assert first.endswith(
        f"what its tool has as poll could not find out, it failed with {told}. Mend that and call again"
    )
    assert told in caplog.text
    for name in ("why", "show", "resolve"):
        assert f"poll could not find out, it failed with {told}" in command(name, "late").out
    with perdure.open(shop, schema="2.0.0") as db:
        (record,) = plain(db.read("late").book)["effects"].values()
    assert effect_shape(record, "late", "main").lookup_error == told
    assert "it is polled again" in command("why", "late").out
    assert f"perdure outcome late {record['id']}" in command("resolve", "late").out
    # The same once more is no news.
    assert go_on() == (first, step)
    words, then = cast("tuple[str, int]", go_on())
    assert (words.endswith("call again once it is there"), then) == (True, step + 1)
    assert "could not find out" not in command("why", "late").out
    assert go_on() == (first, step + 2)
    assert go_on() == "there"


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
    assert (
        "has its outcome from another branch or from before a rewind, and that is taken when it goes on" in refused.err
    )
    with perdure.open(shop, schema="2.0.0") as db, db.session("a", branch="b") as s:
        assert s.call(charge, order="a") == "paid"


def test_a_call_whose_outcome_was_reported_is_listed_as_such_and_nobody_is_sent_to_settle_it(
    command: Command, shop: str
):
    (effect,) = [e["id"] for e in command("resolve", "a", "--json").json["effects"]]
    assert command("outcome", "a", effect, '"it went through"').code == 0
    listed = command("resolve", "a").out
    assert 'its outcome was reported and waits to be taken up: done, "it went through"' in listed
    assert f"resolve a {effect}" not in listed
    assert command("show", "a").out.count("its outcome was reported and waits to be taken up") == 1
    assert command("resolve", "a", effect, "--retry").code == 1
    # What is said of all calls in doubt is not said of this one.
    assert command("resolve", "a", "--abort", "--dry-run").code == 1


def test_a_closed_session_is_opened_again_before_its_calls_are_settled(command: Command, shop: str):
    with perdure.open(shop, schema="2.0.0") as db, db.session("a") as s:
        s.close()
    assert "perdure resolve a" not in command("resolve", "a").out


def test_all_that_wait_in_all_sessions_are_listed(command: Command, shop: str):
    ids = {one["session"]: one["effects"][0]["id"] for one in command("resolve", "--list", "--json").json["items"]}
    assert list(ids) == ["a", "b", "c", "d"]
    said = command("resolve", "--list").out
    assert [line for line in said.splitlines() if line.startswith("session ")] == [f"session {name}" for name in "abcd"]
    for name, effect in ids.items():
        assert f"perdure resolve {name} {effect} --abort" in said
    assert command("resolve", "--list", "--owner", "ben").out.startswith("session d\n")
    assert command("resolve", "--list", "a").out == command("resolve", "a").out
    assert command("resolve", "--list", "--owner", "nobody").out == "no call in doubt waits for anybody\n"
    assert command("resolve", "--list", "--abort").code == 2
    assert command("resolve", "a", "--list", "--retry").code == 2
