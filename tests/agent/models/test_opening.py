"""A model by name: providers, the SDK that is imported with the first question only, and loops that come and go."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from perdure.agent.agent import Agent
from perdure.agent.models import Request
from perdure.agent.models.openai import OpenAIModel
from perdure.agent.models.scripted import ScriptedModel
from perdure.errors import InvalidInput
from tests.agent.models.canned import canned, completion, http

FINE = http(completion({"content": "fine"}))


def run(code: str) -> str:
    """What a new interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_agent_with_the_name_of_a_model_is_made_without_the_sdk():
    code = """
import os, sys
from perdure.agent.agent import Agent
os.environ["HOLYSHEEP_API_KEY"] = "k"
a = Agent("support", model="deepseek-v3.2", provider="holysheep")
print(repr(a.model), "openai" in sys.modules, "httpx2" in sys.modules)
"""
    assert run(code) == "<OpenAIModel deepseek-v3.2 of holysheep at https://api.holysheep.ai/v1> False False"


def test_a_missing_sdk_names_what_to_install():
    code = """
import asyncio, sys
sys.modules["openai"] = None
from perdure.agent.models import Request
from perdure.agent.models.openai import OpenAIModel
from perdure.errors import MissingExtra
try:
    asyncio.run(OpenAIModel("m", provider="ollama").answer(Request("m", [], [], {})))
except MissingExtra as e:
    print(e)
"""
    assert run(code) == 'openai is not installed: pip install "perdure[agent]"'


def test_a_provider_alone_has_a_default_model(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOLYSHEEP_API_KEY", "k")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert Agent("a", provider="holysheep").model.name == "deepseek-v3.2"
    assert Agent("a", model="gpt-4.1").model.name == "gpt-4.1"


def test_an_agent_needs_one_model():
    with pytest.raises(InvalidInput, match="needs a model"):
        Agent("a")
    with pytest.raises(InvalidInput, match="goes with the name of a model"):
        Agent("a", model=ScriptedModel(["x"]), provider="openai")
    with pytest.raises(InvalidInput, match="there are holysheep, openai, deepseek"):
        Agent("a", model="m", provider="acme")


def test_the_key_comes_from_the_variable_of_the_provider(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOLYSHEEP_API_KEY", "hs-1234567890\n")
    with canned(FINE) as server:
        model = OpenAIModel(provider="holysheep", base_url=server.url)
        assert Agent("a", model=model).run_sync("memory://", session="s", message="hi").text == "fine"
        assert server.heard[0].headers["authorization"] == "Bearer hs-1234567890"
        assert server.heard[0].json["model"] == "deepseek-v3.2"


def test_openai_is_asked_where_its_variable_says(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1234567890")
    monkeypatch.setenv("HOLYSHEEP_API_KEY", "hs-1234567890")
    with canned(FINE) as server, canned(FINE) as other:
        monkeypatch.setenv("OPENAI_BASE_URL", f" {server.url} ")
        for agent in (Agent("a", model="m"), Agent("a", model="m", provider="openai")):
            assert agent.run_sync("memory://", session="s", message="hi").text == "fine"
        assert [h.headers["authorization"] for h in server.heard] == ["Bearer sk-1234567890"] * 2
        # What is said to the agent comes first, and another provider is another one.
        Agent("a", model="m", base_url=other.url, api_key="k").run_sync("memory://", session="s", message="hi")
        Agent("a", model="m", provider="openai", base_url=other.url).run_sync("memory://", session="s", message="hi")
        assert [h.headers["authorization"] for h in other.heard] == ["Bearer k", "Bearer sk-1234567890"]
        assert "api.holysheep.ai" in repr(Agent("a", model="m", provider="holysheep").model)
        assert not OpenAIModel("m").strict_output
        monkeypatch.delenv("OPENAI_API_KEY")
        with pytest.raises(
            InvalidInput, match=r"OPENAI_API_KEY, or pass api_key= \(any word, if http://127.* for none\)"
        ):
            Agent("a", model="m")
    monkeypatch.setenv("OPENAI_BASE_URL", "localhost:8000")
    with pytest.raises(InvalidInput, match="the variable OPENAI_BASE_URL must be an address"):
        Agent("a", model="m")
    monkeypatch.setenv("OPENAI_BASE_URL", "")
    assert "api.openai.com" in repr(OpenAIModel("m", api_key="k"))


def test_an_address_alone_names_no_model():
    with pytest.raises(InvalidInput, match=r"an agent needs a model: .* base_url= alone name"):
        Agent("a", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(InvalidInput, match="'  ' is no name of a model"):
        Agent("a", model="  ")


def test_one_agent_runs_in_one_loop_after_another():
    with canned(FINE) as server:
        agent = Agent("a", model=OpenAIModel("m", base_url=server.url, temperature=0.1))
        for n in range(3):
            assert agent.run_sync("memory://", session="s", message=str(n)).text == "fine"
        assert all(h.json["temperature"] == 0.1 for h in server.heard)


def test_connections_are_closed_when_the_last_request_is_answered():
    async def main() -> None:
        model = OpenAIModel("m", base_url=server.url)
        asked = [asyncio.create_task(model.answer(Request("m", [], [], {}))) for _ in range(3)]
        while not server.heard:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await model.close()
        assert [a.message["content"] for a in await asyncio.gather(*asked)] == ["fine"] * 3
        assert (await model.answer(Request("m", [], [], {}))).message["content"] == "fine"
        await model.close()

    with canned(FINE) as server:
        asyncio.run(main())


def test_passwords_in_an_address_are_not_shown():
    assert "secret" not in repr(OpenAIModel("m", base_url="https://ana:secret@host/v1?api_key=secret"))
