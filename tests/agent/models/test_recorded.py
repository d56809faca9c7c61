"""A recorded session's answers, said again with no network, and the first request that differs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure.agent.agent import Agent
from perdure.agent.models import Delta, Request
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.agent.replay.recorded_session import RecordedModel
from perdure.errors import Diverged, NotFound, RequestDiffers
from tests.agent.models.canned import canned, completion, http
from tests.agent.models.clients import client

ANSWERS: list[Any] = ["Hello", calls(("look", {"n": 1}), ("look", {"n": 2})), "Both seen."]


@perdure.tool(read=True)
def look(n: int) -> str:
    "Look."
    return f"seen {n}"


def agent_of(model: Any, **more: Any) -> Agent:
    """The agent that is recorded and replayed."""
    return Agent("guide", model=model, tools=[look], instructions=more.pop("instructions", "Be brief."), **more)


async def record(db: Any, model: Any, *messages: str) -> list[dict[str, Any]]:
    """A session with these messages; its messages."""
    for n, message in enumerate(messages):
        assert (await agent_of(model).run(db, session="s", message=message, key=f"m{n}")).ok
    return (await db.read("s")).plain()["messages"]


def test_a_recorded_session_says_the_same_again():
    async def main() -> None:
        async with perdure.open_async("memory://recorded-a") as db, perdure.open_async("memory://recorded-b") as again:
            first = await record(db, ScriptedModel(ANSWERS), "hi", "look twice")
            model = await RecordedModel.of(db, "s")
            assert [r.answer.finish for r in model.answers] == ["stop", "tool_calls", "stop"]
            assert await record(again, model, "hi", "look twice") == first
            assert model.asked == 3
            then, now = await db.history("s"), await again.history("s")
            assert [c.more.get("model") for c in then] == [c.more.get("model") for c in now]
            assert [c.more.get("usage") for c in then] == [c.more.get("usage") for c in now]

    asyncio.run(main())


def test_what_a_real_client_heard_is_said_again_word_for_word():
    said = {"content": "Rain.", "reasoning_content": "Hm.", "annotations": [{"type": "x"}]}

    async def main() -> None:
        async with perdure.open_async("memory://recorded-c") as db, perdure.open_async("memory://recorded-d") as again:
            with canned(http(completion(said))) as server:
                model = client(server.url)[0]
                first = await record(db, model, "hi")
                await model.close()
            recorded = await RecordedModel.of(db, "s")
            assert recorded.name == "m"
            answer = recorded.answers[0].answer
            assert (answer.model, answer.id, answer.fingerprint) == ("m-2026-01-01", "chatcmpl-1", "fp_1")
            assert answer.usage.input == 11
            assert await record(again, recorded, "hi") == first
            assert first[1]["reasoning_content"] == "Hm."

    asyncio.run(main())


@pytest.mark.parametrize(
    "change",
    [{"instructions": "Be long."}, {"params": {"temperature": 1}}, {"context": {"region": "EU"}}, {"message": "hi!"}],
)
def test_another_request_is_told_with_its_step(change: dict[str, Any]):
    async def main() -> None:
        async with perdure.open_async("memory://recorded-e") as db, perdure.open_async("memory://recorded-f") as again:
            await record(db, ScriptedModel(ANSWERS), "hi")
            asked = {"message": change.get("message", "hi"), "context": change.get("context")}
            made = {k: v for k, v in change.items() if k not in asked}
            agent = agent_of(await RecordedModel.of(db, "s"), **made)
            with pytest.raises(RequestDiffers, match="step 1 differs from the recorded one") as e:
                await agent.run(again, session="s", **asked)
            assert isinstance(e.value, Diverged)
            assert (e.value.step, len(e.value.recorded), len(e.value.found)) == (1, 32, 32)

    asyncio.run(main())


def test_a_request_after_the_last_recorded_one_is_told():
    async def main() -> None:
        async with perdure.open_async("memory://recorded-g") as db, perdure.open_async("memory://recorded-h") as again:
            await record(db, ScriptedModel(ANSWERS), "hi")
            with pytest.raises(RequestDiffers, match="recording ends with step 1") as e:
                await record(again, await RecordedModel.of(db, "s"), "hi", "and now?")
            assert e.value.recorded == ""

    asyncio.run(main())


def test_an_answer_that_was_edited_later_is_found_where_it_was_said():
    async def main() -> None:
        async with perdure.open_async("memory://recorded-i") as db:
            await record(db, ScriptedModel(ANSWERS), "hi", "look twice")
            async with db.session("s") as s:
                s.messages[1]["content"] = "Good day"
                await s.commit()
            model = await RecordedModel.of(db, "s")
            assert model.answers[0].answer.message["content"] == "Hello"
            assert len((await RecordedModel.of(db, "s", upto=2)).answers) == 2

    asyncio.run(main())


def test_more_checkpoints_than_a_page_holds():
    async def main() -> None:
        async with perdure.open_async("memory://recorded-j") as db:
            for n in range(550):
                async with db.session("s") as s:
                    s.vars["n"] = n
                    await s.commit()
            await record(db, ScriptedModel(ANSWERS), "hi")
            assert [r.step for r in (await RecordedModel.of(db, "s")).answers] == [551]

    asyncio.run(main())


def test_a_listener_hears_the_recorded_text():
    async def main() -> None:
        async with perdure.open_async("memory://recorded-k") as db:
            await record(db, ScriptedModel(["Hello"]), "hi")
            model = await RecordedModel.of(db, "s")
            told: list[Delta] = []
            asked = Request("scripted", [], [], {})
            with pytest.raises(RequestDiffers):
                await model.answer(asked, told.append)
            assert told == []
            agent = agent_of(model)
            async with perdure.open_async("memory://recorded-l") as again:
                seen = [e async for e in agent.stream(again, session="s", message="hi")]
            assert [e.data["text"] for e in seen if e.kind == "delta"] == ["Hello"]

    asyncio.run(main())


def test_a_session_that_is_not_there():
    async def main() -> None:
        async with perdure.open_async("memory://") as db:
            with pytest.raises(NotFound):
                await RecordedModel.of(db, "nobody")

    asyncio.run(main())
