"""Calls: written down before they are made, never made twice, and never guessed about."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import perdure
from perdure import Done, NotDone, Unknown, tool
from perdure.session.tools.exceptions import LetThrough
from perdure.testing.clock import FakeClock


class Killed(LetThrough):
    """Ends a handle's life in the middle of a call, as kill -9 would: nothing after it is written."""


class World:
    """The outside world: what was really done, by effect id."""

    def __init__(self) -> None:
        self.did: list[tuple[str, str]] = []
        self.entered = 0
        self.crash: str | None = None

    def do(self, order: str, effect: str) -> dict[str, Any]:
        self.entered += 1
        if self.crash == "before":
            raise Killed
        if order not in [o for o, e in self.did if e == effect]:
            self.did.append((order, effect))
        if self.crash == "after":
            raise Killed
        if self.crash == "error":
            raise ConnectionError("the line went dead")
        return {"order": order}


@pytest.fixture
def world() -> World:
    """An outside world in which nothing has happened yet."""
    return World()


def charge_tool(world: World, **declared: Any) -> perdure.Tool:
    @tool(**declared)
    def charge(order: str, ctx: Any) -> dict[str, Any]:
        return world.do(order, ctx.effect_id)

    return charge


def crash(db: perdure.Database, clock: FakeClock, charge: Any, world: World, when: str) -> None:
    """Call a tool, and die in the middle of it."""
    s = db.session("s")
    world.crash = when
    with pytest.raises(Killed):
        s.call(charge, order="o1")
    world.crash = None
    clock.advance(60_000)


def test_a_call_returns_what_the_tool_returned_and_is_recorded(db: perdure.Database, world: World) -> None:
    charge = charge_tool(world)
    with db.session("s") as s:
        s.vars["before"] = 1
        assert s.call(charge, order="o1") == {"order": "o1"}
        assert [c.kind for c in db.history("s")] == ["done", "started"]
        assert db.read("s", at=1).vars["before"] == 1


def test_the_same_call_again_returns_the_recorded_outcome(db: perdure.Database, world: World) -> None:
    charge = charge_tool(world)
    for _ in range(3):
        with db.session("s") as s:
            assert s.call(charge, order="o1") == {"order": "o1"}
    assert world.entered == 1
    with db.session("s") as s:
        s.call(charge.options(key="second"), order="o1")
        s.call(charge, order="o2")
    assert world.entered == 3


@pytest.mark.parametrize("when", ["before", "after"])
def test_ask_parks_for_a_human_and_never_enters_twice(
    db: perdure.Database, clock: FakeClock, world: World, when: str
) -> None:
    charge = charge_tool(world)
    crash(db, clock, charge, world, when)
    with db.session("s") as s, pytest.raises(perdure.InDoubt, match="nobody knows"):
        s.call(charge, order="o1")
    with db.session("s") as s, pytest.raises(perdure.InDoubt, match="nobody knows") as doubt:
        s.call(charge, order="o1")
    assert world.entered == 1
    assert db.look("s").status == "in_doubt"
    with db.session("s") as s:
        s.resolve(doubt.value.effect, done={"order": "found in the bank's list"}, by="ops")
        assert s.call(charge, order="o1") == {"order": "found in the bank's list"}
    assert world.entered == 1


def test_a_doubt_resolved_by_retry_runs_with_the_same_id(db: perdure.Database, clock: FakeClock, world: World) -> None:
    charge = charge_tool(world)
    crash(db, clock, charge, world, "after")
    with db.session("s") as s:
        with pytest.raises(perdure.InDoubt) as doubt:
            s.call(charge, order="o1")
        s.resolve(doubt.value.effect, retry=True)
        assert s.call(charge, order="o1") == {"order": "o1"}
    assert world.did == [("o1", doubt.value.effect)]


def test_a_doubt_given_up_is_a_failure(db: perdure.Database, clock: FakeClock, world: World) -> None:
    charge = charge_tool(world)
    crash(db, clock, charge, world, "before")
    with db.session("s") as s:
        with pytest.raises(perdure.InDoubt) as doubt:
            s.call(charge, order="o1")
        s.resolve(doubt.value.effect, abort=True)
        with pytest.raises(perdure.EffectFailed, match="given up"):
            s.call(charge, order="o1")
        with pytest.raises(perdure.CallError, match="not in doubt"):
            s.resolve(doubt.value.effect, retry=True)


@pytest.mark.parametrize("when", ["before", "after"])
def test_retry_runs_again_under_the_same_id(db: perdure.Database, clock: FakeClock, world: World, when: str) -> None:
    charge = charge_tool(world, if_unsure="retry")
    crash(db, clock, charge, world, when)
    with db.session("s") as s:
        assert s.call(charge, order="o1") == {"order": "o1"}
    assert len(world.did) == 1
    assert world.entered == 2


def test_retry_asks_once_the_providers_key_has_expired(db: perdure.Database, clock: FakeClock, world: World) -> None:
    charge = charge_tool(world, if_unsure="retry", key_valid_for="24h")
    crash(db, clock, charge, world, "after")
    clock.advance(24 * 3600 * 1000)
    with db.session("s") as s, pytest.raises(perdure.InDoubt):
        s.call(charge, order="o1")
    assert world.entered == 1


@pytest.mark.parametrize(("when", "entered"), [("before", 2), ("after", 1)])
def test_a_reconciler_asks_the_outside_world(
    db: perdure.Database, clock: FakeClock, world: World, when: str, entered: int
) -> None:
    def find(order: str) -> Any:
        return Done({"order": order, "found": True}) if any(o == order for o, _ in world.did) else NotDone

    charge = charge_tool(world, if_unsure=find)
    crash(db, clock, charge, world, when)
    with db.session("s") as s:
        assert s.call(charge, order="o1")["order"] == "o1"
    assert (world.entered, len(world.did)) == (entered, 1)


def test_a_reconciler_that_does_not_know_parks(db: perdure.Database, clock: FakeClock, world: World) -> None:
    charge = charge_tool(world, if_unsure=lambda order: Unknown())
    crash(db, clock, charge, world, "after")
    with db.session("s") as s, pytest.raises(perdure.InDoubt):
        s.call(charge, order="o1")


def test_a_reconciler_that_fails_is_told_and_asked_again_once_it_is_mended(
    db: perdure.Database, clock: FakeClock, world: World
) -> None:
    broken = [True]

    def find(order: str) -> Any:
        if broken:
            raise RuntimeError("no route to the bank")
        return Done({"order": order})

    charge = charge_tool(world, if_unsure=find)
    crash(db, clock, charge, world, "after")
    told = "what its tool has as if_unsure could not find out, it failed with RuntimeError: no route to the bank"
    steps = list[int]()
    for _ in range(2):
        with db.session("s") as s:
            with pytest.raises(perdure.InDoubt, match=told):
                s.call(charge, order="o1")
            steps.append(s.step)
    assert steps[0] == steps[1], "the same error is written once"
    found = perdure.why(db, "s")
    assert f"W{told[1:]}." in found.line
    assert found.next.endswith("Or mend what failed and go on with it: it is looked up again.")
    assert [action.name for action in found.actions] == ["resolve", "program"]
    broken.clear()
    with db.session("s") as s:
        assert s.call(charge, order="o1") == {"order": "o1"}
    assert "if_unsure" not in str(perdure.why(db, "s"))


def test_a_reconciler_that_cannot_be_asked_is_refused_where_it_is_declared(world: World) -> None:
    for find in (Unknown, lambda number: Unknown(), lambda order, more: Unknown()):
        with pytest.raises(perdure.InvalidInput, match="the function in if_unsure is called with the tool's arguments"):
            charge_tool(world, if_unsure=find)
    for find in (lambda order: Unknown(), lambda **args: Unknown(), lambda order, more=1: Unknown()):
        charge_tool(world, if_unsure=find)


@pytest.mark.parametrize(
    ("option", "function", "given"),
    [
        ("facts", lambda: 1, "the tool's arguments by name (to, amount)"),
        ("facts", lambda args: 1, "the tool's arguments by name (to, amount)"),
        ("approve", lambda: True, "the tool's arguments as one dict"),
        ("approve", lambda to, amount: True, "the tool's arguments as one dict"),
        ("recheck", lambda now: True, "the facts then and the facts now"),
    ],
    ids=["facts of nothing", "facts of a dict", "approve of nothing", "approve by name", "recheck of one"],
)
def test_a_rule_that_cannot_be_called_is_refused_where_the_tool_is_declared(option: str, function: Any, given: str):
    def pay(to: str, amount: int) -> str:
        return to

    with pytest.raises(perdure.InvalidInput) as refused:
        perdure.tool(pay, **{option: function})
    assert str(refused.value).startswith(f"pay: the function in {option} is called with {given}, and with ctx where")


def test_rules_that_take_a_context_or_anything_are_not_refused():
    def pay(to: str, amount: int, ctx: perdure.Context) -> str:
        return to

    def pass_on(**arguments: Any) -> str:
        return ""

    perdure.tool(pay, approve=lambda args, ctx: True, facts=lambda to, amount, ctx: 1, recheck=lambda a, b, ctx: True)
    perdure.tool(pay, approve=lambda *args: True, facts=lambda **args: 1, recheck=max)
    perdure.tool(pass_on, approve=bool, facts=lambda to: 1)


def test_report_tells_that_the_outcome_is_unknown(db: perdure.Database, clock: FakeClock, world: World) -> None:
    charge = charge_tool(world, if_unsure="report")
    crash(db, clock, charge, world, "after")
    for _ in range(2):
        with db.session("s") as s:
            assert isinstance(s.call(charge, order="o1"), Unknown)
    assert world.entered == 1


def test_a_late_outcome_settles_the_doubt(db: perdure.Database, clock: FakeClock, world: World) -> None:
    charge = charge_tool(world)
    crash(db, clock, charge, world, "after")
    db.post_outcome("s", world.did[0][1], {"order": "o1", "late": True})
    with db.session("s") as s:
        assert s.call(charge, order="o1") == {"order": "o1", "late": True}
    assert world.entered == 1


def test_a_lost_answer_leaves_the_outcome_unknown(db: perdure.Database, world: World) -> None:
    world.crash = "error"
    charge = charge_tool(world)
    with db.session("s") as s, pytest.raises(perdure.InDoubt):
        s.call(charge, order="o1")
    assert world.entered == 1
    retrying = charge_tool(world, if_unsure="retry", key_valid_for="10s")
    with db.session("t") as s, pytest.raises(perdure.InDoubt):
        s.call(retrying, order="o1")
    # Tried at once and after 1, 3 and 7 s, under one id: then the key is no longer good.
    assert world.entered == 1 + 4
    assert len({e for _, e in world.did}) == 2


def test_a_tool_that_succeeds_at_its_last_attempt_has_succeeded(db: perdure.Database) -> None:
    tries: list[int] = []

    @tool(if_unsure="retry")
    def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError
        return "done"

    with db.session("s") as s:
        assert s.call(flaky) == "done"
        assert s.status == "idle"


def test_not_done_is_a_definite_failure(db: perdure.Database) -> None:
    @tool
    def refuse() -> None:
        raise NotDone("no stock")

    with db.session("s") as s:
        for _ in range(2):
            with pytest.raises(perdure.EffectFailed, match="no stock"):
                s.call(refuse)


def test_a_result_that_is_not_json_is_still_recorded_as_done(db: perdure.Database) -> None:
    entered = []

    @tool
    def odd() -> Any:
        entered.append(1)
        return {"when": object()}

    for _ in range(2):
        with db.session("s") as s, pytest.raises(perdure.NotJson):
            s.call(odd)
    assert entered == [1]


def test_reads_run_again_and_cached_reads_do_not(db: perdure.Database, clock: FakeClock) -> None:
    asked: list[str] = []

    @tool(read=True)
    def look(city: str) -> str:
        asked.append(city)
        return city.upper()

    @tool(read=True, cache="7d")
    def search(city: str) -> list[str]:
        asked.append(city)
        return [city]

    for _ in range(2):
        with db.session("s") as s:
            assert s.call(look, "oslo") == "OSLO"
            assert s.call(search, city="paris") == ["paris"]
            assert s.call(search, city="paris") == ["paris"]
    assert asked == ["oslo", "paris", "oslo"]
    clock.advance(6 * 24 * 3600 * 1000)
    with db.session("s") as s:
        s.call(search, city="paris")
        s.commit("keep the session alive")
    clock.advance(2 * 24 * 3600 * 1000)
    with db.session("s") as s:
        s.call(search, city="paris")
    assert asked.count("paris") == 2


def test_a_branch_from_before_an_effect_reuses_its_outcome(db: perdure.Database, world: World) -> None:
    charge = charge_tool(world)
    with db.session("s") as s:
        s.vars["a"] = 1
        s.commit()
        s.fork("again", at=1)
        assert s.call(charge, order="o1") == {"order": "o1"}
    with db.session("s", branch="again") as s:
        assert s.call(charge, order="o1") == {"order": "o1"}
        ids = {e["id"] for e in s.effects()}
    assert world.entered == 1
    assert ids.isdisjoint({world.did[0][1]})
    with db.session("s", branch="again", effects="live") as s:
        s.call(charge.options(key="really"), order="o1")
    assert world.entered == 2


def test_an_effect_done_on_a_sibling_is_reported_before_it_happens_again(db: perdure.Database, world: World) -> None:
    charge = charge_tool(world)
    with db.session("s") as s:
        s.vars["a"] = 1
        s.commit()
        s.fork("one")
        s.fork("two")
        s.switch("one")
        s.call(charge, order="o1")
        s.switch("two")
    with db.session("s", branch="two") as s, pytest.raises(perdure.DoneElsewhere):
        s.call(charge, order="o1")
    assert world.entered == 1
    with db.session("s", branch="two", effects="dry") as s, pytest.raises(perdure.CallError, match="dry run"):
        s.call(charge, order="o2")


def test_after_a_rewind_an_effect_is_not_repeated(db: perdure.Database, world: World) -> None:
    charge = charge_tool(world)
    with db.session("s") as s:
        s.vars["a"] = 1
        s.commit()
        s.call(charge, order="o1")
        s.rewind(1)
        assert s.call(charge, order="o1") == {"order": "o1"}
    assert world.entered == 1


def test_arguments_must_fit_the_tool(db: perdure.Database, world: World) -> None:
    with db.session("s") as s:
        with pytest.raises(perdure.InvalidInput, match="order"):
            s.call(charge_tool(world))
        with pytest.raises(perdure.NotJson, match=r"arguments\.order"):
            s.call(charge_tool(world), order=object())
    assert world.entered == 0


@pytest.mark.parametrize("declared", [{"read": True}, {"timeout": 30}, {}])
def test_a_tool_that_calls_itself_without_end_is_stopped(db: perdure.Database, declared: dict[str, Any]) -> None:
    deep: list[int] = []
    with db.session("s") as s:

        @perdure.tool(**declared)
        def again(n: int) -> int:
            deep.append(n)
            return s.call(again, n + 1)

        with pytest.raises(perdure.PerdureError):
            s.call(again, 0)
        assert deep == list(range(32))
        assert s.vars.plain() == {}

        @perdure.tool(read=True)
        def once(n: int) -> int:
            return n

        assert s.call(once, 1) == 1, "what is not inside of it may be called"


@pytest.mark.parametrize("kind", ["awaited", "plain"])
def test_an_awaited_tool_that_calls_itself_without_end_is_stopped(kind: str) -> None:
    deep: list[int] = []

    async def main() -> None:
        async with perdure.open_async("memory://") as db, db.session("s") as s:
            if kind == "awaited":

                @perdure.tool(read=True)
                async def again(n: int) -> int:
                    deep.append(n)
                    return await asyncio.create_task(s.call(again, n + 1))
            else:
                loop = asyncio.get_running_loop()

                @perdure.tool(read=True)
                def again(n: int) -> int:
                    deep.append(n)
                    return asyncio.run_coroutine_threadsafe(s.call(again, n + 1), loop).result()

                loop.set_default_executor(ThreadPoolExecutor(64))
            with pytest.raises(perdure.LimitExceeded, match="32 calls are made inside each other"):
                await s.call(again, 0)

    asyncio.run(main())
    assert deep == list(range(32))


@pytest.mark.parametrize("declared", [{}, {"if_unsure": "retry"}, {"cache": "7d"}], ids=["ask", "retry", "cached"])
def test_threads_that_ask_for_the_same_call_of_a_handle_get_one_outcome(
    db: perdure.Database, declared: dict[str, Any]
) -> None:
    made: list[str] = []
    together = threading.Barrier(4)

    @tool(**declared)
    def pay(n: int, ctx: perdure.Context) -> str:
        made.append(ctx.effect_id)
        time.sleep(0.01)
        return f"{n} {len(made)}"

    with db.session("s") as s:

        def work(_: int) -> list[str]:
            found: list[str] = []
            for n in range(5):
                together.wait(60)
                found.append(s.call(pay, n))
            return found

        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(work, range(4))) == [[f"{n} {n + 1}" for n in range(5)]] * 4
    assert len(made) == len(set(made)) == 5


def test_tasks_that_ask_for_the_same_call_of_a_handle_get_one_outcome(url: str) -> None:
    made: list[str] = []

    @tool(if_unsure="retry")
    async def pay(n: int, ctx: perdure.Context) -> str:
        made.append(ctx.effect_id)
        await asyncio.sleep(0.01)
        return f"{n} {len(made)}"

    async def main() -> None:
        async with perdure.open_async(url) as db, db.session("s") as s:
            for n in range(5):
                assert await asyncio.gather(*(s.call(pay, n) for _ in range(4))) == [f"{n} {n + 1}"] * 4

    asyncio.run(main())
    assert len(made) == len(set(made)) == 5


@pytest.mark.parametrize(
    "declared",
    [{"if_unsure": "ask"}, {"if_unsure": "retry"}, {"approve": True}, {"facts": dict}, {"approval_valid_for": "1d"}],
)
def test_a_read_takes_no_declaration_that_would_not_hold(declared: dict[str, Any]) -> None:
    with pytest.raises(perdure.InvalidInput, match=f"so {next(iter(declared))} would not hold"):
        tool(read=True, **declared)(lambda: 1)


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (len, "tool len: obj is taken by its position only"),
        (dict.get, "tool get: self is taken by its position only"),
        (int, "tool int: it does not say what it takes"),
        (print, r"print: what it takes as \*args has no name"),
    ],
    ids=["len", "get", "int", "print"],
)
def test_what_cannot_be_called_by_name_is_refused_before_anything_is_written(fn: Any, said: str):
    with perdure.open("memory://") as db, db.session("s") as s:
        with pytest.raises(
            perdure.InvalidInput, match=rf"{said}.*: write a function of your own, with a name for each argument"
        ):
            s.call(fn, "1")
        assert (s.step, s.effects()) == (0, [])
        # Without arguments that have no name there is nothing to get lost.
        assert s.call(tool(read=True)(lambda *rest: len(rest))) == 0
