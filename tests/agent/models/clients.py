"""What the tests of clients share: a client that does not wait, and questions."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.agent.models import Answer, Delta, Request
from perdure.agent.models.openai import OpenAIModel
from perdure.agent.models.retry import Retry, Waiting

KEY = "sk-test-0123456789abcdef"
TOOLS = [
    {
        "name": name,
        "description": f"Look up the {name}.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
    for name in ("weather", "time")
]


class Time:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.now = 0.0

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


def client(url: str, *, retry: Retry | None = None, api: str = "chat", **more: Any) -> tuple[OpenAIModel, Time]:
    """A client of the server there, and the time it lives in."""
    model = OpenAIModel("m", provider="openai", base_url=url, api_key=KEY, api=api, retry=retry, **more)
    time = Time()
    model.waiting = Waiting(time.sleep, time.monotonic, lambda: 1.0)
    return model, time


def request(*messages: dict[str, Any], tools: list[dict[str, Any]] | None = None, **params: Any) -> Request:
    """A request; without messages somebody asks for the weather."""
    said = list(messages) or [{"role": "user", "content": "How is the weather in Paris?"}]
    return Request("m", said, tools or [], params)


def ask(model: OpenAIModel, asked: Request, *, stream: bool = False) -> tuple[Answer, list[Delta]]:
    """The answer, and what was told of it on its way."""
    told: list[Delta] = []

    async def once() -> Answer:
        try:
            return await model.answer(asked, told.append if stream else None)
        finally:
            await model.close()

    return asyncio.run(once()), told
