"""Ten mistakes that people make on the first day: each gets an error of ours that says what to do."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import tool
from perdure.agent.agent import Agent
from perdure.agent.models.openai import OpenAIModel
from perdure.agent.models.scripted import ScriptedModel
from perdure.errors import InvalidInput, Misuse, NotJson, UnknownStore
from perdure.session.handle import UncommittedEdits
from perdure.session.tools import Tool

if TYPE_CHECKING:
    from pathlib import Path


def agent(**options: Any) -> Agent:
    return Agent("a", **{"model": ScriptedModel(["hello"]), **options})


def test_a_database_that_blocks_is_given_to_an_agent() -> None:
    wrong: Any
    with perdure.open("memory://") as wrong:
        for run in (agent().run(wrong, session="s", message="hi"), _first_of(agent().stream(wrong, session="s"))):
            with pytest.raises(
                Misuse, match=r"this one blocks: open it with `async with perdure\.open_async\(\.\.\.\) as"
            ):
                asyncio.run(run)
        with pytest.raises(Misuse, match="this one blocks"):
            agent().run_sync(wrong, session="s", message="hi")
    wrong = 7
    with pytest.raises(Misuse, match="or on its URL, not on int"):
        agent().run_sync(wrong, session="s")


async def _first_of(events: Any) -> Any:
    return [event async for event in events]


def test_an_open_database_is_given_to_run_sync() -> None:
    async def work() -> None:
        wrong: Any
        async with perdure.open_async("memory://") as wrong:
            with pytest.raises(Misuse, match=r"pass the URL, or `await agent\.run\(db, \.\.\.\)`"):
                agent().run_sync(wrong, session="s")

    asyncio.run(work())


def test_with_and_async_with_are_mistaken_for_each_other() -> None:
    async def work() -> None:
        db: Any = perdure.open_async("memory://")
        with pytest.raises(Misuse, match=r"`async with perdure\.open_async\(\.\.\.\) as db`, not `with`"), db:
            pass
        with pytest.raises(Misuse, match="opening is not awaited"):
            await db
        opening = db.session("s")
        with pytest.raises(Misuse, match=r"it has no messages: write `async with db\.session\(\.\.\.\) as s`"):
            opening.messages.append({"role": "user", "content": "hi"})
        opening = db.session("s")
        with pytest.raises(Misuse, match=r"or `s = await db\.session\(\.\.\.\)`"), opening:
            pass
        await opening
        await db.close()
        blocking: Any
        with perdure.open("memory://") as blocking:
            with pytest.raises(Misuse, match=r"this database blocks: `with perdure\.open\(\.\.\.\)`"):
                async with blocking:
                    pass
            with pytest.raises(Misuse, match=r"this session blocks: `with db\.session\(\.\.\.\)`"):
                async with blocking.session("s"):
                    pass

    asyncio.run(work())


def test_a_commit_is_not_awaited() -> None:
    async def work() -> None:
        async with perdure.open_async("memory://") as db, db.session("s") as s:
            s.vars["a"] = 1
            s.commit()  # pyright: ignore[reportUnusedCoroutine]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(work())
        gc.collect()
    said = {w.category: str(w.message) for w in caught}
    assert "coroutine 'commit' was never awaited" in said[RuntimeWarning]
    assert "`await s.commit()` keeps them, and without the await nothing is done" in said[UncommittedEdits]


def test_the_result_of_a_run_is_used_before_it_is_there() -> None:
    async def work() -> None:
        async with perdure.open_async("memory://") as db:
            result: Any = agent().run(db, session="s", message="hi")
            with pytest.raises(Misuse, match=r"it has no text yet: write `result = await agent\.run\(\.\.\.\)`"):
                print(result.text)
            # It is a coroutine in every other way.
            task = asyncio.create_task(agent().run(db, session="s", message="hi"))
            assert "run" in repr(task)
            assert (await task).text == "hello"
            one, other = await asyncio.gather(
                agent().run(db, session="t", message="hi"), agent().run(db, session="u", message="hi")
            )
            assert (one.status, other.status) == ("done", "done")

    asyncio.run(work())
    assert asyncio.run(agent().run("memory://", session="s", message="hi")).text == "hello"


def test_a_list_stands_where_a_model_goes() -> None:
    with pytest.raises(InvalidInput, match=r"model= is one model, not a list: .* Pass the first one"):
        agent(model=["gpt-4.1", "gpt-4.1-mini"])
    for wrong in (7, ScriptedModel, object()):
        with pytest.raises(InvalidInput, match=r"model= is the name of a model, .* or a client with an answer\(\)"):
            agent(model=wrong)


def test_an_option_of_a_tool_that_there_is_not() -> None:
    wrong: Any = {"if_unsur": "retry"}
    said = "tool has no option 'if_unsur': did you mean if_unsure"
    with pytest.raises(InvalidInput, match=said):
        tool(**wrong)
    with pytest.raises(InvalidInput, match=said):
        tool(print, **wrong)
    with pytest.raises(InvalidInput, match=said):
        Tool(print, **wrong)
    wrong = "name"
    with pytest.raises(InvalidInput, match="a tool is a function, not 'name': write @tool above one"):
        tool(wrong)


def test_a_key_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "HOLYSHEEP_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(InvalidInput, match=r"no key for openai: set the variable OPENAI_API_KEY, or pass api_key="):
        agent(model="gpt-4.1")
    with pytest.raises(InvalidInput, match="no key for holysheep: set the variable HOLYSHEEP_API_KEY"):
        agent(model=None, provider="holysheep")
    with pytest.raises(InvalidInput, match="no key for openai"):
        OpenAIModel("gpt-4.1")
    # These ask for none.
    assert agent(model="llama", provider="ollama").model.name == "llama"
    assert OpenAIModel("m", base_url="http://127.0.0.1:9/v1").name == "m"
    assert OpenAIModel("gpt-4.1", api_key="k").name == "gpt-4.1"


def test_a_provider_that_nobody_knows() -> None:
    with pytest.raises(
        InvalidInput, match=r"there is no provider 'opnai': did you mean openai\? There are holysheep, op"
    ):
        agent(model="gpt-4.1", provider="opnai")
    with pytest.raises(InvalidInput, match="or make a client with OpenAIModel"):
        agent(model="x", provider="mistral")


def test_a_tool_of_which_no_model_can_be_told() -> None:
    def anything(**kwargs: Any) -> None: ...

    def several(*args: Any) -> None: ...

    with pytest.raises(InvalidInput, match=r"tool anything takes \*\*kwargs, of which .*tool\(anything, schema="):
        agent(tools=[tool(anything)])
    with pytest.raises(InvalidInput, match=r"tool several takes \*args, of which no model can be told: declare"):
        agent(tools=[tool(several)])
    assert agent(tools=[tool(anything, schema={"type": "object"})]).tools


def test_a_result_is_not_json() -> None:
    def look() -> Any:
        return object()

    with (
        perdure.open("memory://") as db,
        db.session("s") as s,
        pytest.raises(NotJson, match=r"is a object, .* look was done \(effect ef_\w+\) and its result is lost. Have"),
    ):
        s.call(look)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:/agents.db", "did you mean sqlite:///relative.db or sqlite:////absolute.db"),
        ("sqlite:agents.db", "did you mean sqlite:///relative.db"),
        ("sqllite:///agents.db", "did you mean sqlite:///relative.db"),
        ("file:/folder", "did you mean file:///absolute/folder"),
        ("postgre://host/db", "did you mean postgresql://host/database"),
        ("postgresql+asyncpg://host/db", "did you mean postgresql://host/database"),
        ("postgres:/host/db.sqlite", "did you mean postgresql://host/database"),
        ("mysql://host/db", "there is no store 'mysql': known are memory://"),
        ("mongodb:x.db", "names no store: use one of memory://"),
    ],
)
def test_a_store_that_there_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    for opened in (perdure.open, perdure.open_async):
        with pytest.raises(UnknownStore) as e:
            opened(url)
        assert said in str(e.value)
    with pytest.raises(UnknownStore):
        agent().run_sync(url, session="s", message="hi")
    assert list(tmp_path.iterdir()) == []
