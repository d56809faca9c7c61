"""Outcomes that are reported from outside: whatever was acknowledged is used, and the call is not made again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import perdure
from perdure import Later, tool
from perdure.fleet.why.reading import why
from perdure.system import faults
from perdure.testing.clock import FakeClock
from tests.session.test_calls import Killed, World, charge_tool, crash

Begin = Callable[[perdure.Database, FakeClock, World], perdure.Tool]


@pytest.fixture
def world() -> World:
    """An outside world in which nothing has happened yet."""
    return World()


def _effect(db: perdure.Database) -> dict[str, Any]:
    with db.session("s") as s:
        return s.effects()[0]


def _started(db: perdure.Database, clock: FakeClock, world: World, **declared: Any) -> perdure.Tool:
    charge = charge_tool(world, **declared)
    crash(db, clock, charge, world, "after")
    return charge


def _in_doubt(db: perdure.Database, clock: FakeClock, world: World) -> perdure.Tool:
    charge = _started(db, clock, world)
    with db.session("s") as s, pytest.raises(perdure.InDoubt):
        s.call(charge, order="o1")
    return charge


def _retried(db: perdure.Database, clock: FakeClock, world: World) -> perdure.Tool:
    charge = _in_doubt(db, clock, world)
    with db.session("s") as s:
        s.resolve(s.effects()[0]["id"], retry=True, by="ana")
    return charge


def _retried_after_approval(db: perdure.Database, clock: FakeClock, world: World) -> perdure.Tool:
    charge = charge_tool(world, approve=True)
    with db.session("s") as s, pytest.raises(perdure.ApprovalNeeded) as needed:
        s.call(charge, order="o1")
    db.approve("s", needed.value.approval, by="ana")
    crash(db, clock, charge, world, "after")
    with db.session("s") as s:
        s.resolve(s.effects()[0]["id"], retry=True, by="ana")
    return charge


def _planned(db: perdure.Database, clock: FakeClock, world: World) -> perdure.Tool:
    """Written down and claimed, and never begun."""
    charge = charge_tool(world, cache="1h", cache_scope="shared")

    def die(point: str) -> None:
        if point == "call.after_claimed":
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults, "point", die)
        s = db.session("s", owner="ana")
        with pytest.raises(Killed):
            s.call(charge, order="o1")
    clock.advance(60_000)
    return charge


def _later(db: perdure.Database, clock: FakeClock, world: World) -> perdure.Tool:
    @tool
    def charge(order: str, ctx: perdure.Context) -> Later:
        world.do(order, ctx.effect_id)
        return Later()

    with db.session("s") as s, pytest.raises(perdure.ResultPending):
        s.call(charge, order="o1")
    return charge


def _started_and_retried_by_itself(db: perdure.Database, clock: FakeClock, world: World) -> perdure.Tool:
    return _started(db, clock, world, if_unsure="retry")


TAKEN: dict[str, Begin] = {
    "planned": _planned,
    "planned after a retry": _retried,
    "planned after a retry, agreed to": _retried_after_approval,
    "started": _started,
    "started, if_unsure=retry": _started_and_retried_by_itself,
    "in doubt": _in_doubt,
    "waiting": _later,
}


@pytest.mark.parametrize("state", TAKEN)
def test_an_outcome_that_came_is_used_and_the_call_is_not_made(
    db: perdure.Database, clock: FakeClock, world: World, state: str
) -> None:
    charge = TAKEN[state](db, clock, world)
    made, effect = world.entered, _effect(db)["id"]
    assert db.post_outcome("s", effect, {"seen": state})
    said = str(why(db, "s"))
    assert "no outcome" not in said
    assert "charge" in said
    assert "has arrived" in said
    with db.session("s") as s:
        with pytest.raises(perdure.CallError, match="was reported meanwhile"):
            s.resolve(effect, abort=True)
        assert s.call(charge, order="o1") == {"seen": state}
        assert s.status == "idle"
    assert world.entered == made
    assert db.look("s").pending == 0


@pytest.mark.parametrize("state", TAKEN)
def test_a_failure_that_was_reported_is_used_and_the_call_is_not_made(
    db: perdure.Database, clock: FakeClock, world: World, state: str
) -> None:
    charge = TAKEN[state](db, clock, world)
    made = world.entered
    assert db.post_outcome("s", _effect(db)["id"], failed="the bank said no")
    with db.session("s") as s, pytest.raises(perdure.EffectFailed, match="the bank said no"):
        s.call(charge, order="o1")
    assert world.entered == made


def _ask(db: perdure.Database, charge: perdure.Tool) -> perdure.Approval:
    with db.session("s") as s, pytest.raises(perdure.ApprovalNeeded) as needed:
        s.call(charge, order="o1")
    return needed.value.approval


def test_of_a_call_that_waits_for_approval_no_outcome_is_taken(
    db: perdure.Database, clock: FakeClock, world: World
) -> None:
    charge = charge_tool(world, approve=True, approval_valid_for="1h")
    request = _ask(db, charge)

    def refused(match: str) -> None:
        with pytest.raises(perdure.CallError, match=match):
            db.post_outcome("s", request.effect, "x")
        with db.session("s") as s, pytest.raises(perdure.CallError, match=match):
            s.resolve(request.effect, done="x")
        assert db.look("s").pending <= 1

    refused(f"not made yet: it waits for approval {request.id}")
    clock.advance(3_600_000)
    refused(f"not made yet: approval {request.id} has expired")
    with db.session("s") as s, pytest.raises(perdure.EffectFailed):
        s.call(charge, order="o1")
    assert db.post_outcome("s", request.effect, "x") is False


def test_of_a_call_that_was_agreed_to_and_not_begun_no_outcome_is_taken(db: perdure.Database, world: World) -> None:
    charge = charge_tool(world, approve=True)
    request = _ask(db, charge)
    db.approve("s", request, by="ana")
    with pytest.raises(perdure.CallError, match=f"not made yet: approval {request.id} was decided on"):
        db.post_outcome("s", request.effect, "x")
    with db.session("s") as s:
        assert s.call(charge, order="o1") == {"order": "o1"}


def test_of_a_call_that_asks_a_person_no_outcome_is_taken(db: perdure.Database) -> None:
    @tool(if_unsure="retry")
    def charge(order: str, ctx: perdure.Context) -> str:
        return f"paid {ctx.ask('how much?')}"

    request = _ask(db, charge)
    with pytest.raises(perdure.CallError, match=f"its tool has asked a person .*{request.id}"):
        db.post_outcome("s", request.effect, "x")
    db.answer("s", request, 5, by="ana")
    with db.session("s") as s:
        assert s.call(charge, order="o1") == "paid 5"


def test_an_outcome_that_comes_while_the_tool_asks_makes_its_question_void(db: perdure.Database) -> None:
    asked: list[str] = []

    @tool(if_unsure="retry")
    def charge(order: str, ctx: perdure.Context) -> str:
        asked.append(ctx.effect_id)
        assert db.post_outcome("s", ctx.effect_id, "it was paid before")
        return f"paid {ctx.ask('how much?')}"

    _ask(db, charge)
    with db.session("s") as s:
        assert s.call(charge, order="o1") == "it was paid before"
        assert (s.status, s.approvals()) == ("idle", [])
    assert len(asked) == 1


@pytest.mark.parametrize("way", ["raised", "done", "failed"])
def test_of_a_call_that_is_over_no_outcome_is_taken(db: perdure.Database, way: str) -> None:
    @tool
    def charge(order: str) -> str:
        if way == "raised":
            raise KeyError(order)
        if way == "failed":
            raise perdure.NotDone("no money")
        return "paid"

    with db.session("s") as s:
        if way == "done":
            s.call(charge, order="o1")
        else:
            with pytest.raises(perdure.EffectRaised if way == "raised" else perdure.EffectFailed):
                s.call(charge, order="o1")
    effect = _effect(db)["id"]
    if way == "raised":
        with pytest.raises(perdure.CallError, match="nobody waits for its outcome"):
            db.post_outcome("s", effect, "x")
    else:
        assert db.post_outcome("s", effect, "x") is False
    assert db.look("s").pending == 0


def test_an_outcome_that_no_line_would_take_is_refused(db: perdure.Database, clock: FakeClock, world: World) -> None:
    _planned(db, clock, world)
    with db.session("s", owner="ana") as s:
        effect, planned = s.effects()[0]["id"], s.step
        s.vars["on"] = 1
        s.commit()
        s.rewind(planned)
    with pytest.raises(perdure.CallError, match="goes on under its own id"):
        db.post_outcome("s", effect, {"order": "late"})


@pytest.mark.parametrize("way", ["rewind", "fork"])
@pytest.mark.parametrize("reported", [True, False])
def test_a_call_that_is_to_be_made_again_is_the_same_one_on_every_line(
    db: perdure.Database, clock: FakeClock, world: World, way: str, reported: bool
) -> None:
    charge = _retried(db, clock, world)
    with db.session("s") as s:
        effect, planned = s.effects()[0]["id"], s.step
        s.vars["on"] = 1
        s.commit()
        if way == "rewind":
            s.rewind(planned)
        else:
            s.fork("other", at=planned)
    if reported:
        assert db.post_outcome("s", effect, {"order": "late"})
    made = world.entered
    for branch in ("main",) if way == "rewind" else ("other", "main"):
        with db.session("s", branch=branch) as s:
            assert s.call(charge, order="o1") == {"order": "late" if reported else "o1"}
            assert s.effects()[0]["id"] == effect
    assert world.entered == made + (not reported)


@pytest.mark.parametrize("begin", [_started, _in_doubt])
@pytest.mark.parametrize("way", ["rewind", "fork"])
@pytest.mark.parametrize("happened", [True, False])
def test_an_outcome_is_used_by_a_line_that_asks_for_a_call_from_before_it_parted(
    db: perdure.Database, clock: FakeClock, world: World, begin: Begin, way: str, happened: bool
) -> None:
    with db.session("s") as s:
        s.vars["on"] = 1
        s.commit()
        s.tag("base")
    charge = begin(db, clock, world)
    effect = _effect(db)["id"]
    with db.session("s") as s:
        if way == "rewind":
            s.rewind("base")
        else:
            s.fork("other", at="base")
    said: Any = {"order": "late"} if happened else None
    assert db.post_outcome("s", effect, said, failed=None if happened else "no such card")
    made = world.entered
    for branch in ("main",) if way == "rewind" else ("other", "main"):
        with db.session("s", branch=branch) as s:
            if happened:
                assert s.call(charge, order="o1") == said
            else:
                with pytest.raises(perdure.EffectFailed, match="no such card"):
                    s.call(charge, order="o1")
    assert world.entered == made, "what became of it was known"
    assert db.look("s").pending == 0


@pytest.mark.parametrize("in_run", [True, False])
def test_what_has_not_happened_has_not_happened_on_any_branch(
    db: perdure.Database, clock: FakeClock, world: World, in_run: bool
) -> None:
    @tool
    def charge(order: str, ctx: perdure.Context) -> Later:
        world.do(order, ctx.effect_id)
        return Later()

    def work(s: Any) -> None:
        s.call(charge, order="o1")

    def go_on(s: Any) -> None:
        if in_run:
            s.run("job", work)
        else:
            work(s)

    with db.session("s") as s:
        with pytest.raises(perdure.ResultPending) as pending:
            go_on(s)
        s.fork("other")
    assert db.post_outcome("s", pending.value.effect, failed="no luck")
    with db.session("s") as s, pytest.raises(perdure.EffectFailed, match="no luck"):
        go_on(s)
    told = why(db, "s", branch="other")
    assert "has its outcome from another branch" in told.line
    assert db.post_outcome("s", pending.value.effect, failed="no luck") is False
    with pytest.raises(perdure.CallError, match="was reported already: it was taken up, and stands"):
        db.post_outcome("s", pending.value.effect, 1)
    with db.session("s", branch="other") as s, pytest.raises(perdure.EffectFailed, match="no luck"):
        go_on(s)
    assert world.entered == 1


def test_an_outcome_for_a_session_that_never_was_is_refused(db: perdure.Database) -> None:
    with pytest.raises(perdure.NotFound, match="there is no session 'nobody'"):
        db.post_outcome("nobody", "ef_1", "x")
    assert db.sessions() == []


def test_a_second_outcome_that_differs_is_told_of_the_first(
    db: perdure.Database, clock: FakeClock, world: World
) -> None:
    _in_doubt(db, clock, world)
    effect = _effect(db)["id"]
    assert db.post_outcome("s", effect, {"order": "o1"})
    assert db.post_outcome("s", effect, {"order": "o1"}) is False
    with pytest.raises(perdure.CallError, match=r'was reported already: done, {"order": "o1"}') as known:
        db.post_outcome("s", effect, {"order": "o2"})
    assert "key" not in str(known.value)
    with pytest.raises(perdure.CallError, match="was reported already: done"):
        db.post_outcome("s", effect, failed="no")


def test_a_failure_that_was_reported_is_told_to_who_reports_otherwise(
    db: perdure.Database, clock: FakeClock, world: World
) -> None:
    _in_doubt(db, clock, world)
    effect = _effect(db)["id"]
    assert db.post_outcome("s", effect, failed="no money")
    with pytest.raises(perdure.CallError, match="was reported already: it did not happen, no money"):
        db.post_outcome("s", effect, "paid")
