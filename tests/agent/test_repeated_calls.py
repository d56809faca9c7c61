"""A call of which nobody knows what it did is not made again under another id unasked, however often that is wanted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import Agent, ModelRetry, NotDone, ScriptedModel, ToolError
from perdure.agent.models.scripted import calls
from perdure.agent.run_result import raised_in
from tests.agent.working import play
from tests.doors import DOORS, Door, World

SAYS_NOTHING_HAPPENED = (NotDone("no"), ToolError("no"), ModelRetry("ask otherwise"))
HOUR = 3600 * 1000


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest) -> Any:
    door = Door(request.param)
    yield door
    door.close()


def again(door: Door, world: World, *, turned_down: int = 0) -> list[str]:
    """The call, and the identical one again and again, in this run and others; a person turns down what is asked."""
    found: list[str] = []
    for _ in range(3):
        found += door.call(world, 2)
        for _ in range(turned_down):
            if door.status == "waiting_approval":
                door.decide(False)
    return found


@pytest.mark.parametrize("error", [KeyError("id"), TimeoutError()], ids=repr)
def test_what_is_only_reported_is_never_made_again(door: Door, error: Exception) -> None:
    world = World(error, declared="report")
    first, *others = again(door, world)
    assert first == ("raised" if isinstance(error, KeyError) else "unknown")
    assert set(others) <= {"failed", "unknown"}
    assert len(world.ids) == 1


@pytest.mark.parametrize("error", [KeyError("id"), TimeoutError()], ids=repr)
def test_nor_in_a_run_of_a_session_and_after_it(error: Exception) -> None:
    door = Door("session-sync")
    world = World(error, declared="report")
    found: list[str] = []

    def work(s: Any) -> None:
        for _ in range(4):
            try:
                found.append(type(s.call(world.tools["sync"], 5)).__name__)
            except perdure.CallError as e:
                found.append(type(e).__name__)

    with perdure.open(door.url, clock=door.clock, maintain=False) as db, db.session("s") as s:
        s.run("r1", work)
        s.run("r2", work)
    assert found == ["EffectRaised" if isinstance(error, KeyError) else "Unknown", *["EffectFailed"] * 7]
    assert len(world.ids) == 1
    door.close()


@pytest.mark.parametrize("declared", ["ask", "retry"])
def test_what_a_person_has_turned_down_is_asked_for_again(door: Door, declared: str) -> None:
    world = World(KeyError("id"), declared=declared)
    assert door.call(world) == ["raised"]
    door.clock.advance(25 * HOUR)  # the key is forgotten
    assert door.call(world) == ["asks"]
    door.decide(False)
    wanted = ["failed", "asks"] if door.is_agent else ["failed", "failed"]
    assert door.call(world, 2) == wanted
    assert len(world.ids) == 1


def test_nor_does_it_count_that_nobody_has_decided(door: Door) -> None:
    world = World(KeyError("id"), declared="ask", approval_valid_for="1h")
    assert door.call(world, 2) == ["raised", "asks"]
    door.clock.advance(2 * HOUR)
    assert door.call(world, 2) == (["failed", "asks"] if door.is_agent else ["failed", "failed"])
    assert len(world.ids) == 1


def test_nor_that_the_request_is_taken_back() -> None:
    world = World(KeyError("id"), declared="ask")
    asked = calls(("pay", {"amount": 5}))
    script = ScriptedModel([asked, asked, asked, "that is all"])
    agent = Agent("desk", model=script, tools=[world.tools["async"]], on_message="withdraw")

    async def work() -> None:
        async with perdure.open_async("memory://") as db:
            assert (await agent.run(db, session="s", message="pay")).status == "waiting_approval"
            assert (await agent.run(db, session="s", message="wait")).status == "waiting_approval"

    play(work())
    assert len(world.ids) == 1


FIRST = (KeyError("id"), TimeoutError(), ConnectionRefusedError(), KeyboardInterrupt())
"""What leaves a call with a key in doubt."""


def begun(door: Door, world: World, first: BaseException) -> list[str]:
    """The first attempt, where it comes to an end that somebody is told of."""
    if isinstance(first, KeyboardInterrupt):
        door.ends(world, KeyboardInterrupt)
    return door.call(world) if isinstance(first, KeyError) else []


@pytest.mark.parametrize("error", SAYS_NOTHING_HAPPENED, ids=repr)
@pytest.mark.parametrize("first", FIRST, ids=repr)
def test_that_a_later_attempt_has_done_nothing_says_nothing_of_the_first(
    door: Door, first: BaseException, error: Exception
) -> None:
    world = World(first, error, error, declared="retry")
    assert begun(door, world, first) in ([], ["raised"])
    assert door.call(world) + door.call(world) == ["raised", "raised"], "as little is known as before"
    assert str(error) in (door.told()[-1] if door.is_agent else door.effects()[-1]["raised"]["message"])
    assert door.call(world) == ["paid"]
    assert len(world.ids) == 4
    assert len(set(world.ids)) == 1, "under the id it had"


@pytest.mark.parametrize("error", SAYS_NOTHING_HAPPENED, ids=repr)
def test_nor_does_that_of_one_that_a_person_has_agreed_to(door: Door, error: Exception) -> None:
    world = World(KeyError("id"), error, declared="ask")
    assert door.call(world, 2) == ["raised", "asks"]
    door.decide(True)
    assert door.call(world) == ["failed"] if not door.is_agent else door.call(world)[0] == "failed"
    if door.is_agent:
        assert door.call(world) == ["asks"]
    assert len(world.ids) == 2


def test_one_that_a_person_has_agreed_to_and_that_is_done_settles_it(door: Door) -> None:
    world = World(KeyError("id"), declared="ask")
    assert door.call(world, 2) == ["raised", "asks"]
    door.decide(True)
    assert door.call(world) == ["paid"]
    assert door.call(world) == ["paid"], "nobody is asked about another one"
    assert len(world.ids) == (3 if door.is_agent else 2)


def test_who_reports_that_it_has_not_happened_settles_it(door: Door) -> None:
    world = World(KeyError("id"), KeyboardInterrupt(), declared="retry")
    assert door.call(world) == ["raised"]
    door.ends(world, KeyboardInterrupt)
    door.report_failure("it never arrived")
    assert door.call(world) == ["failed"]
    assert door.call(world) == (["paid"] if door.is_agent else ["failed"])
    assert len(set(world.ids)) == (2 if door.is_agent else 1)


def test_what_another_session_waits_for_is_not_given_up_by_a_later_attempt() -> None:
    world = World(KeyboardInterrupt(), ToolError("no"), declared="retry", cache="7d", cache_scope="shared")
    door = Door("session-sync")
    with perdure.open(door.url, clock=door.clock, maintain=False) as db:
        with db.session("s", owner="ana") as s, pytest.raises(KeyboardInterrupt):
            s.call(world.tools["sync"], 5)
        with db.session("s", owner="ana") as s, pytest.raises(perdure.EffectRaised):
            s.call(world.tools["sync"], 5)
        with db.session("other", owner="ana") as s, pytest.raises(perdure.CallError):
            s.call(world.tools["sync"], 5)
    assert len(set(world.ids)) == 1
    door.close()


def test_what_is_known_to_be_done_may_be_wanted_once_more(door: Door) -> None:
    world = World(KeyError("id"), declared="retry")
    assert door.call(world, 2) == ["raised", "paid"]
    assert door.call(world) == ["paid"]
    assert len(set(world.ids)) == (2 if door.is_agent else 1)


@pytest.mark.parametrize("error", SAYS_NOTHING_HAPPENED, ids=repr)
def test_who_finds_out_that_it_has_not_happened_settles_it(door: Door, error: Exception) -> None:
    world = World(KeyError("id"), error, declared="function")
    assert door.call(world) == ["raised"]
    world.finds = NotDone
    assert door.call(world) == ["failed"]
    assert door.call(world) == (["paid"] if door.is_agent else ["failed"])
    assert world.asked_about == 2
    assert len(set(world.ids)) == (2 if door.is_agent else 1)


@pytest.mark.parametrize(
    ("said", "then"), [({"done": "paid"}, "paid"), ({"abort": True}, "failed"), ({"retry": True}, "failed")]
)
@pytest.mark.parametrize("way", ["session-sync", "session-async"])
def test_so_does_a_person(way: str, said: dict[str, Any], then: str) -> None:
    later = [ToolError("no")] if "retry" in said else []
    door, world = Door(way), World(KeyError("id"), *later, declared="ask")
    assert door.call(world) == ["raised"]
    door.resolve(**said)
    assert door.call(world) == [then]
    assert len(world.ids) == 1 + ("retry" in said)

    def another(s: Any) -> str:
        return s.call(world.tools["sync"], 5)

    with perdure.open(door.url, clock=door.clock, maintain=False) as db, db.session("s") as s:
        assert s.run("r", another) == "paid", "nobody is asked"
    door.close()


PAY = ("pay", {"amount": 5})


def run_agent(world: World, *script: Any) -> tuple[str, list[str]]:
    agent = Agent("desk", model=ScriptedModel([*script, "that is all"]), tools=[world.tools["async"]])

    async def work() -> tuple[str, list[str]]:
        async with perdure.open_async("memory://") as db:
            result = await agent.run(db, session="s", message="pay")
            said = (await db.read("s")).messages.plain()
            return result.status, [m["content"] for m in said if m["role"] == "tool"]

    found: tuple[str, list[str]] = play(work())
    return found


def test_of_two_equal_calls_side_by_side_the_one_that_is_done_says_nothing_of_the_one_that_raised() -> None:
    world = World(KeyError("id"), "paid", declared="ask")
    status, _ = run_agent(world, calls(PAY, PAY), calls(PAY))
    assert (status, len(world.ids)) == ("waiting_approval", 2)


def test_two_that_raised_are_both_gone_on_with_each_under_its_own_id() -> None:
    world = World(KeyError("id"), KeyError("id"), declared="retry")
    status, said = run_agent(world, calls(PAY, PAY), calls(PAY, PAY))
    assert (status, said[2:]) == ("done", ["paid", "paid"])
    assert set(world.ids[:2]) == set(world.ids[2:])
    assert len(set(world.ids)) == 2


@pytest.mark.parametrize("declared", ["retry", "function"])
def test_while_it_is_gone_on_with_for_another_one_somebody_is_asked(declared: str) -> None:
    world = World(KeyError("id"), declared=declared)
    status, _ = run_agent(world, calls(PAY), calls(PAY, PAY))
    assert status == ("waiting_approval" if declared == "retry" else "in_doubt")
    assert len(world.ids) == (2 if declared == "retry" else 1)
    assert len(set(world.ids)) == 1


def test_what_a_branch_has_in_doubt_is_not_refuted_by_a_later_attempt_elsewhere() -> None:
    world = World(KeyboardInterrupt(), ToolError("no"), declared="retry")
    door = Door("session-sync")
    with perdure.open(door.url, clock=door.clock, maintain=False) as db:
        with db.session("s") as s, pytest.raises(KeyboardInterrupt):
            s.call(world.tools["sync"], 5)
        with db.session("s") as s:
            s.fork("other")
        assert door.call(world) == ["raised"]
        with db.session("s", branch="other") as s:
            assert s.call(world.tools["sync"], 5) == "paid"
    assert len(set(world.ids)) == 1
    door.close()


def test_a_memory_of_before_calls_had_names_of_their_own_in_it_is_still_one() -> None:
    world = World(KeyError("id"), declared="report")
    door = Door("session-sync")
    with perdure.open(door.url, clock=door.clock, maintain=False) as db:
        with db.session("s") as s:
            with pytest.raises(perdure.EffectRaised):
                s.call(world.tools["sync"], 5)
            ((id, one),) = s.book["raised"].plain().items()
            del s.book["raised"][id]
            s.book["raised"][one.pop("call")] = one
            s.commit()
        with db.session("s") as s, pytest.raises(perdure.EffectFailed, match="ended with KeyError"):
            s.call(world.tools["sync"], 5)
    assert len(world.ids) == 1
    door.close()


SETTLED = ({"done": "said"}, {"retry": True}, {"abort": True})
"""What a person may say of a call."""


def settle(door: Door, id: str, **said: Any) -> None:
    with perdure.open(door.url, clock=door.clock, maintain=False) as db, db.session("s") as s:
        s.resolve(id, by="ana", **said)


def report(door: Door, id: str) -> bool:
    with perdure.open(door.url, clock=door.clock, maintain=False) as db:
        return db.post_outcome("s", id, "reported")


@pytest.mark.parametrize("said", SETTLED, ids=repr)
@pytest.mark.parametrize("repeated", [0, 1, 3])
@pytest.mark.parametrize("error", [KeyError("id"), TimeoutError()], ids=repr)
def test_a_person_settles_what_was_only_reported_however_often_it_was_asked_for_again(
    door: Door, error: Exception, repeated: int, said: dict[str, Any]
) -> None:
    world = World(error, declared="report")
    door.call(world)
    if repeated:
        assert set(door.call(world, repeated)) <= {"failed", "unknown"}
    with pytest.raises(perdure.CallError, match="settle it with"):
        report(door, world.ids[0])
    settle(door, world.ids[0], **said)
    if "retry" not in said:
        assert not report(door, world.ids[0]), "it has its outcome"
    (record,) = [r for r in door.effects() if r["id"] == world.ids[0]]
    assert record["resolved_by"] == "ana"
    found = door.call(world)
    if "done" in said:
        assert (found, len(world.ids)) == (["said"], 1)
    elif "retry" in said:
        assert (found, len(world.ids)) == (["paid"], 2)
    else:
        # A session knows the call by its arguments, and a person has given it up; a model asks for another one.
        assert found == (["paid"] if door.is_agent else ["failed"])


def test_what_a_person_says_was_done_is_given_once_and_then_it_is_another_call() -> None:
    world = World(KeyError("id"), declared="report")
    door = Door("agent-sync")
    assert door.call(world, 2) == ["raised", "failed"]
    settle(door, world.ids[0], done="said")
    assert door.call(world, 3) == ["said", "paid", "paid"]
    door.close()


def test_one_that_is_asked_for_again_is_decided_on_there() -> None:
    world = World(KeyError("id"), declared="ask")
    door = Door("agent-sync")
    assert door.call(world, 2) == ["raised", "asks"]
    with pytest.raises(perdure.CallError, match="asked for again"):
        settle(door, world.ids[0], done="said")
    door.decide(False)
    assert door.call(world) == ["failed"]
    settle(door, world.ids[0], done="said")
    assert door.call(world) == ["said"]
    door.close()


def test_a_result_that_does_not_fit_is_refused_after_the_model_was_told_too() -> None:
    @perdure.tool(if_unsure="report")
    def book(seat: str) -> int:
        raise KeyError(seat)

    agent = Agent("desk", model=ScriptedModel([calls(("book", {"seat": "B2"})), "done"]), tools=[book])
    url = "memory://told-misfit"
    with perdure.open(url) as db:
        id = agent.run_sync(url, session="s", message="book").raised[0].effect
        with db.session("s") as s:
            with pytest.raises(perdure.InvalidInput, match="integer"):
                s.resolve(id, done="seven", by="ana")
            s.resolve(id, done=7, by="ana")


def test_the_refusal_speaks_of_the_repetition_and_names_what_is_to_be_settled() -> None:
    world = World(KeyError("id"), declared="report")
    with perdure.open("memory://") as db, db.session("s") as s:
        with pytest.raises(perdure.EffectRaised):
            s.call(world.tools["sync"], 5)
        with pytest.raises(perdure.EffectFailed, match=f"was not made again: .*{world.ids[0]}"):
            s.call(world.tools["sync"], 5)


@pytest.mark.parametrize(("said", "became"), [(SETTLED[0], "done"), (SETTLED[2], "failed")])
def test_whoever_looks_at_an_agents_exceptions_is_told_what_became_of_them(said: dict[str, Any], became: str) -> None:
    world = World(KeyError("id"), declared="report")
    door = Door("agent-sync")
    door.call(world)
    settle(door, world.ids[0], **said)
    with perdure.open(door.url, clock=door.clock, maintain=False) as db:
        assert [one.status for one in raised_in(db.read("s").book.plain())] == [became]
    door.close()


@pytest.mark.parametrize("if_unsure", ["ask", "retry", "report", "function"])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_an_approval_that_is_edited_into_a_call_that_raised_is_a_repetition_of_that_one(
    if_unsure: str, kind: str, tmp_path: Path
) -> None:
    made: list[tuple[str, str]] = []
    looked: list[str] = []

    def look(order: str) -> Any:
        looked.append(order)
        return perdure.Unknown if len(looked) == 1 else perdure.Done("found paid")

    unsure: Any = look if if_unsure == "function" else if_unsure

    @perdure.tool(if_unsure=unsure, approve=lambda a: a["order"] == "Y")
    async def charge(order: str, ctx: perdure.Context) -> str:
        made.append((order, ctx.effect_id))
        if len(made) == 1:
            raise KeyError("after the charge")
        return "paid"

    def model(request: Any) -> Any:
        told = sum(m["role"] == "tool" for m in request.messages)
        return calls(("charge", {"order": "XY"[told]})) if told < 2 else f"end: {request.messages[-1]['content']}"

    async def work() -> None:
        url = "memory://edited-" + if_unsure if kind == "memory" else f"sqlite:///{tmp_path}/a.db"
        agent = perdure.Agent("a", model=perdure.FunctionModel(model), tools=[charge])
        async with perdure.open_async(url) as db:
            end = await agent.run(db, session="s", message="go")
            await db.approve("s", end.approvals[0], by="ana", args={"order": "X"})
            end = await agent.run(db, session="s")
            match if_unsure:
                case "ask":
                    (asked,) = end.approvals
                    assert asked.args == {"order": "X"}
                    assert "the same call ended with KeyError" in asked.because
                    assert len(made) == 1
                    await db.approve("s", asked, by="ana")
                    assert (await agent.run(db, session="s")).status == "done"
                    assert len(made) == 2
                case "retry":
                    assert made == [made[0]] * 2, "under the id it had"
                case "report":
                    assert "it is refused until a person has said what became of that one" in end.text
                    assert len(made) == 1
                case _:
                    assert (len(made), looked) == (1, ["X", "X"])
                    assert "found paid" in end.text

    asyncio.run(work())
