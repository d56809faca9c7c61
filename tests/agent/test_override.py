"""Another model for a test: only where it is overridden, wherever the agent runs there, and for nobody else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure import Agent, Answer, Compactor, FunctionModel, InvalidInput, ModelError, ScriptedModel, Window, calls
from perdure.agent.branching_off import rerun
from perdure.agent.replay.replay import replay


def refuses(_: Any) -> str:
    raise ModelError("the real one was asked")


def saying(text: str) -> FunctionModel:
    return FunctionModel(lambda _: text)


def test_a_function_answers_with_text_calls_or_an_answer_and_may_be_awaited() -> None:
    asked: list[perdure.Request] = []

    @perdure.tool(read=True)
    def add(a: int, b: int) -> int:
        "Add."
        return a + b

    async def answer(request: perdure.Request) -> Any:
        asked.append(request)
        await asyncio.sleep(0)
        if request.messages[-1]["role"] == "user":
            return calls(("add", {"a": 1, "b": 2}))
        usage = perdure.Usage(input=7, output=3)
        return Answer({"role": "assistant", "content": "It is " + request.messages[-1]["content"]}, usage=usage)

    done = Agent("adder", model=FunctionModel(answer, name="mine"), tools=[add]).run_sync(
        "memory://", session="s", message="1 + 2?"
    )
    assert (done.text, asked[0].model, asked[0].tools[0]["name"]) == ("It is 3", "mine", "add")
    assert (done.spent.input > 7, done.spent.output > 3) == (True, True)


@pytest.mark.parametrize("wrong", [None, 7, ["a"], {"role": "assistant"}])
def test_an_answer_that_is_none_says_what_one_is(wrong: Any) -> None:
    agent = Agent("a", model=FunctionModel(lambda _: wrong))
    with pytest.raises(InvalidInput, match="answers with text, calls"):
        agent.run_sync("memory://", session="s", message="hi")
    with pytest.raises(InvalidInput, match="given the function that answers"):
        FunctionModel(wrong)


def test_who_runs_it_meanwhile_asks_his_own() -> None:
    agent = Agent("guide", model=FunctionModel(refuses), tools=[])
    inside = asyncio.Event()

    async def one(n: int) -> str:
        async with perdure.open_async("memory://") as db:
            with agent.override(model=saying(f"answer {n}")):
                await asyncio.sleep(0.001 * (5 - n))
                inside.set()
                return (await agent.run(db, session="s", message="hi")).text

    async def main() -> None:
        told = asyncio.gather(*(one(n) for n in range(5)))
        await inside.wait()
        # Overridden by others, and not for us.
        assert "the real one" in (await agent.run("memory://", session="s", message="hi")).reason
        assert await told == [f"answer {n}" for n in range(5)]

    asyncio.run(main())
    assert "the real one" in agent.run_sync("memory://", session="s", message="hi").reason


def test_it_holds_wherever_the_agent_runs() -> None:
    """As a tool of another one, streamed, on a branch with other instructions, and for its compactor."""
    summary = Compactor(model=FunctionModel(refuses, name="notes"), every=1)
    helper = Agent("helper", model=FunctionModel(refuses), compactor=summary, window=Window(keep_recent=1))
    chief = Agent(
        "chief", model=ScriptedModel([calls(("helper", {"message": "do it"})), "done"]), tools=[helper.as_tool()]
    )

    async def main() -> None:
        async with perdure.open_async("memory://") as db:
            with helper.override(model=saying("as you say")):
                assert (await chief.run(db, session="c", message="hi")).ok
                for n in range(3):
                    told = [e async for e in helper.stream(db, session="h", message=f"message {n}")]
                    assert told[-1].data["result"].text == "as you say"
                went = await rerun(db, helper, "h", at=2, name="try", effects="dry")
                assert went.result.ok, went.result
                assert (await replay(db, "h", agent=helper)).identical
                with helper.override(model=[saying("inner")]):
                    assert (await helper.run(db, session="i", message="hi")).text == "inner"
                assert (await helper.run(db, session="i", message="hi")).text == "as you say"
            summaries = [c for c in await db.history("h") if c.more.get("model", {}).get("use") == "summary"]
            assert {c.more["model"]["name"] for c in summaries} == {"function"}
            assert (await replay(db, "h")).identical
            assert "the real one" in (await helper.run(db, session="h", message="hi")).reason

    asyncio.run(main())


def test_mistakes() -> None:
    agent = Agent("a", model=saying("fine"))
    for wrong in (None, [], 7, [saying("x"), 7]):
        with pytest.raises(InvalidInput), agent.override(model=wrong):  # pyright: ignore[reportArgumentType]
            raise AssertionError
    assert agent.run_sync("memory://", session="s", message="hi").text == "fine"
