"""Bad input, and what becomes of it: each has one outcome, and the session can be resumed after all of them."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

import perdure
from perdure import NotDone, tool
from perdure.agent.agent import Agent
from perdure.agent.models import Answer, ToolCall
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.errors import ApprovalError, InvalidInput, ModelError, ModelUnavailable
from perdure.testing.clock import FakeClock
from tests.agent.working import by_turn, opened, play

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.agent.models import Request


class Ended(NamedTuple):
    """How a run ended, and what the model was told of its calls."""

    result: Any
    told: list[str]


@tool(read=True)
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def ask(folder: Path, answers: list[Any], tools: list[Any], clock: FakeClock | None = None, **options: Any) -> Ended:
    """Run an agent once, look at what it was told, and see that its session goes on with the next message."""
    agent = Agent("a", model=ScriptedModel(by_turn(*answers)), tools=tools)

    async def work() -> Ended:
        async with opened(folder, clock) as db:
            result = await agent.run(db, session="s", message="go", **options)
            messages = (await db.read("s")).plain()["messages"]
            for doubt in result.in_doubt:
                async with db.session("s") as s:
                    await s.resolve(doubt.effect, abort=True)
        async with opened(folder, clock) as db:
            goes_on = Agent("a", model=ScriptedModel(lambda _: "still here"), tools=tools)
            assert (await goes_on.run(db, session="s", message="and now?")).text == "still here"
        return Ended(result, [m["content"] for m in messages if m["role"] == "tool"])

    return play(work())


# -- what a model writes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("add", '{"a": 1, "b":', "the arguments of add are not JSON"),
        ("add", "[1, 2]", "the arguments of add must be an object"),
        ("add", '{"a": 1}', "missing required field `b`"),
        ("add", '{"a": 1, "b": "x"}', "Expected `int`"),
        ("add", '{"a": 1, "b": 2, "c": 3}', "unknown field `c`"),
        ("substract", "{}", "there is no tool 'substract': there are add"),
        ("", "{}", "there is no tool ''"),
        ("add", "NaN", "are not JSON: NaN is no number in JSON"),
    ],
)
def test_a_call_that_cannot_be_made_is_told_to_the_model(tmp_path: Path, name: str, arguments: str, said: str):
    end = ask(tmp_path, [calls((name, arguments), ("add", {"a": 1, "b": 2})), "I see"], [add])
    assert (end.result.status, end.result.text) == ("done", "I see")
    assert said in json.loads(end.told[0])["error"]
    assert end.told[1] == "3"


def test_a_model_that_says_nothing_has_ended(tmp_path: Path):
    end = ask(tmp_path, [Answer({"role": "assistant", "content": None})], [])
    assert (end.result.status, end.result.text) == ("done", "")


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_an_answer_that_was_cut_short_says_so(tmp_path: Path, finish: str):
    half = Answer({"role": "assistant", "content": "It is"}, finish=finish)
    end = ask(tmp_path, [half], [])
    assert (end.result.status, end.result.text) == ("done", "It is")
    assert f"(finish reason {finish})" in end.result.notes[0]


def test_a_model_that_loops_for_ever_is_stopped_by_its_turns(tmp_path: Path):
    def again(request: Request) -> Any:
        return calls(("add", {"a": 1, "b": len(request.messages)}))

    agent = Agent("a", model=ScriptedModel(again), tools=[add])

    async def work() -> None:
        async with opened(tmp_path) as db:
            end = await agent.run(db, session="s", message="go", max_turns=5)
            assert (end.status, end.turns, (await db.look("s")).status) == ("max_turns", 5, "paused")
            assert (await agent.run(db, session="s", max_turns=7)).turns == 7

    play(work())


@pytest.mark.parametrize("error", [ModelError("an empty choice"), ModelUnavailable("429, five times")])
def test_a_model_that_fails_leaves_everything_as_it_was(tmp_path: Path, error: ModelError):
    def fail(request: Request) -> Any:
        raise error

    agent = Agent("a", model=ScriptedModel(fail))

    async def work() -> None:
        async with opened(tmp_path) as db:
            end = await agent.run(db, session="s", message="hello")
            assert (end.status, end.reason) == ("failed", str(error))
            row = await db.look("s")
            assert (row.status, row.pending) == ("failed", 1)
            well = Agent("a", model=ScriptedModel(lambda r: f"{len(r.messages)} message"))
            assert (await well.run(db, session="s")).text == "1 message"
            assert (await db.look("s")).pending == 0

    play(work())


def test_an_answer_that_no_state_can_hold_fails_the_run(tmp_path: Path):
    strange: Any = {"role": "assistant", "content": "x", "odd": {1, 2}}
    end = ask(tmp_path, [Answer(strange)], [])
    assert end.result.status == "failed"
    assert "set" in end.result.reason


def test_two_calls_under_one_id_are_both_answered(tmp_path: Path):
    twice = (ToolCall("c", "add", '{"a": 1, "b": 1}'), ToolCall("c", "add", '{"a": 2, "b": 2}'))
    end = ask(tmp_path, [Answer({"role": "assistant", "content": None}, twice), "I see"], [add])
    assert end.told == ["2", "4"]


class Person(msgspec.Struct):
    name: str
    age: int


def test_a_structured_answer_that_does_not_fit_is_asked_for_again(tmp_path: Path):
    def second(request: Request) -> str:
        assert "does not have the form" in request.messages[-1]["content"]
        assert request.params["response_format"]["type"] == "json_schema"
        return '{"name": "Ana", "age": 40}'

    agent = Agent("a", model=ScriptedModel(by_turn('{"name": "Ana"}', second)), output=Person)

    async def work() -> None:
        async with opened(tmp_path) as db:
            end = await agent.run(db, session="s", message="who?")
            assert (end.output, end.turns) == (Person("Ana", 40), 2)
            stubborn = Agent("a", model=ScriptedModel(lambda _: "no"), output=Person)
            end = await stubborn.run(db, session="t", message="who?", max_turns=2)
            assert (end.status, end.output) == ("max_turns", None)

    play(work())


# -- what a tool does ----------------------------------------------------------------------------------------------


def test_a_read_that_raises_tells_the_model(tmp_path: Path):
    @tool(read=True)
    def look() -> str:
        raise LookupError("nothing there")

    end = ask(tmp_path, [calls(("look", {})), "I see"], [look])
    assert json.loads(end.told[0]) == {"error": "LookupError: nothing there"}


def test_a_tool_that_says_it_did_not_happen_tells_the_model(tmp_path: Path):
    @tool
    def pay() -> str:
        raise NotDone("no money")

    end = ask(tmp_path, [calls(("pay", {})), "I see"], [pay])
    assert json.loads(end.told[0]) == {"error": "no money"}


def test_a_tool_with_effects_that_raises_is_in_doubt(tmp_path: Path):
    entered: list[int] = []

    @tool
    def pay() -> str:
        entered.append(1)
        raise ConnectionError

    end = ask(tmp_path, [calls(("pay", {})), "I see"], [pay])
    assert end.result.status == "in_doubt"
    assert "Did pay() happen?" in end.result.in_doubt[0].question
    assert len(entered) == 1


def test_a_tool_whose_answers_are_lost_is_tried_while_its_key_is_good_and_then_asked_about(tmp_path: Path):
    entered: list[str] = []

    @tool(if_unsure="retry", key_valid_for="10s")
    def pay(ctx: perdure.Context) -> str:
        entered.append(ctx.effect_id)
        raise ConnectionError

    end = ask(tmp_path, [calls(("pay", {})), "I see"], [pay], clock=FakeClock())
    assert end.result.status == "in_doubt"
    assert (len(entered), len(set(entered))) == (4, 1), "at once, and after 1, 3 and 7 s"


@pytest.mark.parametrize("plainly", [True, False])
def test_a_tool_that_hangs_is_in_doubt_when_its_time_is_over(tmp_path: Path, plainly: bool):
    free = threading.Event()

    @tool(timeout=0.05)
    def blocks() -> str:
        free.wait(60)
        return "late"

    @tool(timeout=0.05)
    async def waits() -> str:
        await asyncio.sleep(3600)
        return "late"

    try:
        end = ask(tmp_path, [calls(("blocks" if plainly else "waits", {})), "I see"], [blocks, waits])
    finally:
        free.set()
    assert (end.result.status, "TimeoutError" in end.result.in_doubt[0].question) == ("in_doubt", True)


def test_a_read_that_hangs_is_told_to_the_model(tmp_path: Path):
    @tool(read=True, timeout=0.05)
    async def waits() -> str:
        await asyncio.sleep(3600)
        return "late"

    assert "TimeoutError" in ask(tmp_path, [calls(("waits", {})), "I see"], [waits]).told[0]


# -- what people decide --------------------------------------------------------------------------------------------


def test_decisions_that_cannot_be_taken_change_nothing(tmp_path: Path):
    clock = FakeClock()

    @tool(approve=True, approval_valid_for="1h")
    def pay(n: int) -> str:
        return f"paid {n}"

    script = by_turn(calls(("pay", {"n": 1})), lambda r: r.messages[-1]["content"])
    agent = Agent("a", model=ScriptedModel(script), tools=[pay])

    async def work() -> None:
        async with opened(tmp_path, clock) as db:
            first = (await agent.run(db, session="one", message="go")).approvals[0].id
            second = (await agent.run(db, session="two", message="go")).approvals[0].id
            with pytest.raises(ApprovalError, match="no approval"):
                await db.approve("one", second, by="ana")
            with pytest.raises(ApprovalError, match="no approval"):
                await db.approve("one", "nonsense", by="ana")
            with pytest.raises(perdure.NotFound):
                await db.approve("three", first, by="ana")
            with pytest.raises(perdure.InvalidInput, match="by="):
                await db.approve("one", first, by="")
            await db.approve("one", first, by="ana")
            with pytest.raises(ApprovalError, match="decided already"):
                await db.reject("one", first, by="bob")
            clock.advance(30 * 60 * 1000)
            assert (await agent.run(db, session="one")).text == "paid 1"
            with pytest.raises(ApprovalError, match="used"):
                await db.approve("one", first, by="ana")
            clock.advance(31 * 60 * 1000)
            with pytest.raises(ApprovalError, match="expired"):
                await db.approve("two", second, by="ana")
            # Nobody decided in time: that is a result like any other, and no hang.
            end = await agent.run(db, session="two")
            assert (end.status, json.loads(end.text)["error"]) == ("done", "approval expired: nobody decided in time")

    play(work())


def test_a_state_that_its_agent_could_not_go_on_with_is_refused_before_there_is_a_branch(tmp_path: Path):
    async def work() -> None:
        async with opened(tmp_path) as db:
            await Agent("a", model=ScriptedModel(["hello"])).run(db, session="s", message="hi")
            with pytest.raises(InvalidInput, match=r"messages\[0\] must be an object"):
                await perdure.branch_off(db, "s", "b", at=1, state={"messages": [7]})
            assert (await db.look("s")).branches == ["main"]
            # Where no agent has worked, a program keeps there what it likes.
            async with db.session("plain") as s:
                await s.commit()
            await perdure.branch_off(db, "plain", "b", at=1, state={"messages": [7]})

    play(work())
