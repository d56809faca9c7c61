"""What a provider says is kept as it said it and sent back as it was, whoever sends it, in the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.agent.agent import Agent
from tests.agent.models.canned import Canned, canned, chunk, completion, events, http, usage_chunk
from tests.agent.models.clients import KEY, ask, client, request

RAW = '{"city":  "Paris",\t"n": 1.0, "big": 123456789012345678901234567890}'
"""Arguments as no serialiser of ours would write them."""
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": RAW}}
REASONED = {
    "content": None,
    "reasoning_content": "The user wants rain. 😀",
    "reasoning_details": [
        {"type": "reasoning.text", "text": "The user wants rain.", "signature": "c2ln", "index": 0},
        {"type": "reasoning.encrypted", "data": "AAAA", "id": "rs_1", "index": 1},
    ],
    "refusal": None,
    "tool_calls": [CALL, {**CALL, "id": "call_2", "extra_content": {"google": {"thought_signature": "x"}}}],
}


def detail(index: int, **more: Any) -> dict[str, Any]:
    """A piece of the reasoning's details."""
    return {"reasoning_details": [{**more, "index": index}]}


def piece(index: int, arguments: str | None = None, **more: Any) -> dict[str, Any]:
    """A piece of a call."""
    asked = {"function": {"name": "weather", "arguments": arguments}} if arguments is not None else {}
    return chunk({"tool_calls": [{"index": index, **more, **asked}]})


PIECES = [
    chunk({"role": "assistant", "content": "", "refusal": None}),
    chunk({"reasoning_content": "The user ", **detail(0, type="reasoning.text", text="The ")}),
    chunk({"reasoning_content": "wants rain. ", **detail(0, text="user wants rain.")}),
    # One character in two halves, as some servers cut them.
    chunk({"reasoning_content": "\ud83d"}),
    chunk({"reasoning_content": "\ude00"}),
    chunk(detail(0, type="reasoning.text", signature="c2ln")),
    chunk(detail(1, type="reasoning.encrypted", data="AAAA", id="rs_1")),
    piece(0, "", id="call_1", type="function"),
    piece(0, RAW[:9]),
    piece(1, RAW[:30], id="call_2", type="function"),
    piece(0, RAW[9:], id=""),
    piece(1, RAW[30:], id=None),
    piece(1, extra_content={"google": {"thought_signature": "x"}}),
    chunk({}, "tool_calls"),
    usage_chunk(),
]


@perdure.tool(read=True)
def weather(city: str, n: float = 0, big: int = 0) -> str:
    "Look up the weather."
    return f"rain in {city}"


def test_a_streamed_message_is_the_one_in_one_piece():
    with canned(http(completion(REASONED, "tool_calls"))) as server:
        whole, _ = ask(client(server.url)[0], request())
    with canned(events(*PIECES)) as server:
        streamed, told = ask(client(server.url)[0], request(), stream=True)
    assert streamed == whole
    assert whole.message == {"role": "assistant", **REASONED}
    assert [c.arguments for c in whole.calls] == [RAW, RAW]
    assert whole.usage.input == 11
    assert (whole.id, whole.model, whole.fingerprint) == ("chatcmpl-1", "m-2026-01-01", "fp_1")
    assert "".join(d.reasoning for d in told) == REASONED["reasoning_content"]
    assert all(d.reasoning.encode() for d in told if d.reasoning)
    assert "".join(d.arguments for d in told if d.call == 0) == RAW
    assert "".join(d.arguments for d in told if d.call == 1) == RAW


def test_a_provider_that_insists_on_its_reasoning_gets_it_back():
    with canned(http(completion(REASONED, "tool_calls")), http(completion({"content": "Rain."}))) as server:
        agent = Agent("guide", model=client(server.url)[0], tools=[weather])
        assert agent.run_sync("memory://", session="s", message="hi").text == "Rain."
        first, second = (h.json["messages"] for h in server.heard)
        assert second[: len(first)] == first
        answered = second[len(first)]
        assert answered == {"role": "assistant", **REASONED}
        assert answered["tool_calls"][0]["function"]["arguments"] == RAW
        assert json.dumps(RAW).encode() in server.heard[1].body


@pytest.mark.parametrize("store", ["memory", "sqlite", "file"])
def test_what_was_said_survives_the_store(tmp_path: Path, store: str):
    url = {"memory": "memory://verbatim", "sqlite": f"sqlite:///{tmp_path}/a.db", "file": f"file://{tmp_path}/f"}[store]
    with canned(http(completion(REASONED, "tool_calls")), http(completion({"content": "Rain."}))) as server:
        agent = Agent("guide", model=client(server.url)[0], tools=[weather])
        with perdure.open(url) as db:
            agent.run_sync(url, session="s", message="hi")
            assert db.read("s").plain()["messages"][1] == {"role": "assistant", **REASONED}
            more = [c.more for c in db.history("s") if "model" in c.more][-1]
    assert more["model"]["finish"] == "tool_calls"
    assert more["model"]["id"] == "chatcmpl-1"
    assert more["model"]["fingerprint"] == "fp_1"
    assert more["model"]["version"] == "m-2026-01-01"
    assert more["usage"]["input"] == 11


SCRIPT = """
import asyncio, os, sys
import perdure
from perdure.agent.agent import Agent
from perdure.agent.models.openai import OpenAIModel
url, base, mark = sys.argv[1:]

@perdure.tool(read=True)
def weather(city: str, n: float = 0, big: int = 0) -> str:
    "Look up the weather."
    if mark and not os.path.exists(mark):
        open(mark, "w").close()
        os._exit(9)
    return f"rain in {city}"

model = OpenAIModel("m", provider="openai", base_url=base, api_key="k" * 20, temperature=0.2, seed=7)
agent = Agent("guide", model=model, tools=[weather], instructions="Be brief.")
agent.run_sync(url, session="s", message="hi", key="one", context={"region": "EU", "a": 1})
agent.run_sync(url, session="s", message="and now?", key="two", context={"region": "EU", "a": 1})
"""


def _live(server: Canned, url: str, mark: str) -> int:
    command = [sys.executable, "-c", SCRIPT, url, server.url, mark]
    # Another order of hashes in each life: nothing may depend on it.
    return subprocess.run(command, check=False, env={**os.environ, "PYTHONHASHSEED": "random"}).returncode


def test_the_bytes_of_requests_are_the_same_after_a_kill(tmp_path: Path):
    answers = [
        http(completion({**REASONED, "tool_calls": [CALL]}, "tool_calls")),
        http(completion({"content": "Rain."})),
        http(completion({"content": "Still rain."})),
    ]
    with canned(*answers) as whole:
        assert _live(whole, f"sqlite:///{tmp_path}/whole.db", "") == 0
    with canned(*answers) as killed:
        url, mark = f"sqlite:///{tmp_path}/killed.db", str(tmp_path / "mark")
        assert _live(killed, url, mark) == 9
        assert _live(killed, url, mark) == 0
    assert len(whole.heard) == 3
    assert [h.body for h in killed.heard] == [h.body for h in whole.heard]
    assert list(whole.heard[0].json) == [
            "model", "messages", "tools", "seed", "temperature", "stream", "stream_options",
        ]  # fmt: skip


def test_the_bytes_do_not_depend_on_the_order_of_parameters():
    sent: list[bytes] = []
    for params in ({"seed": 1, "temperature": 0.5}, {"temperature": 0.5, "seed": 1}):
        with canned(http(completion({"content": "x"}))) as server:
            ask(client(server.url)[0], request(**params))
            sent.append(server.heard[0].body)
    assert sent[0] == sent[1]


def test_fields_of_ours_are_not_sent():
    said = {"role": "user", "content": "hi", "pinned": True, "perdure": {"items": []}, "name": "ana"}
    with canned(http(completion({"content": "x"}))) as server:
        ask(client(server.url)[0], request(said))
        assert server.heard[0].json["messages"] == [{"role": "user", "content": "hi", "name": "ana"}]


def test_the_key_goes_into_one_header_and_nothing_of_openai_to_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_ORG_ID", "org-secret")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-secret")
    with canned(http(completion({"content": "x"}))) as server:
        ask(client(server.url)[0], request())
        heard = server.heard[0]
    assert heard.headers["authorization"] == f"Bearer {KEY}"
    assert KEY.encode() not in heard.body
    assert [h for h in heard.headers.values() if "secret" in h] == []


@pytest.mark.parametrize(
    ("call", "raw"),
    [
        ({"id": "", "type": "function", "function": {"name": "weather", "arguments": "{}"}}, "{}"),
        ({"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}, '{"city": "Paris"}'),
        ({"id": None, "function": {"name": "weather"}}, ""),
    ],
)
def test_calls_without_an_id_or_text_are_mended(call: dict[str, Any], raw: str):
    with canned(http(completion({"content": None, "tool_calls": [call, call]}, "tool_calls"))) as server:
        answer, _ = ask(client(server.url)[0], request())
    ids = [c.id for c in answer.calls]
    assert len(set(ids)) == 2
    assert all(ids)
    assert [c["id"] for c in answer.message["tool_calls"]] == ids
    assert [c["function"]["arguments"] for c in answer.message["tool_calls"]] == [raw, raw]
