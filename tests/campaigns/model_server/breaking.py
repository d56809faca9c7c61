"""The client when the server streams several calls at once, sends it away, or breaks off in the middle."""

from __future__ import annotations

import asyncio
import json
import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.agent.agent import Agent
from perdure.agent.models import Delta, Request
from perdure.agent.models.openai import OpenAIModel
from perdure.agent.models.retry import Retry
from perdure.opening import open_async
from tests.agent.models.clients import TOOLS, request
from tests.campaigns.model_server.scene import settled
from tests.servers.llmock import KEY, base_url, forget, plan, reply, requests, verdict

if TYPE_CHECKING:
    from tests.servers.process import Running

CUTS = ("disconnect", "truncate", "malformed", "stall")
SLACK = 0.05
"""Seconds by which the server's clock may be coarser than ours."""


class Counted(NamedTuple):
    """What was tried, and how much of it went as it should."""

    what: str
    tried: int
    fine: int
    more: str = ""

    @property
    def ok(self) -> bool:
        """Whether all went well."""
        return 0 < self.tried == self.fine

    def __str__(self) -> str:
        return f"  {self.what:44}{self.fine} of {self.tried}{f'   {self.more}' if self.more else ''}"


def model_of(server: Running, api: str, **options: Any) -> OpenAIModel:
    """A client in real time."""
    return OpenAIModel(
        "m", provider="openai", base_url=base_url(server), api_key=KEY, api=api, retry=Retry(first=0.05), **options
    )


def parallel_calls(server: Running, api: str, answers: int, rng: random.Random) -> Counted:
    """Answers of several calls each, streamed in pieces: each call must come out as the server meant it."""
    fine = pieces = total = 0
    for _ in range(answers):
        wanted = [_call(rng) for _ in range(rng.randint(2, 6))]
        forget(server)
        plan(server, reply(rng.choice((None, "One moment, please.")), *wanted))
        told: list[Delta] = []
        answer = _ask(model_of(server, api), request(tools=TOOLS), told)
        total += len(wanted)
        pieces += sum(d.call >= 0 for d in told)
        named = [(c.name, json.loads(c.arguments)) for c in answer.calls]
        together = all(
            "".join(d.arguments for d in told if d.call == n) == c.arguments for n, c in enumerate(answer.calls)
        )
        if named == wanted and together and len({c.id for c in answer.calls}) == len(wanted):
            fine += len(wanted)
    return Counted("calls streamed side by side", total, fine, f"in {answers} answers, {pieces} pieces")


def sent_away(server: Running, api: str, asked: list[float]) -> Counted:
    """429 with Retry-After: the server's own clock says how long it was left alone."""
    waits: list[str] = []
    fine = 0
    for seconds in asked:
        forget(server)
        plan(server, {"type": "fail", "status": 429, "retry_after": seconds, "times": 2}, reply("at last"))
        answer = _ask(model_of(server, api), request(), [])
        gaps = [b["started_at"] - a["ended_at"] for a, b in pairwise(requests(server))]
        kept = len(gaps) == 2 and all(g >= seconds - SLACK for g in gaps)
        fine += kept and answer.message["content"] == "at last" and bool(verdict(server)["passed"])
        waits.append(f"{seconds:g} s: {', '.join(f'{g:.2f}' for g in gaps)}")
    return Counted("429 with Retry-After, waited for", len(asked), fine, "; ".join(waits))


def cut_off(server: Running, api: str, after: list[int]) -> Counted:
    """A stream that breaks: the reader is told what is void, and the session holds the whole answer, once."""
    fine = void = tried = 0
    text = "one two three four five six seven eight"
    for kind in CUTS:
        for chunks in after:
            tried += 1
            forget(server)
            fault = {"type": "stream_fault", "kind": kind, "after_chunks": chunks, "stall_seconds": 30}
            plan(server, fault, reply(text), reply(text))
            events, messages = asyncio.run(_stream(server, api))
            void += sum(e["kind"] == "retracted" for e in events)
            seen = settled(events)
            held = [m["content"] for m in messages if m["role"] == "assistant"]
            fine += seen == (text, True) and held == [text] and bool(verdict(server)["passed"])
    return Counted("streams cut in the middle, recovered", tried, fine, f"{void} attempts retracted")


async def _stream(server: Running, api: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    agent = Agent("guide", model=model_of(server, api, timeout=2.0))
    try:
        async with open_async("memory://") as db:
            stream = agent.stream(db, session="s", message="hello")
            events = [{"kind": e.kind, **e.data} async for e in stream]
            return events, (await db.read("s")).plain()["messages"]
    finally:
        await agent.close()


def _ask(model: OpenAIModel, asked: Request, told: list[Delta]) -> Any:
    async def once() -> Any:
        try:
            return await model.answer(asked, told.append)
        finally:
            await model.close()

    return asyncio.run(once())


def _call(rng: random.Random) -> tuple[str, dict[str, Any]]:
    words = ("Genève", "São Tomé", 'a "quoted" place', "back\\slash", "東京", "x" * rng.randint(1, 200), "")
    return rng.choice(("weather", "time")), {"city": " ".join(rng.choices(words, k=rng.randint(1, 4)))}
