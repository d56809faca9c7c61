"""The command line: what people decide about a session, from another process than the agent's."""

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
paid: list[int] = []


@tool(approve=True)
def refund(order: str, amount: int) -> int:
    paid.append(amount)
    return amount


@tool
def seat(ctx: perdure.Context) -> str:
    return ctx.ask("Window or aisle?", {"enum": ["window", "aisle"]})


@tool
def wire(amount: int) -> None:
    raise TimeoutError


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the support desk writes what it has booked."""
    path = tmp_path / "ledger"
    monkeypatch.setenv("DESK_LEDGER", str(path))
    return path


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """A database with a session that waits for a refund, a seat and a wire; its URL."""
    paid.clear()
    url = f"sqlite:///{tmp_path}/agents.db"
    with perdure.open(url, schema="2.0.0") as db, db.session("s") as s:
        for call in (lambda: s.call(refund, "o1", 100), lambda: s.call(seat), lambda: s.call(wire, 7)):
            with pytest.raises(perdure.CallError):
                call()
    return url


def go_on(url: str) -> list[object]:
    with perdure.open(url, schema="2.0.0") as db, db.session("s") as s:
        found: list[object] = []
        for call in (lambda: s.call(refund, "o1", 100), lambda: s.call(seat), lambda: s.call(wire, 7)):
            try:
                found.append(call())
            except perdure.CallError as e:
                found.append(type(e).__name__)
        return found


PROGRAM = "Its program takes it up when it calls again."


def ids(command: Command) -> tuple[str, str, str]:
    answer = command("approve", "s", "--list", "--json").json
    assert list(answer) == ["session", "branch", "approvals", "effects", "raised"]
    first, second = answer["approvals"]
    return first["id"], second["id"], answer["effects"][0]["id"]


def test_what_is_open_is_listed_when_nothing_is_named(command: Command, shop: str):
    a, b, e = ids(command)
    for argv in (("approve", "--list"), ("reject", "--list"), ("answer",), ("resolve",)):
        lines = command(*argv, "s").out.splitlines()
        assert lines[0] == f'{a}: refund {{order: "o1", amount: 100}} waits for agreement'
        assert any(line.startswith(f"{b}: seat") and "Window or aisle?" in line for line in lines)
        assert lines[-6] == f"{e}: wire {{amount: 7}} is in_doubt: TimeoutError"
        assert lines[-4].strip() == "raise TimeoutError", "where it came from"
        assert lines[-1] == f"  perdure resolve s {e} --abort"


def test_the_only_one_that_waits_need_not_be_named(command: Command, shop: str):
    a, b, _ = ids(command)
    several = command("reject", "s")
    assert (several.code, "2 wait, and nothing was decided: say which" in several.err) == (2, True)
    assert several.out.startswith(f"{a}: refund")
    # A question is answered, not agreed to: one request is left that can be meant.
    told = command("approve", "s", "--by", "ana").out
    assert told == f'{a}: refund {{order: "o1", amount: 100}}\n{a}: approved. {PROGRAM}\n'
    assert command("approve", "s").code == 1, "what is decided on already was agreed to once more"
    assert command("reject", "s", "--by", "ana").out == f"{b}: seat {{}}\n{b}: rejected. {PROGRAM}\n"


def test_decisions_from_the_command_line_reach_the_agent(command: Command, shop: str):
    a, b, e = ids(command)
    assert command("approve", "s", a, "--by", "ana", "--reason", "fair").out == f"{a}: approved. {PROGRAM}\n"
    answered = command("answer", "s", b, "aisle", "--by", "ana", "--json").json
    assert answered == {"session": "s", "id": b, "decision": "answered", "woken": "nobody", "next": PROGRAM}
    done = command("resolve", "s", e, "--done", '{"ok": true}', "--by", "ana", "--json").json
    assert (done["session"], done["id"], done["status"], done["result"]) == ("s", e, "done", {"ok": True})
    assert go_on(shop) == [100, "aisle", {"ok": True}]
    assert "nothing in s waits" in command("resolve", "s").out
    with perdure.open(shop, schema="2.0.0") as db, db.session("s") as s:
        assert [(r.by, r.reason) for r in s.approvals(None)] == [("ana", "fair"), ("ana", "")]


def test_an_approval_with_other_arguments(command: Command, shop: str):
    a, _, _ = ids(command)
    assert command("approve", "s", a, "--edit", "[1]").code == 2
    assert command("approve", "s", a, "--edit", "{").code == 2
    refused = command("approve", "s", a, "--edit", '{"amount": 60}')
    assert (refused.code, refused.out) == (2, "")
    assert "has no order. Nothing was decided: say all arguments of the call" in refused.err
    wrong = command("approve", "s", a, "--edit", '{"order": "o1", "amount": "much"}').err
    assert wrong.rstrip().endswith("Nothing was decided"), "no argument is missing"
    assert command("approve", "s", a, "--edit", '{"order": "o1", "amount": 60}').code == 0
    assert go_on(shop)[0] == 60
    assert paid == [60]


def test_refusals_and_giving_up(command: Command, shop: str):
    a, b, e = ids(command)
    assert command("reject", "s", a, "--reason", "no").code == 0
    assert command("reject", "s", b).code == 0
    assert command("resolve", "s", e, "--abort").out == f"{e}: given up. {PROGRAM}\n"
    assert go_on(shop) == ["EffectFailed", "EffectFailed", "EffectFailed"]


def test_a_second_decision_and_a_wrong_one_are_refused(command: Command, shop: str):
    a, b, e = ids(command)
    assert command("approve", "s", b).code == 1
    assert command("answer", "s", b).code == 2
    assert command("approve", "s", a).code == 0
    second = command("reject", "s", a)
    assert (second.code, "decided already" in second.err) == (1, True)
    assert command("approve", "s", "ap_of_another").code == 1
    assert command("approve", "nobody", a).code == 1
    assert command("resolve", "s", e).code == 2
    assert command("resolve", "s", e, "--abort", "--retry").code == 2
    assert command("resolve", "s", "ef_of_another", "--abort").code == 1


def test_a_session_that_is_being_written_can_be_decided_about_but_not_resolved(command: Command, shop: str):
    a, _, e = ids(command)
    with perdure.open(shop, schema="2.0.0") as db, db.session("s"):
        assert command("resolve", "s", e, "--retry").code == 4
        assert command("approve", "s", a).code == 0
    assert command("resolve", "s", e, "--retry").out == f"{e}: to be made again. {PROGRAM}\n"


def test_a_request_that_is_met_the_wrong_way_is_told_in_the_words_of_the_door(command: Command, shop: str):
    refund_id, seat_id, _ = ids(command)
    for words, told in (
        (("approve", "s", seat_id), f"is a question, and nothing was decided: perdure answer s {seat_id} VALUE"),
        (("answer", "s", refund_id, "yes"), f"is no question, and nothing was decided: perdure approve s {refund_id}"),
    ):
        refused = command(*words)
        assert (refused.code, told in refused.err) == (1, True), refused.err
        assert "db." not in refused.err
    with perdure.open(shop) as db:
        with pytest.raises(perdure.ApprovalError, match=rf"db\.answer\('s', '{seat_id}', \.\.\., by="):
            db.approve("s", seat_id, by="ana")
        with pytest.raises(perdure.ApprovalError, match=rf"no question, .*: db\.approve\('s', '{refund_id}', by="):
            db.answer("s", refund_id, "yes", by="ana")


def test_a_session_that_was_closed_is_told_in_the_words_of_the_door(command: Command):
    with perdure.open() as db, db.session("s") as s:
        s.close()
    closed = command("run", APP, "s", "hello")
    assert (closed.code, "perdure run APP s --reopen opens it again" in closed.err) == (2, True)
    with pytest.raises(perdure.SessionClosed, match=r"db\.session\('s', reopen=True\) opens it again; then submit"):
        perdure.submit(perdure.open(), "s", "hello", agent="desk")


@pytest.mark.parametrize("deed", ["cancel", "pause", "unpause", "retry"])
def test_a_session_that_is_not_there_keeps_nobody_from_the_others_and_is_named(command: Command, deed: str):
    with perdure.open() as db:
        for session in ("s", "t"):
            perdure.submit(db, session, "hello", agent="desk")
    if deed == "unpause":
        command("pause", "s", "t")
    told = command(deed, "s", "nosuch", "t")
    assert (told.code, told.err) == (1, "")
    assert told.out.splitlines()[0] == f"{deed}: 2 of 3 sessions"
    assert told.out.splitlines()[1].startswith("nosuch: there is no session 'nosuch'")
    assert len(told.out.splitlines()) == 2
    found = command(deed, "nosuch", "t", "none", "--json")
    assert (found.code, found.json["sessions"]) == (1, ["t"])
    assert [one["session"] for one in found.json["failed"]] == ["nosuch", "none"]
    dry = command(deed, "s", "nosuch", "--dry-run")
    assert (dry.code, "nosuch: there is no session" in dry.out) == (1, True)
    assert "nothing was done" in dry.out
    none = command(deed, "nosuch", "none")
    assert (none.code, none.out.splitlines()[0]) == (1, f"{deed}: 0 of 2 sessions")
    with perdure.open() as db:
        if deed == "cancel":
            assert (db.look("s").pending, db.look("t").pending) == (2, 3)


def test_cancel_is_left_in_the_inbox(command: Command, shop: str):
    assert command("cancel", "nobody").code == 1
    assert command("cancel", "s", "--by", "ana", "--reason", "wrong").out == "cancel: 1 of 1 session\n"
    assert command("ls", "--json").json["items"][0]["inbox"] == 1


def test_what_waits_on_main_is_listed_and_decided_while_a_branch_is_newer(command: Command, ledger: Path):
    assert command("run", APP, "s", "refund 7", "--json").json["status"] == "waiting_approval"
    assert command("fork", "s@1", "b", "--before", "--set", "messages.-1.content=hello").code == 0
    assert "You said: hello" in command("run", APP, "s", "--branch", "b").out
    (row,) = command("ls", "--status", "waiting_approval", "--json").json["items"]
    assert (row["id"], row["status"]) == ("s", "waiting_approval")
    assert command("ls", "--status", "idle", "--json").json["items"] == []
    (waits,) = command("approve", "s", "--list", "--json").json["approvals"]
    told = command("approve", "s", waits["id"], "--by", "ana").out
    typed = "Nobody runs agent desk: go on with perdure resume APP s, or start perdure worker APP."
    assert told == f"{waits['id']}: approved. {typed}\n"
    assert command("resume", APP, "s", "--json").json["text"] == "7"
    assert command("ls", "--json").json["items"][0]["status"] == "idle"


def test_what_waits_on_a_branch_is_pointed_at(command: Command, ledger: Path):
    assert command("run", APP, "s", "hello").code == 0
    assert command("fork", "s@1", "it's", "--before", "--set", "messages.-1.content=refund 7").code == 0
    assert command("run", APP, "s", "--branch", "it's", "--effects", "reuse", "--json").json["status"] == (
        "waiting_approval"
    )
    assert command("ls", "--json").json["items"][0]["status"] == "idle"
    nothing = command("approve", "s")
    assert nothing.code == 1, "it agreed to nothing"
    told = nothing.out.splitlines()
    assert told == [
        "nothing in s waits for anybody",
        "1 more waits on branch it's: see it with --branch 'it'\"'\"'s'",
    ]
    there = command("approve", "s", "--list", "--branch", "it's").out.splitlines()
    assert "refund {amount: 7} waits for agreement" in there[0]
    (waits,) = command("approve", "s", "--list", "--branch", "it's", "--json").json["approvals"]
    id = waits["id"]
    assert there[2:] == [
        f"  perdure approve s {id}", f"  perdure approve s {id} --edit ARGUMENTS", f"  perdure reject s {id}"
    ]  # fmt: skip
    told = command("approve", "s", waits["id"]).out
    how = "perdure resume APP s --branch 'it'\"'\"'s' --effects reuse (a dry run makes no call)"
    assert told == f"{waits['id']}: approved. It is taken up when the branch is run on: {how}.\n"
    assert command("resume", APP, "s", "--branch", "it's").out.startswith("waiting_approval: dry run: refund (effect ")
    done = command("run", APP, "s", "--branch", "it's", "--effects", "reuse", "--json").json
    assert (done["status"], done["text"]) == ("done", "7")
    assert command("approve", "s").out == "nothing in s waits for anybody\n"


def test_who_changed_which_arguments_is_shown_until_it_is_taken_up(command: Command, ledger: Path):
    command("run", APP, "s", "refund 7")
    (waits,) = command("approve", "s", "--list", "--json").json["approvals"]
    assert command("approve", "s", waits["id"], "--edit", '{"amount": 8}', "--by", "ana").code == 0
    for argv in (("approve", "s", "--list"), ("show", "s")):
        assert 'was approved by ana with other arguments: {"amount": 8}' in command(*argv).out, argv
    assert "8" in command("resume", APP, "s").out


def test_a_call_that_is_settled_is_settled_and_how(command: Command, ledger: Path):
    command("run", APP, "s", "book 7")
    effect = ledger.read_text().split()[1]
    command("run", APP, "s", "hello")
    for argv in (("--abort",), ("--retry",), ("--done", "7")):
        found = command("resolve", "s", effect, *argv, "--by", "eve")
        assert found.code == 1
        assert found.err == f"perdure: effect {effect} is settled: it was done, at step 2\n"
    told = command("outcome", "s", effect, "7")
    assert told.out == f"s: nothing was reported: {effect} has its outcome already\n"
    unknown = command("outcome", "s", "ef_0", "7")
    assert (unknown.code, unknown.err) == (1, "perdure: session 's' has no effect 'ef_0': nothing was reported\n")
    with perdure.open(f"sqlite:///{ledger.parent}/.perdure/agents.db") as db:
        assert db.look("s").pending == 0


def test_an_outcome_that_was_reported_settles_a_call_and_nobody_else_does(command: Command, ledger: Path):
    command("run", APP, "s", "wire 1")
    (effect,) = command("run", APP, "s", "--json").json["in_doubt_ids"]
    assert command("outcome", "s", effect, '"paid"').out == "s: reported\n"
    refused = command("resolve", "s", effect, "--retry", "--by", "eve")
    assert refused.code == 1
    assert "was reported meanwhile, and waits in the inbox" in refused.err
    assert "paid" in command("resume", APP, "s").out
    with perdure.open(f"sqlite:///{ledger.parent}/.perdure/agents.db") as db:
        assert db.look("s").pending == 0


def test_a_call_that_raised_is_settled_by_whoever_resolves_it(command: Command, tmp_path: Path):
    @tool
    def pay(amount: int) -> None:
        raise RuntimeError("halfway")

    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db, db.session("s") as s:
        with pytest.raises(perdure.EffectRaised):
            s.call(pay, 7)
        (record,) = s.effects()
    found = command("outcome", "s", record["id"], "7")
    assert found.code == 1
    typed = f"perdure resolve s {record['id']} --done RESULT"
    assert found.err.splitlines()[0].endswith(f"nobody waits for its outcome: settle it with {typed}")
    assert command("resolve", "s", record["id"], "--done", "7", "--by", "eve").code == 0


def test_of_a_call_that_waits_for_approval_nobody_reports_or_settles_an_outcome(command: Command, tmp_path: Path):
    @tool(approve=True)
    def pay(amount: int) -> None:
        """Pay."""

    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db:
        s = db.session("s")
        with pytest.raises(perdure.ApprovalNeeded) as needed:
            s.call(pay, 7)
    request = needed.value.approval
    found = command("outcome", "s", request.effect, "7")
    assert found.code == 1
    assert found.err.endswith(f"effect {request.effect} was not made yet: it waits for approval {request.id}\n")
    found = command("resolve", "s", request.effect, "--done", "7", "--by", "eve")
    assert found.code == 1
    assert f"not in doubt: it was not made yet: it waits for approval {request.id}" in found.err


def test_another_outcome_than_was_reported_is_told_of_that(command: Command, ledger: Path):
    command("run", APP, "s", "wire 1")
    (effect,) = command("run", APP, "s", "--json").json["in_doubt_ids"]
    assert command("outcome", "s", effect, '"paid"').code == 0
    found = command("outcome", "s", effect, "--failed", "no money")
    assert found.code == 1
    assert f'another outcome of effect {effect} was reported already: done, "paid". That stands' in found.err


@tool(approve=True, approval_valid_for=0.05)
def hurry(x: int) -> int:
    return x


def test_one_that_nobody_decided_on_in_time_is_not_said_to_wait(command: Command, tmp_path: Path):
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db, db.session("q") as s:
        for call in (lambda: s.call(hurry, 1), lambda: s.call(refund, "o1", 100)):
            with pytest.raises(perdure.ApprovalNeeded):
                call()
        late, open_ = (a.id for a in s.approvals())
    time.sleep(0.06)
    listed = command("approve", "q", "--list").out
    assert f"{late}: hurry" in listed
    assert f"{late}: hurry {{'x': 1}} waits" not in listed
    assert "was not decided on in time, and counts as turned down when the session goes on" in listed
    assert f"approve q {late}" not in listed
    assert "not decided on in time" in command("show", "q").out
    for one in ("show", "approve"):
        told = command(one, "q", *(["--list"] if one == "approve" else []), "--json").json
        assert [a["id"] for a in told["approvals"]] == [open_], one
    refused = command("approve", "q", late)
    assert refused.code == 1
    assert "perdure why q" in refused.err
    why = command("why", "q").out
    assert "refund" in why, "the one that can be decided on is what it waits for"
    assert command("approve", "q").out.splitlines()[1].startswith(f"{open_}: approved")
    assert "expired" in command("why", "q").out
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db, db.session("q") as s:
        with pytest.raises(perdure.CallError, match="in time"):
            s.call(hurry, 1)
        assert s.call(refund, "o1", 100) == 100
    assert "nothing in q waits for anybody" in command("approve", "q", "--list").out


GUEST = {"name": "Ana Maria da Silva", "mail": "ana@example.com", "passport": "P-1234567", "wishes": "w" * 500}
STAY = {"guest": GUEST, "hotel": "Sol", "room": "single", "since": "2026-11-30", "until": "2026-12-02", "price": "900"}


@tool(approve=True, facts=lambda **_: {"fare": "f" * 400})  # pyright: ignore[reportUnknownLambdaType]
def book(guest: dict[str, str], hotel: str, room: str, since: str, until: str, price: str) -> str:
    return price


@tool
def order(guest: dict[str, str], hotel: str, price: str) -> str:
    raise TimeoutError


def test_whoever_decides_sees_all_that_he_decides_on(command: Command, tmp_path: Path):
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db:
        with db.session("long") as s, pytest.raises(perdure.CallError):
            s.call(book, **STAY)
        with db.session("doubt") as s, pytest.raises(perdure.InDoubt):
            s.call(order, GUEST, "Sol", "900")
    everything = ("w" * 500, 'price: "900"', 'passport: "P-1234567"')
    for argv, more in (
        (("approve", "long", "--list"), ("f" * 400, 'room: "single"')),
        (("resolve", "doubt"), ()),
        (("show", "long", "--full"), ('until: "2026-12-02"',)),
        (("show", "doubt", "--full"), ()),
    ):
        told = command(*argv).out
        assert [part for part in (*everything, *more) if part not in told] == [], argv
    shortened = command("show", "long").out
    assert 'price: "900"' in shortened
    assert "shortened: --full shows everything" in shortened
    # A line that leaves something out says where it is.
    assert "Not all of it is told here: perdure approve long --list does." in command("why", "long").out
    assert "Not all of it is told here: perdure resolve doubt does." in command("why", "doubt").out
    assert [part for part in everything if part not in command("approve", "long").out] == []


def test_what_a_run_waits_for_is_told_whole(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "hotel_app.py").write_text(
        "from perdure import Agent, ScriptedModel\n"
        "from perdure.agent.models.scripted import calls\n"
        "from tests.cli.test_approvals import STAY, book\n"
        "agent = Agent('hotel', model=ScriptedModel(lambda request: calls(('book', STAY))), tools=[book])\n"
    )
    told = command("run", "hotel_app", "t", "a room").out
    assert [part for part in ("w" * 500, 'price: "900"', 'room: "single"') if part not in told] == []
