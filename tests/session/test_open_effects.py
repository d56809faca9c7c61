"""Effects that were open when two lines parted: they happen once, whichever line goes on with them."""

from __future__ import annotations

from typing import Any

import pytest

import perdure
from perdure.testing.clock import FakeClock
from tests.session.test_calls import World, charge_tool, crash


@pytest.fixture
def world() -> World:
    """An outside world in which nothing has happened yet."""
    return World()


def _ask(s: perdure.Session, charge: perdure.Tool) -> perdure.Approval:
    with pytest.raises(perdure.ApprovalNeeded) as needed:
        s.call(charge, order="o1")
    return needed.value.approval


def _begin(db: perdure.Database) -> None:
    with db.session("s") as s:
        s.vars["a"] = 1
        s.commit()


def test_a_call_tried_again_and_done_is_not_repeated_after_a_rewind(
    db: perdure.Database, clock: FakeClock, world: World
) -> None:
    charge = charge_tool(world)
    _begin(db)
    crash(db, clock, charge, world, "before")
    world.entered = 0
    with db.session("s") as s:
        with pytest.raises(perdure.InDoubt) as doubt:
            s.call(charge, order="o1")
        s.resolve(doubt.value.effect, retry=True)
        planned = s.step
        assert s.call(charge, order="o1") == {"order": "o1"}
        s.rewind(planned)
        assert s.call(charge, order="o1") == {"order": "o1"}
    assert world.entered == 1


def test_a_call_approved_and_done_is_not_repeated_after_a_rewind_to_its_request(
    db: perdure.Database, world: World
) -> None:
    charge = charge_tool(world, approve=True)
    with db.session("s") as s:
        approval = _ask(s, charge)
        asked = s.step
        db.approve("s", approval.id, by="ana")
        s.call(charge, order="o1")
        s.rewind(asked)
        assert s.call(charge, order="o1") == {"order": "o1"}
    assert world.entered == 1


def test_an_outcome_found_on_another_line_settles_a_doubt(db: perdure.Database, clock: FakeClock, world: World) -> None:
    charge = charge_tool(world)
    _begin(db)
    crash(db, clock, charge, world, "after")
    with db.session("s") as s:
        started = s.step
        with pytest.raises(perdure.InDoubt) as doubt:
            s.call(charge, order="o1")
        s.resolve(doubt.value.effect, done={"order": "o1", "seen": True})
        s.rewind(started)
        assert s.call(charge, order="o1") == {"order": "o1", "seen": True}
    assert world.entered == 1


def test_each_branch_asks_for_an_approval_of_its_own_and_one_call_is_made(db: perdure.Database, world: World) -> None:
    charge = charge_tool(world, approve=True)
    with db.session("s") as s:
        first = _ask(s, charge)
        s.fork("other")
    with db.session("s", branch="other") as s:
        second = _ask(s, charge)
        assert second.id != first.id
        assert second.effect != first.effect
        assert [a.id for a in s.approvals()] == [second.id]
        db.approve("s", second.id, by="ana")
        assert s.call(charge, order="o1") == {"order": "o1"}
    db.approve("s", first.id, by="ana")
    with db.session("s") as s, pytest.raises(perdure.DoneElsewhere):
        s.call(charge, order="o1")
    assert world.entered == 1


def test_a_branch_finds_done_what_it_saw_being_asked(db: perdure.Database, world: World) -> None:
    charge = charge_tool(world, approve=True)
    with db.session("s") as s:
        approval = _ask(s, charge)
        s.fork("other")
        db.approve("s", approval.id, by="ana")
        s.call(charge, order="o1")
    with db.session("s", branch="other") as s:
        assert s.call(charge, order="o1") == {"order": "o1"}
    assert world.entered == 1


def test_a_branch_that_merely_saw_a_doubt_does_not_keep_it_from_being_settled(
    db: perdure.Database, clock: FakeClock, world: World
) -> None:
    charge = charge_tool(world)
    _begin(db)
    crash(db, clock, charge, world, "before")
    with db.session("s") as s:
        with pytest.raises(perdure.InDoubt) as doubt:
            s.call(charge, order="o1")
        s.fork("other")
        s.resolve(doubt.value.effect, retry=True)
        assert s.call(charge, order="o1") == {"order": "o1"}
    with db.session("s", branch="other") as s:
        assert s.call(charge, order="o1") == {"order": "o1"}
    assert len(world.did) == 1


def test_a_run_resumed_on_a_branch_goes_on_with_its_open_call_under_the_id_it_has(
    db: perdure.Database, clock: FakeClock, world: World
) -> None:
    charge = charge_tool(world)

    def work(s: Any) -> dict[str, Any]:
        s.vars["begun"] = True
        s.commit()
        return s.call(charge, order="o1")

    world.crash = "error"
    with db.session("s") as s:
        with pytest.raises(perdure.InDoubt) as doubt:
            s.run("job", work)
        s.resolve(doubt.value.effect, retry=True)
        s.fork("other")
    effects: set[str] = set()
    for _ in range(2):
        with db.session("s", branch="other") as s, pytest.raises(perdure.InDoubt) as again:
            s.run("job", work)
        effects.add(again.value.effect)
    (effect,) = effects
    assert effect == doubt.value.effect
    world.crash = None
    with db.session("s", branch="other") as s:
        s.resolve(effect, done={"order": "o1"})
        assert s.run("job", work) == {"order": "o1"}


def test_who_is_asked_on_a_branch_is_told_that_somebody_had_the_same_call_made_otherwise(
    db: perdure.Database, world: World
) -> None:
    charge = charge_tool(world, approve=True)
    with db.session("s") as s:
        s.vars["a"] = 1
        s.commit()
        s.fork("other")
        approval = _ask(s, charge)
        db.approve("s", approval.id, by="ana", args={"order": "o2"})
        assert s.call(charge, order="o1") == {"order": "o2"}
    with db.session("s", branch="other") as s:
        told = 'the same was asked for on another branch, and made there as charge(order="o2")'
        assert _ask(s, charge).because == f"{told} (effect {approval.effect})"


@pytest.mark.parametrize("way", ["rewind", "fork"])
@pytest.mark.parametrize("lost", [True, False])
def test_a_keyed_call_that_a_person_has_made_again_keeps_its_key_on_every_line(
    db: perdure.Database, clock: FakeClock, way: str, lost: bool
) -> None:
    keys: list[str] = []
    trouble: list[Exception] = [TimeoutError() if lost else KeyError("after the charge")]

    @perdure.tool(if_unsure="retry", key_valid_for="1s")
    def pay(order: str, ctx: perdure.Context) -> str:
        keys.append(ctx.effect_id)
        for error in trouble:
            clock.advance(5_000)
            raise error
        return "paid"

    with db.session("s") as s:
        with pytest.raises(perdure.InDoubt if lost else perdure.EffectRaised) as unsure:
            s.call(pay, order="o1")
        s.resolve(unsure.value.effect, retry=True, by="ana")
        before = s.step
        if way == "fork":
            s.fork("other")
        else:
            s.vars["on"] = 1
            s.commit()
            s.rewind(before)
    trouble.clear()
    for branch in ("other", "main") if way == "fork" else ("main",):
        with db.session("s", branch=branch) as s:
            assert s.call(pay, order="o1") == "paid"
    assert set(keys) == {unsure.value.effect}, "another key is another charge"
