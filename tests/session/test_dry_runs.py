"""A dry run touches nothing outside, wherever a call stands: it neither makes it nor asks what became of it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Done, Later, NotDone, Unknown, tool
from perdure.testing.clock import FakeClock
from tests.session.test_calls import Killed

if TYPE_CHECKING:
    from collections.abc import Callable

HOUR = 3_600_000


class Outside:
    """Everything that a tool may do or ask outside, counted; and what it does meanwhile."""

    def __init__(self, **declared: Any) -> None:
        self.touched: list[str] = []
        self.meanwhile: Callable[[Any], Any] = lambda ctx: {"paid": True}

        def charge(order: str, ctx: Any) -> Any:
            self.touched.append("charge")
            return self.meanwhile(ctx)

        for name in ("if_unsure", "poll", "facts"):
            if callable(asked := declared.get(name)):
                declared[name] = self._counted(name, asked)
        self.charge = tool(**declared)(charge)

    def _counted(self, name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*args: Any, **kwargs: Any) -> Any:
            self.touched.append(name)
            return fn()

        return asked

    def dies(self, _: Any) -> Any:
        raise Killed

    def raises(self, _: Any) -> Any:
        raise ValueError("what now")


def _call(db: perdure.Database, world: Outside, **options: Any) -> Any:
    with db.session("s", owner="ana", **options) as s:
        return s.call(world.charge, order="o1")


def _killed(db: perdure.Database, clock: FakeClock, world: Outside) -> None:
    world.meanwhile, usual = world.dies, world.meanwhile
    s = db.session("s", owner="ana")
    with pytest.raises(Killed):
        s.call(world.charge, order="o1")
    world.meanwhile = usual
    clock.advance(60_000)


def started(policy: Any) -> Any:
    def come_there(db: perdure.Database, clock: FakeClock) -> Outside:
        world = Outside(if_unsure=policy)
        _killed(db, clock, world)
        return world

    return come_there


def in_doubt(policy: Any) -> Any:
    def come_there(db: perdure.Database, clock: FakeClock) -> Outside:
        _killed(db, clock, Outside())
        with pytest.raises(perdure.InDoubt):
            _call(db, Outside())
        return Outside(if_unsure=policy)

    return come_there


def resolved_as_to_be_made_again(db: perdure.Database, clock: FakeClock) -> Outside:
    world = Outside()
    _killed(db, clock, world)
    with db.session("s") as s:
        with pytest.raises(perdure.InDoubt) as doubt:
            s.call(world.charge, order="o1")
        s.resolve(doubt.value.effect, retry=True)
    return world


def retrying(db: perdure.Database, clock: FakeClock) -> Outside:
    world = Outside(if_unsure="retry")

    def lost_and_then_killed(ctx: Any) -> Any:
        if ctx.attempt == 1:
            raise ConnectionError("the line went dead")
        raise Killed

    world.meanwhile, usual = lost_and_then_killed, world.meanwhile
    s = db.session("s", owner="ana")
    with pytest.raises(Killed):
        s.call(world.charge, order="o1")
    world.meanwhile = usual
    clock.advance(60_000)
    return world


def raised(policy: Any) -> Any:
    def come_there(db: perdure.Database, clock: FakeClock) -> Outside:
        world = Outside(if_unsure=policy)
        world.meanwhile, usual = world.raises, world.meanwhile
        with pytest.raises(perdure.EffectRaised):
            _call(db, world)
        world.meanwhile = usual
        return world

    return come_there


def _asked(db: perdure.Database, **declared: Any) -> tuple[Outside, perdure.Approval]:
    world = Outside(approve=True, facts=lambda: 1, **declared)
    with pytest.raises(perdure.ApprovalNeeded) as needed:
        _call(db, world)
    return world, needed.value.approval


def pending(db: perdure.Database, clock: FakeClock) -> Outside:
    return _asked(db)[0]


def approved(db: perdure.Database, clock: FakeClock) -> Outside:
    world, approval = _asked(db)
    db.approve("s", approval.id, by="ana")
    return world


def approved_and_taken_up(db: perdure.Database, clock: FakeClock) -> Outside:
    """The decision is taken, and the process has ended before the call."""
    world, approval = _asked(db)
    with db.session("s") as s:
        s.book["approvals"][approval.id]["status"] = "approved"
        s.commit()
    return world


def approved_with_other_arguments(db: perdure.Database, clock: FakeClock) -> Outside:
    world, approval = _asked(db)
    db.approve("s", approval.id, by="ana", args={"order": "o2"})
    return world


def a_question_answered(db: perdure.Database, clock: FakeClock) -> Outside:
    world = Outside()
    world.meanwhile = lambda ctx: ctx.ask("which one?")
    with pytest.raises(perdure.ApprovalNeeded) as needed:
        _call(db, world)
    db.answer("s", needed.value.approval.id, "that one", by="ana")
    return world


def waiting(db: perdure.Database, clock: FakeClock) -> Outside:
    world = Outside(poll=lambda: None)
    world.meanwhile = lambda ctx: Later({"job": 7})
    with pytest.raises(perdure.ResultPending):
        _call(db, world)
    return world


def a_kept_result_whose_time_is_over(db: perdure.Database, clock: FakeClock) -> Outside:
    world = Outside(cache="1h")
    _call(db, world)
    clock.advance(2 * HOUR)
    return world


def behind_another_session(db: perdure.Database, clock: FakeClock) -> Outside:
    """It was planned while another session had begun the same, which has given up since."""
    world = Outside(cache="7d", cache_scope="shared")
    other = db.session("other", owner="ana")
    world.meanwhile, usual = world.dies, world.meanwhile
    with pytest.raises(Killed):
        other.call(world.charge, order="o1")
    world.meanwhile = usual
    with pytest.raises(perdure.ResultPending) as behind:
        _call(db, world)
    clock.advance(60_000)
    with db.session("other") as s:
        s.resolve(behind.value.effect, abort=True)
    return world


def never_asked_for(db: perdure.Database, clock: FakeClock) -> Outside:
    with db.session("s", owner="ana") as s:
        s.vars["a"] = 1
        s.commit()
    return Outside()


POLICIES: dict[str, Any] = {
    "ask": "ask",
    "retry": "retry",
    "report": "report",
    "finds nothing out": Unknown,
    "finds it done": lambda: Done({"paid": True}),
    "finds it not done": NotDone,
}
STATES: dict[str, Callable[[perdure.Database, FakeClock], Outside]] = {
    **{f"started, {name}": started(policy) for name, policy in POLICIES.items()},
    **{f"in doubt, {name}": in_doubt(policy) for name, policy in POLICIES.items()},
    **{f"raised, {name}": raised(POLICIES[name]) for name in ("ask", "retry", "report", "finds nothing out")},
    **{
        state.__name__.replace("_", " "): state
        for state in (
            resolved_as_to_be_made_again, retrying, pending, approved, approved_and_taken_up,
            approved_with_other_arguments, a_question_answered, waiting, a_kept_result_whose_time_is_over,
            behind_another_session, never_asked_for,
        )
    },
}  # fmt: skip
UNTOUCHED = ("ask", "report", "pending")
"""Ends of names of states in which no run touches anything."""


@pytest.mark.parametrize("branch", ["main", "other"])
@pytest.mark.parametrize("state", STATES)
def test_wherever_a_call_stands_a_dry_run_touches_nothing_outside(
    db: perdure.Database, clock: FakeClock, state: str, branch: str
) -> None:
    world = STATES[state](db, clock)
    if branch != "main":
        with db.session("s") as s:
            s.fork(branch)
    world.touched.clear()
    for _ in range(2):
        with suppress(perdure.CallError):
            _call(db, world, branch=branch, effects="dry")
        assert world.touched == []


@pytest.mark.parametrize("state", STATES)
def test_what_a_dry_run_has_left_open_is_gone_on_with_as_if_it_had_not_been(
    db: perdure.Database, clock: FakeClock, state: str
) -> None:
    world = STATES[state](db, clock)
    before = db.read("s").plain()
    with suppress(perdure.CallError):
        _call(db, world, effects="dry")
    assert db.read("s").plain() == before
    world.touched.clear()
    told = _told(db, world)
    with perdure.open("memory://", clock=clock) as fresh:
        other = STATES[state](fresh, clock)
        other.touched.clear()
        assert (told, world.touched) == (_told(fresh, other), other.touched)
    assert bool(world.touched) != state.endswith(UNTOUCHED), world.touched


def _told(db: perdure.Database, world: Outside) -> str:
    try:
        result = _call(db, world)
        return type(result).__name__ if isinstance(result, Unknown) else str(result)
    except perdure.CallError as e:
        return type(e).__name__
