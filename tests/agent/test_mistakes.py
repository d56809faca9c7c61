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
from perdure.agent.app_loader import load_app
from perdure.agent.models.openai import OpenAIModel
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.errors import InvalidInput, Misuse, NotJson, UnknownStore
from perdure.session.handle import UncommittedEdits
from perdure.session.tools.declaration import Tool

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


def test_run_sync_is_called_where_a_loop_runs_as_in_a_notebook() -> None:
    async def cell() -> None:
        with pytest.raises(Misuse, match=r"an event loop runs here already, .* `result = await agent\.run\(\.\.\.\)`"):
            agent().run_sync("memory://", session="s", message="hi")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(cell())
        gc.collect()


def test_an_option_of_an_agent_or_of_a_run_that_there_is_not() -> None:
    wrong: Any = {"tool": []}
    with pytest.raises(InvalidInput, match=r"Agent has no option 'tool': did you mean tools\? It has name, model"):
        agent(**wrong)
    wrong = {"mesage": "hi"}
    for run in (agent().run, agent().run_sync):
        with pytest.raises(InvalidInput, match=r"agent\.run has no option 'mesage': did you mean message\?"):
            run("memory://", session="s", **wrong)


def test_a_method_is_called_with_what_it_does_not_take() -> None:
    wrong: Any = perdure.submit
    with perdure.open("memory://") as db, db.session("s") as s:
        with pytest.raises(
            InvalidInput, match=r"^submit\(\.\.\.\): missing a required argument: 'agent': it takes session"
        ):
            wrong(db, "s", "hi")
        wrong = s
        with pytest.raises(
            InvalidInput, match=r"^commit\(\.\.\.\): got an unexpected keyword argument 'noted': it takes"
        ):
            wrong.commit(noted="x")
    with pytest.raises(perdure.errors.HandleClosed):
        db.look("s")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"notify": 5}, "notify is a URL"),
        ({"instructions": ["x"]}, r"instructions= of agent 'a' is text, or a function that gives it, not \['x'\]"),
        ({"tools": 5}, "tools= of agent 'a' is a list of functions or tools, not 5"),
        ({"tools": "len"}, "tools= of agent 'a' is a list of functions or tools, not 'len'"),
        ({"tools": ["len2"]}, "a tool is a function, not 'len2'"),
        ({"tools": [[print]]}, "a tool is a function, not"),
        ({"name": ""}, "an agent.s name must not be empty"),
    ],
)
def test_an_agent_is_made_of_something_else(options: dict[str, Any], said: str) -> None:
    wrong: Any = {"name": "a", "model": ScriptedModel(["hello"]), **options}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InvalidInput, match=said):
            Agent(**wrong)


def test_a_part_of_a_session_is_set_and_a_coroutine_is_kept() -> None:
    async def later() -> None: ...

    wrong: Any
    with perdure.open("memory://") as db, db.session("s") as wrong:
        with pytest.raises(
            Misuse, match=r"s\.messages is there to be read, .* set the whole, s\.state\['messages'\] = "
        ):
            wrong.messages = []
        with pytest.raises(Misuse, match=r"s\.id is there to be read, and cannot be set$"):
            wrong.id = "t"
        wrong.state["messages"] = [{"role": "user", "content": "hi"}]
        wrong.commit()
        assert len(wrong.messages) == 1
        wrong.vars["a"] = work = later()
        with pytest.raises(
            NotJson, match="is a coroutine, which is not a JSON type: it was not awaited: write `await`"
        ):
            wrong.commit()
        work.close()
        del wrong.vars["a"]


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


def test_something_else_stands_where_a_model_goes() -> None:
    # A list is one of models to fall back to: what can be wrong with it is in tests/agent/models/test_fallback.py.
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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"read": "no"}, "read= is True or False, not 'no'"),
        ({"approve": "yes"}, "approve= is True, False or a function of the arguments"),
        ({"timeout": -1}, "timeout= is more than 0 seconds"),
        ({"if_unsure": True}, "if_unsure= is one of retry, ask, report or a function"),
        ({"limit": "5"}, "limit= is a whole number, 1 or more, not '5'"),
        ({"limit": True}, "limit= is a whole number"),
        ({"poll": 3}, "poll= is a function, not 3"),
        ({"if_unsure": "retry", "key_valid_for": 0}, "key_valid_for= is more than 0 seconds"),
    ],
)
def test_an_option_of_a_tool_is_something_else(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Tool(len, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"window": 8000}, r"agent 'a': window= is .*perdure\.Window\(8000\), not 8000"),
        ({"max_turns": "5"}, "max_turns is a number of answers of the model, such as max_turns=20, not '5'"),
        ({"compactor": 3}, "compactor= is perdure.Compactor"),
        ({"params": [1]}, "params= is a dict such as"),
        ({"prices": 3}, r"agent 'a': prices= is a dict of perdure\.Price"),
        ({"prices": {"m": 3}}, r"prices\['m'\]= is a perdure\.Price\(input, output\) of numbers, not 3"),
    ],
)
def test_an_option_of_an_agent_is_something_else(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        agent(**options)


def at(**options: Any) -> perdure.OpenAIModel:
    return perdure.OpenAIModel(**{"model": "m", "base_url": "http://127.0.0.1:1/v1", **options})


@pytest.mark.parametrize(
    ("made", "options", "said"),
    [
        (at, {"model": ["a", "b"]}, r"is one model: give the agent the list, as in Agent\(\.\.\., model=\["),
        (at, {"model": 3}, "model= is text, not int"),
        (at, {"provider": 3}, "provider= is text, not int"),
        (at, {"base_url": 3}, "base_url= is text, not int"),
        (at, {"api_key": 3}, "api_key= is text, not int"),
        (at, {"timeout": "5"}, "timeout and connect_timeout are seconds, above 0, not '5'"),
        (at, {"connect_timeout": "x"}, "are seconds, above 0, not 60.0 and 'x'"),
        (at, {"retry": 3}, r"retry= is a perdure\.Retry\(\.\.\.\), such as perdure\.Retry\(attempts=3\), not 3"),
        (at, {"headers": ["x"]}, "headers= is a dict of text"),
        (at, {"headers": {"x": 3}}, "headers= is a dict of text"),
        (at, {"prices": {"m": perdure.Price("a", 2)}}, r"prices\['m'\]= is a perdure\.Price"),  # pyright: ignore[reportArgumentType]
        (perdure.Retry, {"attempts": 0}, "attempts= is a number of attempts, at least 1, not 0"),
        (perdure.Retry, {"attempts": "2"}, "attempts= is a number of attempts, at least 1, not '2'"),
        (perdure.Retry, {"garbage": None}, "garbage= is a number of attempts"),
        (perdure.Retry, {"silent": True}, "silent= is a number of attempts"),
        (perdure.Retry, {"first": "x"}, "first= is a time in seconds"),
        (perdure.Retry, {"most": -1}, "most= is a time in seconds"),
        (perdure.Retry, {"total": 0}, "total= is a time in seconds above 0"),
        (perdure.Window, {"max_tokens": "8000"}, "a budget of at least one token, not '8000'"),
        (perdure.Window, {"max_tokens": 8000, "low_water": "3"}, "low_water lies between 0 and max_tokens"),
        (perdure.Window, {"keep_recent": "3"}, "keep_recent is at least 1, not '3'"),
        (perdure.Window, {"pinned": 3}, "pinned= is a plain function"),
        (perdure.Window, {"count": 3}, "count= is a plain function"),
        (perdure.Window, {"recall": "no"}, "recall= is True or False, not 'no'"),
        (perdure.Window, {"max_token": 8000}, "Window has no option 'max_token': did you mean max_tokens"),
        (perdure.Compactor, {"every": "3"}, "every so many turns, at least 1, not '3'"),
        (perdure.Compactor, {"max_tokens": "3"}, "at least one token, not '3'"),
        (perdure.Compactor, {"instructions": 3}, "instructions= is text"),
        (perdure.Compactor, {"model": "gpt-5"}, r"model= is a client, such as OpenAIModel\(\.\.\.\), not 'gpt-5'"),
        (ScriptedModel, {"script": [], "name": 3}, "name= is the name that is recorded, not 3"),
        (ScriptedModel, {"script": [], "delay": "x"}, "delay= is how many seconds an answer takes, not 'x'"),
        (ScriptedModel, {"script": [], "nam": "x"}, "ScriptedModel has no option 'nam': did you mean name"),
    ],
)
def test_an_option_of_what_an_agent_is_made_of_is_something_else(made: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        made(**options)


def test_a_client_of_ones_own_has_no_name() -> None:
    class Mine:
        async def answer(self, request: object, on_delta: object = None) -> None: ...

    wrong: Any = Mine()
    with pytest.raises(InvalidInput, match=r"this Mine has none: set its name to text, as in self\.name = "):
        agent(model=wrong)


def test_options_are_given_without_their_names() -> None:
    wrong: Any = agent()
    said = r"\(\.\.\.\): too many positional arguments: it takes db, and by name session, message, "
    with pytest.raises(InvalidInput, match=rf"^agent\.run_sync{said}"):
        wrong.run_sync("memory://", "s", "hi")
    with pytest.raises(InvalidInput, match=rf"^agent\.stream{said}"):
        wrong.stream("memory://", "s", "hi")
    wrong = Agent
    with pytest.raises(InvalidInput, match=r"^Agent\(\.\.\.\): too many .*: it takes name, and by name model, "):
        wrong("a", ScriptedModel(["hello"]))
    wrong = perdure.Compactor
    with pytest.raises(InvalidInput, match=r"^Compactor\(\.\.\.\): too many .*: it takes by name model, every, "):
        wrong(3)


def test_a_script_is_no_list_and_a_call_no_pair() -> None:
    with pytest.raises(InvalidInput, match="script= is a list of answers"):
        ScriptedModel("hello")
    wrong: Any = ("pay", {})
    with pytest.raises(InvalidInput, match=r"a pair for each call, calls\(\(name, arguments\)"):
        calls(*wrong)


def test_the_context_of_a_call_has_another_name() -> None:
    @tool
    def pay(amount: int, context: perdure.Context) -> None: ...

    with pytest.raises(InvalidInput, match=r"is given to the parameter that is called ctx: rename it$"):
        agent(tools=[pay])


def test_something_is_set_that_a_session_does_not_have() -> None:
    with perdure.open("memory://") as db, db.session("s") as s:
        handle: Any = s
        with pytest.raises(Misuse, match=r"write s\.vars\['customer'\] = \.\.\."):
            handle.customer = "ana"


def test_a_read_that_must_be_awaited_is_called_in_a_session_that_blocks() -> None:
    @tool(read=True)
    async def look(a: int) -> int:
        return a

    with (
        perdure.open("memory://") as db,
        db.session("s") as s,
        pytest.raises(Misuse, match="look was not called: look is asynchronous"),
    ):
        s.call(look, 1)


def test_a_program_needs_a_module_that_is_not_there(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text("import os\nimport reqests\n")
    with pytest.raises(InvalidInput, match=r"No module named 'reqests' \(app\.py, line 2\): install reqests, or mend"):
        load_app(str(app))
    with pytest.raises(InvalidInput, match="name a Python file or module of yours"):
        load_app("reqests")


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
        pytest.raises(NotJson, match=r"is an object, .* look was done \(effect ef_\w+\) and its result is lost. Have"),
    ):
        s.call(look)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:/agents.db", "did you mean sqlite:///relative.db or sqlite:////absolute.db"),
        ("sqlite:agents.db", "did you mean sqlite:///relative.db"),
        ("/etc/passwd", "'/etc/passwd' names no store: use one of memory://"),
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
