"""Responses: reasoning goes back sealed as it came, nothing is kept there, other clients' words are understood."""

from __future__ import annotations

from typing import Any

import pytest

import perdure
from perdure.agent.agent import Agent
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.errors import ContextTooLong, ModelError, ModelUnavailable, RequestRefused
from tests.agent.models.canned import canned, events, http
from tests.agent.models.clients import TOOLS, ask, client, request

RAW = '{"city":  "Paris"}'
REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "encrypted_content": "gAAAAB-sealed",
    "unknown": {"a": 1},
}
ITEMS = [
    REASONING,
    {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Let me see.", "annotations": [{"type": "x"}], "logprobs": []}],
        "phase": "commentary",
    },
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "weather",
        "arguments": RAW,
        "status": "completed",
    },
]
USAGE = {
    "input_tokens": 20,
    "input_tokens_details": {"cached_tokens": 16},
    "output_tokens": 9,
    "output_tokens_details": {"reasoning_tokens": 5},
}


def response(*output: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A response with these items."""
    about = {"id": "resp_1", "object": "response", "status": "completed", "model": "m-2026-01-01", "error": None}
    return {**about, "output": list(output), "usage": USAGE, **more}


def said(text: str) -> dict[str, Any]:
    """An item that says something."""
    return {"type": "message", "id": "msg_9", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


@perdure.tool(read=True)
def weather(city: str) -> str:
    "Look up the weather."
    return f"rain in {city}"


def test_an_answer_is_understood_and_kept():
    with canned(http(response(*ITEMS))) as server:
        answer, _ = ask(client(server.url, api="responses")[0], request(tools=TOOLS))
        sent = server.heard[0].json
    assert server.heard[0].path == "/v1/responses"
    assert sent["store"] is False
    assert sent["include"] == ["reasoning.encrypted_content"]
    assert [t["name"] for t in sent["tools"]] == ["weather", "time"]
    assert answer.message["content"] == "Let me see."
    assert answer.message["perdure"] == {"items": ITEMS}
    assert [tuple(c) for c in answer.calls] == [("call_1", "weather", RAW)]
    assert tuple(answer.usage) == (20, 9, 16, 5)
    assert (answer.finish, answer.id, answer.model) == ("tool_calls", "resp_1", "m-2026-01-01")


def test_the_items_are_sent_back_as_they_came():
    with canned(http(response(*ITEMS)), http(response(said("Rain.")))) as server:
        agent = Agent("guide", model=client(server.url, api="responses")[0], tools=[weather], instructions="Be brief.")
        done = agent.run_sync("memory://", session="s", message="hi")
        assert done.text == "Rain."
        first, second = (h.json["input"] for h in server.heard)
    assert first == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    result = {"type": "function_call_output", "call_id": "call_1", "output": "rain in Paris"}
    assert second == [*first, *ITEMS, result]


def test_a_streamed_answer_is_the_one_in_one_piece():
    with canned(http(response(*ITEMS))) as server:
        whole, _ = ask(client(server.url, api="responses")[0], request())
    stream = [
        {"type": "response.created", "response": response(status="in_progress")},
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning"}},
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "Hm."},
        {"type": "response.output_item.added", "output_index": 1, "item": {"type": "message"}},
        {"type": "response.output_text.delta", "output_index": 1, "delta": "Let me "},
        {"type": "response.output_text.delta", "output_index": 1, "delta": "see."},
        {"type": "response.output_item.added", "output_index": 2, "item": {"type": "function_call", "name": "weather"}},
        {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": RAW[:5]},
        {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": RAW[5:]},
        {"type": "response.completed", "response": response(*ITEMS)},
    ]
    with canned(events(*stream, done=False)) as server:
        streamed, told = ask(client(server.url, api="responses")[0], request(), stream=True)
    assert streamed == whole
    assert "".join(d.text for d in told) == "Let me see."
    assert "".join(d.reasoning for d in told) == "Hm."
    assert [(d.call, d.name, d.arguments) for d in told if d.call >= 0] == [
        (0, "weather", ""),
        (0, "", RAW[:5]),
        (0, "", RAW[5:]),
    ]
    done = [{"type": "response.output_item.done", "output_index": n, "item": i} for n, i in enumerate(ITEMS)]
    with canned(events(*done, {"type": "response.completed", "response": response()}, done=False)) as server:
        assert ask(client(server.url, api="responses")[0], request(), stream=True)[0] == whole


def test_a_stream_without_an_end_is_begun_anew():
    text = {"type": "response.output_text.delta", "output_index": 0, "delta": "Ra"}
    good = events(text, {"type": "response.completed", "response": response(said("Rain."))})
    with canned(events(text, done=False), good) as server:
        answer, told = ask(client(server.url, api="responses")[0], request(), stream=True)
    assert answer.message["content"] == "Rain."
    assert [d.restart for d in told] == [False, True, False]


def test_a_model_that_does_not_reason_is_asked_without():
    no = http({"error": {"message": "Encrypted content is not supported with this model."}}, 400)
    with canned(no, http(response(said("Rain.")))) as server:
        model, _ = client(server.url, api="responses")
        assert ask(model, request())[0].message["content"] == "Rain."
        assert ask(model, request())[0].message["content"] == "Rain."
        assert ["include" in h.json for h in server.heard] == [True, False, False]


@pytest.mark.parametrize(
    ("why", "finish"), [("max_output_tokens", "length"), ("content_filter", "content_filter"), (None, "length")]
)
def test_an_answer_that_was_not_finished_says_so(why: str | None, finish: str):
    cut = response(REASONING, status="incomplete", incomplete_details={"reason": why})
    with canned(http(cut)) as server:
        assert ask(client(server.url, api="responses")[0], request())[0].finish == finish


def test_a_refusal_is_an_answer():
    no = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]}
    with canned(http(response(no))) as server:
        answer, _ = ask(client(server.url, api="responses")[0], request())
    assert (answer.message["content"], answer.message["refusal"]) == (None, "I will not.")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": "server_error", "message": "oops"}, ModelUnavailable),
        ({"code": "rate_limit_exceeded", "message": "slow"}, ModelUnavailable),
        ({"code": "context_length_exceeded", "message": "long"}, ContextTooLong),
        ({"code": "invalid_prompt", "type": "invalid_request_error", "message": "bad"}, RequestRefused),
    ],
)
def test_a_failure_inside_an_answer(error: dict[str, Any], kind: type[ModelError], stream: bool):
    failed = response(status="failed", error=error)
    answer = events({"type": "response.failed", "response": failed}) if stream else http(failed)
    with canned(answer) as server, pytest.raises(kind) as e:
        ask(client(server.url, api="responses")[0], request(), stream=stream)
    assert type(e.value) is kind


@pytest.mark.parametrize("bad", [{}, {"output": None}, {"output": [7]}, response(), response(REASONING)])
def test_garbage_is_tried_again_and_then_given_up(bad: dict[str, Any]):
    with canned(http(bad)) as server:
        with pytest.raises(ModelError, match="after 3 attempts"):
            ask(client(server.url, api="responses")[0], request())
        assert len(server.heard) == 3


def test_what_another_client_said_is_understood():
    """A session goes on with another model and another API than it began with."""
    script = ScriptedModel([calls(("weather", {"city": "Paris"}), text="Let me see."), "Rain."])
    with canned(http(response(said("Still rain.")))) as server, perdure.open("memory://mixed"):
        Agent("guide", model=script, tools=[weather]).run_sync("memory://mixed", session="s", message="hi")
        agent = Agent("guide", model=client(server.url, api="responses")[0], tools=[weather])
        assert agent.run_sync("memory://mixed", session="s", message="And now?").text == "Still rain."
        items = server.heard[0].json["input"]
    assert [i.get("type", i.get("role")) for i in items] == [
        "user", "assistant", "function_call", "function_call_output", "assistant", "user",
    ]  # fmt: skip
    assert items[2]["call_id"] == items[3]["call_id"]


def test_parameters_are_translated():
    asked = request(
        max_tokens=5,
        reasoning_effort="low",
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
        tool_choice={"type": "function", "function": {"name": "weather"}},
        temperature=0,
    )
    with canned(http(response(said("x")))) as server:
        ask(client(server.url, api="responses")[0], asked)
        sent = server.heard[0].json
    assert sent["max_output_tokens"] == 5
    assert sent["reasoning"] == {"effort": "low"}
    assert sent["text"] == {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}
    assert sent["tool_choice"] == {"type": "function", "name": "weather"}
    assert not {"max_tokens", "reasoning_effort", "response_format"} & set(sent)
