"""Approvals: for one call, its exact arguments and the facts they rest on; used once, never a hang."""

from __future__ import annotations

from typing import Any

import pytest

import perdure
from perdure import tool
from perdure.testing.clock import FakeClock

prices = {"BA1": 1200}
booked: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    prices["BA1"] = 1200
    booked.clear()


def make(**declared: Any) -> perdure.Tool:
    @tool(approve=lambda a: a["amount"] > 100, facts=lambda flight, amount: {"price": prices[flight]}, **declared)
    def book(flight: str, amount: float) -> str:
        booked.append(flight)
        return f"booked {flight}"

    return book


def ask(db: perdure.Database, book: Any) -> perdure.Approval:
    with db.session("s") as s, pytest.raises(perdure.ApprovalNeeded) as needed:
        s.call(book, flight="BA1", amount=1200)
    assert db.look("s").status == "waiting_approval"
    return needed.value.approval


def test_a_small_call_needs_nobody(db: perdure.Database) -> None:
    with db.session("s") as s:
        assert s.call(make(), flight="BA1", amount=50) == "booked BA1"


def test_an_approved_call_is_made_once(db: perdure.Database) -> None:
    book = make()
    request = ask(db, book)
    assert (request.tool, request.args, request.facts) == ("book", {"flight": "BA1", "amount": 1200}, {"price": 1200})
    with db.session("s") as s, pytest.raises(perdure.ApprovalNeeded):
        s.call(book, flight="BA1", amount=1200)
    assert booked == []
    db.approve("s", request.id, by="ana", reason="fine")
    with pytest.raises(perdure.ApprovalError, match="already"):
        db.reject("s", request.id, by="bob")
    with db.session("s") as s:
        assert s.call(book, flight="BA1", amount=1200) == "booked BA1"
        used = s.approvals(status=None)[0]
    assert (used.status, used.by, used.reason) == ("used", "ana", "fine")
    assert booked == ["BA1"]


def test_a_rejection_is_an_answer(db: perdure.Database) -> None:
    book = make()
    db.reject("s", ask(db, book).id, by="ana", reason="too dear")
    with db.session("s") as s, pytest.raises(perdure.EffectFailed, match="too dear"):
        s.call(book, flight="BA1", amount=1200)
    assert booked == []


def test_an_expired_request_is_an_answer(db: perdure.Database, clock: FakeClock) -> None:
    book = make(approval_valid_for="1h")
    request = ask(db, book)
    clock.advance(3600 * 1000)
    with pytest.raises(perdure.ApprovalError, match="expired"):
        db.approve("s", request.id, by="ana")
    with db.session("s") as s, pytest.raises(perdure.EffectFailed, match="expired"):
        s.call(book, flight="BA1", amount=1200)


def test_changed_facts_ask_again(db: perdure.Database) -> None:
    book = make()
    first = ask(db, book)
    db.approve("s", first.id, by="ana")
    prices["BA1"] = 1500
    with db.session("s") as s, pytest.raises(perdure.ApprovalNeeded) as again:
        s.call(book, flight="BA1", amount=1200)
    assert again.value.approval.id != first.id
    assert again.value.approval.facts == {"price": 1500}
    assert booked == []
    db.approve("s", again.value.approval.id, by="ana")
    with db.session("s") as s:
        s.call(book, flight="BA1", amount=1200)
        assert [a.status for a in s.approvals(status=None)] == ["stale", "used"]
    assert booked == ["BA1"]


def test_a_comparator_may_let_better_facts_pass(db: perdure.Database) -> None:
    book = make(recheck=lambda old, new: new["price"] <= old["price"])
    db.approve("s", ask(db, book).id, by="ana")
    prices["BA1"] = 900
    with db.session("s") as s:
        assert s.call(book, flight="BA1", amount=1200) == "booked BA1"


def test_a_decision_needs_a_name_and_a_request(db: perdure.Database) -> None:
    request = ask(db, make())
    with pytest.raises(perdure.InvalidInput, match="by="):
        db.approve("s", request.id, by="")
    with pytest.raises(perdure.ApprovalError, match="no approval"):
        db.approve("s", "ap_nothing", by="ana")
    with db.session("other") as s:
        s.vars["a"] = 1
        s.commit()
    with pytest.raises(perdure.ApprovalError, match="no approval"):
        db.approve("other", request.id, by="ana")


def test_the_request_itself_may_be_given_instead_of_its_id(db: perdure.Database) -> None:
    book = make()
    db.approve("s", ask(db, book), by="ana")
    with db.session("s") as s:
        assert s.call(book, flight="BA1", amount=1200) == "booked BA1"


def test_requests_that_were_settled_long_ago_no_longer_burden_the_session(db: perdure.Database) -> None:
    book = make()
    with db.session("s") as s:

        def call(number: int) -> Any:
            return s.call(book.options(key=f"trip {number}"), flight="BA1", amount=1200)

        with pytest.raises(perdure.ApprovalNeeded) as first:
            call(0)
        for number in range(1, 131):
            with pytest.raises(perdure.ApprovalNeeded) as needed:
                call(number)
            if number % 2:
                db.approve("s", needed.value.approval, by="ana")
                call(number)
            else:
                db.reject("s", needed.value.approval, by="ana", reason="too dear")
                with pytest.raises(perdure.EffectFailed):
                    call(number)
        assert len(s.approvals(None)) <= 102
        assert [a.id for a in s.approvals()] == [first.value.approval.id]
    assert len(booked) == 65
    # What was decided stays decided, and what waits since the beginning can still be decided.
    db.approve("s", first.value.approval, by="ana")
    with db.session("s") as s:
        for number in range(131):
            if number % 2 or number == 0:
                call(number)
    assert len(booked) == 66


def test_a_session_lives_for_as_long_as_a_request_that_it_waits_for(db: perdure.Database, clock: FakeClock) -> None:
    book = make(approval_valid_for="30d")
    request = ask(db, book)
    clock.advance(20 * 86_400_000)
    with db.session("s") as s:
        s.fork("other")
    clock.advance(9 * 86_400_000)
    assert db.sweep().removed == 0
    db.approve("s", request, by="ana")
    with db.session("s") as s:
        assert s.call(book, flight="BA1", amount=1200) == "booked BA1"
    clock.advance(8 * 86_400_000)
    with pytest.raises(perdure.Gone):
        db.read("s")


def room(**declared: Any) -> perdure.Tool:
    costs = {"R1": 80, "R2": 150, "R3": 400}

    @tool(approve=lambda a: costs[a["room"]] > 100, facts=lambda room: costs[room], **declared)
    def book(room: str) -> str:
        booked.append(room)
        return f"booked {room}"

    return book


def ask_for_a_room(db: perdure.Database, book: Any) -> perdure.Approval:
    with db.session("s") as s, pytest.raises(perdure.ApprovalNeeded) as needed:
        s.call(book, room="R2")
    return needed.value.approval


def test_who_changes_the_arguments_is_shown_what_those_rest_on(db: perdure.Database) -> None:
    book = room()
    db.approve("s", ask_for_a_room(db, book), by="ana", args={"room": "R3"})
    with db.session("s") as s, pytest.raises(perdure.ApprovalNeeded) as again:
        s.call(book, room="R2")
    asked = again.value.approval
    assert (asked.args, asked.facts) == ({"room": "R3"}, 400)
    assert asked.because == "ana has changed the arguments, and has not seen what these rest on"
    db.approve("s", asked, by="ana")
    with db.session("s") as s:
        assert s.call(book, room="R2") == "booked R3"
    assert booked == ["R3"]


def test_changed_arguments_that_rest_on_something_as_good_are_called_at_once(db: perdure.Database) -> None:
    book = room(recheck=lambda then, now: now <= then)
    with db.session("s") as s, pytest.raises(perdure.ApprovalNeeded) as needed:
        s.call(book, room="R3")
    db.approve("s", needed.value.approval, by="ana", args={"room": "R2"})
    with db.session("s") as s:
        assert s.call(book, room="R3") == "booked R2"


def test_changed_arguments_that_need_nobody_are_called_at_once(db: perdure.Database) -> None:
    book = room()
    db.approve("s", ask_for_a_room(db, book), by="ana", args={"room": "R1"})
    with db.session("s") as s:
        assert s.call(book, room="R2") == "booked R1"


def test_the_same_arguments_again_are_no_change(db: perdure.Database) -> None:
    book = room()
    db.approve("s", ask_for_a_room(db, book), by="ana", args={"room": "R2"})
    with db.session("s") as s:
        assert s.call(book, room="R2") == "booked R2"
        assert "edited" not in s.effects()[0]


def test_a_decision_waits_while_what_it_rests_on_cannot_be_read(db: perdure.Database) -> None:
    book = make()
    request = ask(db, book)
    db.approve("s", request, by="ana")
    price = prices.pop("BA1")
    with db.session("s") as s:
        with pytest.raises(perdure.ApprovalRuleFailed, match="has as facts raised KeyError: 'BA1'"):
            s.call(book, flight="BA1", amount=1200)
        s.commit()
    prices["BA1"] = price
    with db.session("s") as s:
        assert s.call(book, flight="BA1", amount=1200) == "booked BA1"


def test_a_refusal_needs_no_facts(db: perdure.Database) -> None:
    book = make()
    db.reject("s", ask(db, book), by="ana", reason="too dear")
    del prices["BA1"]
    with db.session("s") as s, pytest.raises(perdure.EffectFailed, match="too dear"):
        s.call(book, flight="BA1", amount=1200)


def test_a_repeated_call_is_not_made_unasked_when_what_it_rests_on_cannot_be_read(db: perdure.Database) -> None:
    made, known = list[int](), list[int]()

    @tool(facts=lambda amount: known[0])
    def pay(amount: int) -> None:
        made.append(amount)
        raise RuntimeError("halfway")

    with db.session("s") as s:
        with pytest.raises(perdure.EffectRaised):
            s.call(pay, 7)
        for _ in range(2):
            with pytest.raises(perdure.ApprovalRuleFailed, match="IndexError"):
                s.call(pay, 7)
        known.append(1)
        with pytest.raises(perdure.ApprovalNeeded) as asked:
            s.call(pay, 7)
    assert asked.value.approval.because.startswith("the same call ended with RuntimeError: halfway")
    assert made == [7]


@pytest.mark.parametrize("option", ["approve", "recheck"])
def test_a_rule_that_fails_is_told_with_its_name(db: perdure.Database, option: str) -> None:
    rules: dict[str, Any] = {"approve": True, option: lambda *args: 1 / 0}

    @tool(facts=lambda room: 1, **rules)
    def book(room: str) -> str:
        booked.append(room)
        return room

    with db.session("s") as s:
        if option == "recheck":
            with pytest.raises(perdure.ApprovalNeeded) as needed:
                s.call(book, room="R1")
            db.approve("s", needed.value.approval, by="ana")
        with pytest.raises(perdure.ApprovalRuleFailed, match=f"as {option} raised ZeroDivisionError"):
            s.call(book, room="R1")
    assert booked == []


def test_a_decision_taken_in_time_counts_whenever_it_is_taken_up(db: perdure.Database, clock: FakeClock) -> None:
    book = make(approval_valid_for="2s")
    request = ask(db, book)
    db.approve("s", request.id, by="boss")
    clock.advance(5_000)
    with db.session("s") as s:
        assert s.call(book, flight="BA1", amount=1200) == "booked BA1"
        used = s.approvals(status=None)[0]
    assert (used.status, used.by, booked) == ("used", "boss", ["BA1"])


def test_a_decision_taken_in_time_still_rests_on_its_facts(db: perdure.Database, clock: FakeClock) -> None:
    book = make(approval_valid_for="2s")
    db.approve("s", ask(db, book).id, by="boss")
    clock.advance(5_000)
    prices["BA1"] = 1300
    with db.session("s") as s, pytest.raises(perdure.ApprovalNeeded, match="waits for approval"):
        s.call(book, flight="BA1", amount=1200)
    assert booked == []


def test_a_refusal_in_time_keeps_its_reason(db: perdure.Database, clock: FakeClock) -> None:
    book = make(approval_valid_for="2s")
    db.reject("s", ask(db, book).id, by="boss", reason="too dear")
    clock.advance(5_000)
    with db.session("s") as s, pytest.raises(perdure.EffectFailed, match="approval rejected: too dear"):
        s.call(book, flight="BA1", amount=1200)


def test_an_answer_in_time_counts_whenever_it_is_taken_up(db: perdure.Database, clock: FakeClock) -> None:
    @tool(if_unsure="retry", approval_valid_for="2s")
    def sure(ctx: perdure.Context) -> str:
        return f"answered {ctx.ask('sure?', {'type': 'boolean'})}"

    with db.session("s") as s, pytest.raises(perdure.ApprovalNeeded) as needed:
        s.call(sure)
    db.answer("s", needed.value.approval, True, by="boss")
    clock.advance(5_000)
    with db.session("s") as s:
        assert s.call(sure) == "answered True"


def test_a_request_that_expired_says_so(db: perdure.Database, clock: FakeClock) -> None:
    book = make(approval_valid_for="2s")
    ask(db, book)
    clock.advance(2_000)
    with db.session("s") as s, pytest.raises(perdure.EffectFailed, match="approval expired: nobody decided in time"):
        s.call(book, flight="BA1", amount=1200)
