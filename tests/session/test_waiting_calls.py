"""Calls whose result comes later, that take too long, that say how far they got, or that ask a person."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import perdure
from perdure import Done, Later, NotDone, tool
from perdure.errors import ApprovalError, ApprovalNeeded, EffectFailed, InDoubt, InvalidInput, ResultPending
from perdure.testing.clock import FakeClock

Open = Callable[..., perdure.Database]


def test_a_result_that_comes_later_is_posted_by_anyone_and_taken_by_the_next_call(open_db: Open):
    made: list[str] = []

    @tool
    def render(scene: str, ctx: perdure.Context) -> Later:
        made.append(ctx.effect_id)
        return Later({"job": 7})

    db = open_db()
    with db.session("s") as s:
        with pytest.raises(ResultPending) as waiting:
            s.call(render, scene="sea")
        assert s.status == "waiting_result"
    with db.session("s") as s, pytest.raises(ResultPending):
        s.call(render, scene="sea")
    assert db.post_outcome("s", waiting.value.effect, {"url": "x"})
    with db.session("s") as s:
        assert s.call(render, scene="sea") == {"url": "x"}
        assert s.status == "idle"
    assert len(made) == 1


@pytest.mark.parametrize("known", ["not at all", "planned", "started"])
@pytest.mark.parametrize("how", ["rewind", "fork"])
def test_going_back_in_time_does_not_make_a_call_again_whose_result_comes_later(open_db: Open, known: str, how: str):
    made: list[str] = []

    @tool(approve=known == "planned")
    def render(scene: str, ctx: perdure.Context) -> Later:
        made.append(ctx.effect_id)
        return Later({"job": 7})

    db = open_db()
    with db.session("s") as s:
        s.vars["begun"] = True
        s.commit()
        if known == "planned":
            with pytest.raises(ApprovalNeeded) as asked:
                s.call(render, scene="sea")
            db.approve("s", asked.value.approval, by="ana")
        with pytest.raises(ResultPending) as waiting:
            s.call(render, scene="sea")
        back = {"not at all": 1, "planned": 2, "started": s.step - 1}[known]
    with db.session("s") as s:
        if how == "rewind":
            s.rewind(back)
        else:
            s.fork("b", at=back)
            s.switch("b")
        with pytest.raises(ResultPending) as still:
            s.call(render, scene="sea")
        assert (still.value.effect, s.status) == (waiting.value.effect, "waiting_result")
        assert db.post_outcome("s", waiting.value.effect, {"url": "x"})
        assert s.call(render, scene="sea") == {"url": "x"}
    with db.session("s") as s:
        # On the line that was parted from, what came is known as well.
        assert s.call(render, scene="sea") == {"url": "x"}
    assert len(made) == 1


def test_two_calls_whose_results_come_later_stay_two_on_a_branch(open_db: Open):
    made: list[str] = []

    @tool
    def render(scene: str, ctx: perdure.Context) -> Later:
        made.append(ctx.effect_id)
        return Later()

    def twice(s: perdure.Session) -> list[str]:
        return [waiting(s.call, render.options(key=key), scene="sea") for key in ("one", "two")]

    def waiting(call: Callable[..., Any], *args: Any, **named: Any) -> str:
        with pytest.raises(ResultPending) as found:
            call(*args, **named)
        return found.value.effect

    db = open_db()
    with db.session("s") as s:
        s.commit()
        first = twice(s)
        s.fork("b", at=1)
        s.switch("b")
        assert twice(s) == first == made


def test_an_outcome_that_comes_after_a_rewind_waits_until_the_call_is_asked_for_again(open_db: Open):
    made: list[str] = []

    @tool
    def render(scene: str, ctx: perdure.Context) -> Later:
        made.append(ctx.effect_id)
        return Later()

    db = open_db()
    with db.session("s") as s:
        s.vars["begun"] = True
        s.commit()
        with pytest.raises(ResultPending) as waiting:
            s.call(render, scene="sea")
        s.rewind(1)
        assert db.post_outcome("s", waiting.value.effect, "done")
        assert not db.post_outcome("s", waiting.value.effect, "done")
        assert s.call(render, scene="sea") == "done"
        with pytest.raises(perdure.NotFound):
            db.post_outcome("s", "ef_of_nobody", "done")
    assert len(made) == 1


def test_a_late_failure_is_a_failure(open_db: Open):
    @tool
    def render(scene: str) -> Later:
        return Later()

    db = open_db()
    with db.session("s") as s:
        with pytest.raises(ResultPending) as waiting:
            s.call(render, scene="sea")
        db.post_outcome("s", waiting.value.effect, failed="the farm burnt down")
        with pytest.raises(EffectFailed, match="burnt"):
            s.call(render, scene="sea")


def test_poll_looks_after_what_comes_later(open_db: Open):
    answers: list[Any] = [None, Done(42)]

    @tool(poll=lambda handle: answers.pop(0) if handle == "job-1" else NotDone())
    def compute(n: int) -> Later:
        return Later("job-1")

    with open_db().session("s") as s:
        for _ in range(2):
            with pytest.raises(ResultPending):
                s.call(compute, n=1)
            if len(answers) == 1:
                break
        assert s.call(compute, n=1) == 42


def test_a_call_that_takes_too_long_is_in_doubt(open_db: Open):
    enough = threading.Event()

    @tool(timeout=0.05)
    def charge(amount: int) -> str:
        enough.wait(60)
        return "charged"

    with open_db().session("s") as s:
        with pytest.raises(InDoubt):
            s.call(charge, amount=1)
        assert [(e["status"], e["error"]) for e in s.effects()] == [("in_doubt", "TimeoutError")]
        enough.set()


@pytest.mark.parametrize("verdict", [{"abort": True}, {"done": "nothing"}, {"done": "key sk-0123456789abcdef"}])
def test_what_returns_late_and_is_not_what_a_person_has_said_is_logged(
    open_db: Open, caplog: pytest.LogCaptureFixture, verdict: dict[str, Any]
):
    enough = threading.Event()
    inside: list[threading.Thread] = []

    @tool(timeout=0.05)
    def charge(amount: int) -> str:
        inside.append(threading.current_thread())
        enough.wait(60)
        return "key sk-0123456789abcdef"

    with open_db().session("s") as s:
        with pytest.raises(InDoubt):
            s.call(charge, amount=1)
        effect = s.effects()[0]["id"]
        s.resolve(effect, by="ana", **verdict)
        caplog.clear()
        enough.set()
        inside[0].join()
        lines = [record.getMessage() for record in caplog.records]
        if verdict == {"done": "key sk-0123456789abcdef"}:
            assert lines == [], "it is just that"
            return
        (line,) = lines
        assert f"charge (effect {effect} of session 's') has returned late" in line
        decided = "counts as not done by ana (given up)" if "abort" in verdict else 'as done by ana with "nothing"'
        assert decided in line
        assert "0123456789abcdef" not in line


def test_progress_is_durable_and_given_to_the_next_attempt(open_db: Open):
    seen: list[Any] = []

    @tool(if_unsure="retry")
    def upload(name: str, ctx: perdure.Context) -> str:
        seen.append(ctx.last_progress)
        if ctx.attempt == 1:
            ctx.progress({"part": 3})
            raise ConnectionError
        return "done"

    db = open_db()
    with db.session("s") as s:
        assert s.call(upload, name="a") == "done"
    assert seen == [None, {"part": 3}]
    assert "progress" in [c.kind for c in db.history("s")]


def test_a_tool_asks_a_person_and_is_run_again_with_the_answer(open_db: Open, clock: FakeClock):
    runs: list[int] = []

    @tool
    def book(city: str, ctx: perdure.Context) -> str:
        runs.append(1)
        seat = ctx.ask("Window or aisle?", {"enum": ["window", "aisle"]})
        return f"{city} {seat}"

    db = open_db()
    with db.session("s") as s, pytest.raises(ApprovalNeeded) as asked:
        s.call(book, city="Rome")
    request = asked.value.approval
    assert (request.question, request.schema) == ("Window or aisle?", {"enum": ["window", "aisle"]})
    with pytest.raises(ApprovalError, match="answer"):
        db.approve("s", request.id, by="ana")
    with pytest.raises(ApprovalError, match="one of 'window', 'aisle'"):
        db.answer("s", request.id, "isle", by="ana")
    clock.advance(2 * 24 * 3600 * 1000)
    db.answer("s", request.id, "aisle", by="ana")
    with pytest.raises(ApprovalError):
        db.answer("s", request.id, "window", by="ana")
    with db.session("s") as s:
        assert s.call(book, city="Rome") == "Rome aisle"
        assert s.call(book, city="Rome") == "Rome aisle"
    assert len(runs) == 2


def test_an_approval_may_change_the_arguments_which_are_checked_again(open_db: Open):
    paid: list[int] = []

    @tool(approve=True)
    def refund(order: str, amount: int) -> int:
        paid.append(amount)
        return amount

    db = open_db()
    with db.session("s") as s, pytest.raises(ApprovalNeeded) as asked:
        s.call(refund, order="o1", amount=100)
    with pytest.raises(InvalidInput, match="has no amount"):
        db.approve("s", asked.value.approval.id, by="ana", args={"order": "o1", "sum": 60})
    db.approve("s", asked.value.approval.id, by="ana", args={"order": "o1", "amount": 60})
    with db.session("s") as s:
        assert s.call(refund, order="o1", amount=100) == 60
        assert s.call(refund, order="o1", amount=100) == 60
        assert [(a.status, a.args) for a in s.approvals(None)][-1] == ("used", {"order": "o1", "amount": 60})
    assert paid == [60]
