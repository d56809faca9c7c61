"""Replay of sessions in which more happens than questions and answers: all of it is in the record."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from perdure import tool
from perdure.agent.agent import Agent
from perdure.agent.children import handoff
from perdure.agent.models import Request
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.agent.replay.recorded_session import Turn, read_recording
from perdure.agent.replay.replay import replay
from perdure.agent.requests import rebuild
from tests.agent.context.scene import answers, opened


class Seen(ScriptedModel):
    """A scripted model that keeps what it was asked."""

    def __init__(self, script: Any, **options: Any) -> None:
        super().__init__(script, **options)
        self.requests: list[Request] = []

    async def answer(self, request: Request, on_delta: Any = None) -> Any:
        self.requests.append(request)
        return await super().answer(request, on_delta)


async def same(db: Any, agent: Agent, models: list[Seen]) -> None:
    """The session is identical with and without its agent, and every request comes back as it was sent."""
    asked = sum(len(m.requests) for m in models)
    for who in (None, agent):
        found = await replay(db, "s", agent=who)
        assert found.identical, (who, found)
        assert found.turns == asked
    assert sum(len(m.requests) for m in models) == asked
    sent = [r for m in models for r in m.requests]
    for step in await answers(db, "s"):
        assert rebuild(db, "s", step) in sent


@tool(read=True)
def book(title: str) -> str:
    """Read a whole book."""
    return f"{title}: " + "and then they went on. " * 3000


@tool(approve=True)
def buy(title: str) -> str:
    """Buy a book."""
    return f"bought {title}"


def test_large_results_that_the_model_read_on_in():
    def script(request: Request) -> Any:
        at = sum(m["role"] == "assistant" for m in request.messages)
        if at == 1:
            reader = next(t["name"] for t in request.tools if t["name"] not in ("book", "recall"))
            return calls((reader, {"id": "nothing of that name"}))
        return [calls(("book", {"title": "Emma"})), None, "read"][at]

    model = Seen(script)
    agent = Agent("reader", model=model, tools=[book])

    async def main() -> None:
        async with opened() as db:
            assert (await agent.run(db, session="s", message="read Emma")).text == "read"
            assert len(model.requests[1].tools) == 2
            await same(db, agent, [model])

    asyncio.run(main())


def test_a_conversation_that_was_handed_over():
    second = Seen(lambda r: "I am the second" if r.messages[-1]["role"] != "user" else "still the second", name="two")
    first = Seen([calls(("hand_to_second", {"reason": "better"}))], name="one")
    other = Agent("second", model=second, instructions="You are the second.", tools=[book])
    agent = Agent("first", model=first, instructions="You are the first.", tools=[handoff(other)])

    async def main() -> None:
        async with opened() as db:
            assert (await agent.run(db, session="s", message="hi")).text == "I am the second"
            assert (await agent.run(db, session="s", message="you?")).text == "still the second"
            await same(db, agent, [first, second])

    asyncio.run(main())


def test_a_run_that_was_cancelled_and_gone_on_with():
    def script(request: Request) -> Any:
        return calls(("buy", {"title": "Emma"})) if len(request.messages) == 1 else "fine"

    model = Seen(script)
    agent = Agent("buyer", model=model, tools=[buy])

    async def main() -> None:
        async with opened() as db:
            assert (await agent.run(db, session="s", message="buy Emma")).status == "waiting_approval"
            await db.post("s", "and quickly", key="quickly")
            await db.cancel("s", by="ana", reason="too dear")
            assert (await agent.run(db, session="s")).status == "cancelled"
            assert (await agent.run(db, session="s", message="never mind")).text == "fine"
            said = [m.get("content") for m in model.requests[-1].messages]
            assert "and quickly" in said
            await same(db, agent, [model])

    asyncio.run(main())


class Verdict(msgspec.Struct):
    """What the agent is to say."""

    good: bool


def test_an_answer_that_had_not_the_form_that_was_wanted():
    model = Seen(lambda r: "no idea" if len(r.messages) == 1 else '{"good": true}')
    agent = Agent("judge", model=model, output=Verdict)

    async def main() -> None:
        async with opened() as db:
            result = await agent.run(db, session="s", message="is it good?")
            assert result.output == Verdict(True)
            assert len(model.requests) == 2
            await same(db, agent, [model])

    asyncio.run(main())


def test_a_change_of_agents_in_the_middle_is_replayed_by_the_record_and_told_by_the_agent():
    model = Seen(lambda r: "yes")
    old, new = Agent("a", model=model, instructions="One."), Agent("a", model=model, instructions="Two.")

    async def main() -> None:
        async with opened() as db:
            await old.run(db, session="s", message="hi")
            await new.run(db, session="s", message="hi again")
            assert (await replay(db, "s")).identical
            assert (await replay(db, "s", agent=old)).step == 2
            assert (await replay(db, "s", agent=new)).step == 1

    asyncio.run(main())


@pytest.mark.parametrize("field", ["context", "took", "answer"])
def test_a_record_that_says_something_else_is_noticed(field: str, monkeypatch: pytest.MonkeyPatch):
    """Each part of the record is used: falsify one, and the requests no longer fit."""
    model = Seen(lambda r: f"answer {len(r.messages)}")
    agent = Agent("a", model=model, instructions="One.")
    false: dict[str, Any] = {"context": {"x": 2}, "took": [("k", "another message")]}

    def falsified(*args: Any) -> Any:
        found = read_recording(*args)
        turns = [e for e in found.events if isinstance(e, Turn)]
        false["answer"] = turns[0].answer._replace(message={"role": "assistant", "content": "never said"})
        return found._replace(events=[turns[0]._replace(**{field: false[field]}), *turns[1:]])

    async def main() -> None:
        async with opened() as db:
            await agent.run(db, session="s", message="hi", context={"x": 1})
            await agent.run(db, session="s", message="hi again", context={"x": 1})
            assert (await replay(db, "s")).identical
            monkeypatch.setattr("perdure.agent.replay.replay.read_recording", falsified)
            assert not (await replay(db, "s")).identical

    asyncio.run(main())
