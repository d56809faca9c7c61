"""The client against llmock, a server with OpenAI's API that is not ours: answers, calls, faults, and its verdict."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure import Event, Price
from perdure.agent.agent import Agent
from perdure.agent.models import request_digest
from perdure.agent.models.openai import OpenAIModel
from perdure.agent.models.retry import Retry
from perdure.agent.requests import rebuild
from perdure.errors import ContextTooLong, ModelError, ModelUnavailable
from tests.agent.models.canned import canned, chunk, events, http
from tests.agent.models.clients import TOOLS, ask, client, request
from tests.servers.llmock import KEY, base_url, forget, plan, reply, requests, start_llmock, verdict
from tests.servers.process import Running, free_port, stop

if TYPE_CHECKING:
    from collections.abc import Iterator

TWO = reply(None, ("weather", {"city": "Genève"}), ("time", {"city": "Paris, a long way from there"}))


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    server = start_llmock("--context-window", "3000")
    yield server
    stop(server)


@pytest.fixture
def server(running: Running) -> Running:
    forget(running)
    return running


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_in_text(server: Running, api: str, stream: bool):
    plan(server, reply("It is raining in Genève."))
    answer, told = ask(client(base_url(server), api=api)[0], request(), stream=stream)
    assert answer.message["content"] == "It is raining in Genève."
    assert answer.finish == "stop"
    assert answer.usage.input > 0
    assert answer.usage.output > 0
    assert (answer.model, answer.calls) == ("m", ())
    if stream:
        assert "".join(d.text for d in told) == answer.message["content"]
        assert len(told) > 1
    assert verdict(server)["passed"]


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_parallel_calls_streamed_are_those_in_one_piece(server: Running, api: str):
    plan(server, TWO, TWO)
    whole, _ = ask(client(base_url(server), api=api)[0], request(tools=TOOLS))
    streamed, told = ask(client(base_url(server), api=api)[0], request(tools=TOOLS), stream=True)
    assert [(c.name, c.arguments) for c in streamed.calls] == [(c.name, c.arguments) for c in whole.calls]
    assert [c.name for c in streamed.calls] == ["weather", "time"]
    assert len({c.id for c in streamed.calls}) == 2
    assert whole.finish == streamed.finish == "tool_calls"
    assert whole.message["content"] is streamed.message["content"] is None
    for n, call in enumerate(streamed.calls):
        pieces = [d for d in told if d.call == n]
        assert "".join(d.arguments for d in pieces) == call.arguments
        assert [d.name for d in pieces if d.name] == [call.name]
    assert any(len([d for d in told if d.call == n and d.arguments]) > 1 for n in (0, 1))


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_an_agent_calls_tools_and_goes_on(server: Running, api: str):
    plan(server, TWO, reply("Rain, and noon."))

    @perdure.tool(read=True)
    def weather(city: str) -> str:
        "Look up the weather."
        return f"rain in {city}"

    @perdure.tool(read=True)
    def time(city: str) -> str:
        "Look up the time."
        return "noon"

    model, _ = client(base_url(server), api=api)
    agent = Agent("guide", model=model, tools=[weather, time], instructions="Be brief.")
    done = agent.run_sync("memory://", session="s", message="Rain?")
    assert (done.status, done.text) == ("done", "Rain, and noon.")
    sent = requests(server)[-1]["body"]
    said = sent["messages"] if api == "chat" else sent["input"]
    results = [m.get("content", m.get("output")) for m in said if m.get("role") == "tool" or "output" in m]
    assert results == ["rain in Genève", "noon"]
    assert verdict(server)["passed"]


def test_429_with_retry_after_is_waited_for(server: Running):
    plan(server, {"type": "fail", "status": 429, "retry_after": 7, "times": 2}, reply("at last"))
    model, time = client(base_url(server))
    answer, _ = ask(model, request())
    assert answer.message["content"] == "at last"
    assert len(time.waits) == 2
    assert all(7 <= w < 8 for w in time.waits)
    assert [r["status"] for r in requests(server)] == [429, 429, 200]


def test_the_server_is_satisfied_with_how_long_it_was_left_alone(server: Running):
    # In real time, since it is the server here who looks at the clock.
    plan(server, {"type": "fail", "status": 429, "retry_after": 0.3, "times": 2}, reply("at last"))
    model = OpenAIModel("m", provider="openai", base_url=base_url(server), api_key=KEY, retry=Retry(first=0.05))
    answer, _ = ask(model, request())
    assert answer.message["content"] == "at last"
    seen = verdict(server)
    assert seen["passed"], seen
    assert not seen["warnings"], seen


@pytest.mark.parametrize("status", [408, 409, 500, 502, 503, 529])
def test_what_may_pass_is_tried_again(server: Running, status: int):
    plan(server, {"type": "fail", "status": status}, reply("at last"))
    model, time = client(base_url(server))
    assert ask(model, request())[0].message["content"] == "at last"
    assert len(time.waits) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_will_not_pass_is_not_tried_again(server: Running, status: int):
    plan(server, {"type": "fail", "status": status, "message": f"no, because {KEY} is not\n welcome"})
    model, time = client(base_url(server))
    with pytest.raises(ModelError, match=f"answered {status}: no, because … is not welcome") as e:
        ask(model, request())
    assert KEY not in repr(e.value)
    assert e.value.__cause__ is None
    assert e.value.__context__ is None
    assert time.waits == []
    assert len(requests(server)) == 1


def test_a_storm_ends(server: Running):
    plan(server, {"type": "fail", "status": 429, "times": None})
    model, time = client(base_url(server), retry=Retry(attempts=4))
    with pytest.raises(ModelUnavailable, match="after 4 attempts"):
        ask(model, request())
    # The server asks for one second each time; our own patience grows.
    assert len(time.waits) == 3
    assert time.waits == sorted(time.waits)
    assert time.waits[-1] == 2.0
    assert len(requests(server)) == 4


def test_a_request_beyond_the_window_is_too_long(server: Running):
    model, time = client(base_url(server))
    with pytest.raises(ContextTooLong, match="maximum context length"):
        ask(model, request({"role": "user", "content": "word " * 20_000}))
    assert time.waits == []


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("kind", ["disconnect", "truncate", "malformed"])
def test_a_stream_that_breaks_is_begun_anew(server: Running, api: str, kind: str):
    text = "one two three four five six"
    plan(server, {"type": "stream_fault", "kind": kind, "after_chunks": 7}, reply(text), reply(text))
    answer, told = ask(client(base_url(server), api=api)[0], request(), stream=True)
    assert answer.message["content"] == text
    restarts = [i for i, d in enumerate(told) if d.restart]
    assert len(restarts) == 1
    assert "".join(d.text for d in told[: restarts[0]])
    assert "".join(d.text for d in told[restarts[0] :]) == text
    assert verdict(server)["passed"]


def test_a_stream_that_stalls_is_begun_anew(server: Running):
    plan(
        server,
        {"type": "stream_fault", "kind": "stall", "stall_seconds": 60, "after_chunks": 2},
        reply("a b"),
        reply("a b"),
    )
    answer, told = ask(client(base_url(server), timeout=2)[0], request(), stream=True)
    assert answer.message["content"] == "a b"
    assert any(d.restart for d in told)


def test_calls_cut_off_in_the_middle_are_not_made(server: Running):
    plan(server, {"type": "stream_fault", "kind": "truncate", "after_chunks": 3}, TWO, TWO)
    answer, told = ask(client(base_url(server))[0], request(tools=TOOLS), stream=True)
    assert [c.name for c in answer.calls] == ["weather", "time"]
    assert [c.arguments for c in answer.calls] == [
        '{"city": "Gen\\u00e8ve"}',
        '{"city": "Paris, a long way from there"}',
    ]
    assert any(d.restart for d in told)


@pytest.mark.parametrize("kind", ["malformed_arguments", "unknown_tool"])
def test_a_broken_call_goes_back_to_the_model_as_data(server: Running, kind: str):
    plan(server, {"type": "tool_fault", "kind": kind}, reply(None, ("weather", {"city": "Paris"})), reply("sorry"))

    @perdure.tool(read=True)
    def weather(city: str) -> str:
        "Look up the weather."
        raise AssertionError("it was called all the same")

    agent = Agent("guide", model=client(base_url(server))[0], tools=[weather])
    done = agent.run_sync("memory://", session="s", message="Rain?")
    assert (done.status, done.text) == ("done", "sorry")
    assert "error" in requests(server)[-1]["body"]["messages"][-1]["content"]


def test_a_reader_of_the_stream_is_told_what_is_void(server: Running):
    plan(server, {"type": "stream_fault", "kind": "disconnect", "after_chunks": 3}, reply("a b c d"), reply("a b c d"))
    agent = Agent("guide", model=client(base_url(server))[0])

    async def listen() -> list[perdure.Event]:
        try:
            return [e async for e in agent.stream("memory://", session="s", message="hi")]
        finally:
            await agent.close()

    seen = asyncio.run(listen())
    kinds = [e.kind for e in seen if e.kind in ("delta", "retracted", "committed")]
    cut = kinds.index("retracted")
    assert kinds.count("retracted") == 1
    assert 0 < cut < len(kinds) - 1
    last = [e for e in seen if e.kind == "delta" and e.data["attempt"] == 2]
    assert "".join(e.data["text"] for e in last) == "a b c d"
    assert last[0].data["offset"] == 0


FIRST: dict[str, bytes] = {
    "is not there": b"",
    "refuses the key": http({"error": {"message": "who are you?"}}, 401),
    "does not know the model": http({"error": {"message": "no such model"}}, 404),
    "has nothing left to spend": http({"error": {"message": "pay", "code": "insufficient_quota"}}, 429),
    "is too busy": http({"error": {"message": "busy"}}, 503),
    "talks nonsense": http({"choices": []}),
    "breaks off": events(chunk({"content": "It is ra"}), cut=b"data: {"),
}


@pytest.mark.parametrize("what", FIRST)
def test_the_next_one_answers_where_one_cannot(server: Running, what: str):
    plan(server, reply("Rain."))
    with canned(FIRST[what]) as ailing, perdure.open("memory://next") as db:
        url = ailing.url if what != "is not there" else f"http://127.0.0.1:{free_port()}/v1"
        first, _ = client(url, seed=1, prices={"m": Price(100.0, 100.0)})
        second = OpenAIModel(
            "well", base_url=base_url(server), api_key=KEY, top_p=0.5, prices={"well": Price(2.0, 8.0)}
        )
        agent = Agent("guide", model=[first, second], params={"temperature": 0.1})

        async def listen() -> list[Event]:
            return [e async for e in agent.stream("memory://next", session="s", message="Rain?")]

        told = asyncio.run(listen())
        done = told[-1].data["result"]
        assert (done.status, done.text) == ("done", "Rain.")
        assert any("custom/well is asked: openai/m could not answer (" in note for note in done.notes), done.notes
        retracted = max((i for i, e in enumerate(told) if e.kind == "retracted"), default=-1)
        assert "".join(e.data["text"] for e in told[retracted + 1 :] if e.kind == "delta") == "Rain."
        about = next(c.more for c in db.history("s") if "model" in c.more)
        assert (about["model"]["name"], about["model"]["provider"]) == ("well", "custom")
        assert "openai/m could not answer" in about["note"]
        sent_to = requests(server)[-1]
        assert sent_to["body"]["top_p"] == 0.5
        assert "seed" not in sent_to["body"]
        usage = about["usage"]
        assert done.spent.cost == usage["cost"] == round((usage["input"] * 2.0 + usage["output"] * 8.0) / 1e6, 12) > 0
        # What is recorded is what was sent.
        sent = rebuild(db, "s", done.step)
        assert (sent.model, sent.params) == ("well", {"temperature": 0.1, "top_p": 0.5})
        assert request_digest(sent) == about["model"]["request"]
