"""A long session against a model server that is not ours: what it was sent, judged from the bytes of the requests."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.agent.context.compactor import Compactor
from perdure.agent.context.window import Window
from perdure.agent.models import Request
from perdure.agent.models.openai import OpenAIModel
from perdure.agent.requests import is_answer
from perdure.opening import open_async
from tests.agent.context.checker import extends, orphans
from tests.agent.context.scene import script, worker
from tests.campaigns.model_server.proxy import Proxy
from tests.servers.llmock import KEY, forget, plan, reply, requests

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers.process import Running

BUDGET = 4000
"""Tokens, as the server reports them with each answer."""
REFUSED = 6000
"""What the server refuses, by another count of its own, which takes the calls in as well."""
LOW = 1200
TASK = 50
"""Answers that a message of the user leads to."""
OLD = "fact-7"
"""What the model is to look up in the end, long after it was last shown."""


class Talked(NamedTuple):
    """What a long session came to."""

    how: str
    steps: int
    """Answers of the model."""
    summaries: int
    largest: int
    """Tokens of the largest request, as the server counts."""
    refused: int
    orphans: list[str]
    warm: float
    """The share of requests that extend the one before."""
    cached: float
    """The share of bytes of all requests that stood at the beginning of the one before."""
    hidden: int
    """Messages that are no longer shown in the end."""
    kept: bool
    """Whether every message of the user and every result can be read back."""
    recalled: bool
    """Whether the model found an old message again."""

    @property
    def ok(self) -> bool:
        """Whether it is as promised."""
        judged = self.largest <= BUDGET and not self.refused and not self.orphans and self.warm >= 0.9
        return judged and self.summaries > 0 and self.kept and self.recalled and self.hidden > 0

    def lines(self) -> list[str]:
        """For people."""
        rows = {
            "summaries by the compactor": self.summaries,
            "largest request, in tokens of the server": f"{self.largest} of {BUDGET}",
            "requests refused as too long": self.refused,
            "results without a call, calls without a result": len(self.orphans),
            "requests that extend the one before": f"{100 * self.warm:.1f} %",
            "  bytes at the beginning that were sent before": f"{100 * self.cached:.1f} %",
            "messages no longer shown in the end": self.hidden,
            "every old message can be read back": "yes" if self.kept else "NO",
            "an old one found again by the model": "yes" if self.recalled else "NO",
        }
        return [f"{self.how}: {self.steps} answers", *(f"  {what:50}{n}" for what, n in rows.items())]


def said_by_server(steps: int) -> Iterator[dict[str, Any]]:
    """What the server answers: notes to the compactor, and to the agent calls, calls and calls, and at times a word."""
    turn = {"tools": True}
    yield reply("The notes: everything goes well.", match={"tools": False}, times=None)
    for n in range(1, steps - 1):
        done = n % TASK == 0 or n == steps - 2
        wanted = [] if done else script(n, None) if n % 10 else [("look", {"n": n})]
        yield reply(f"done with {n}" if done else None, *wanted, match=turn)
    yield reply(None, ("recall", {"query": OLD}), match=turn)
    yield reply("It was that one.", match=turn)


async def talk(server: Running, folder: Path, steps: int, how: str, compactor: Compactor) -> Talked:
    """Have a session of so many answers."""
    forget(server)
    plan(server, *said_by_server(steps))
    with Proxy(server.port) as proxy:
        model = OpenAIModel("m", provider="openai", base_url=proxy.base_url, api_key=KEY)
        agent = worker(model, window=Window(BUDGET, low_water=LOW), compactor=compactor)
        async with open_async(f"sqlite:///{folder}/{compactor.every}.db") as db:
            rounds = -(-(steps - 2) // TASK)
            for i in range(rounds):
                result = await agent.run(db, session="s", message=f"task {i}")
                assert result.ok, result
            result = await agent.run(db, session="s", message="what was that old one?")
            assert result.ok, result
            history = await db.history("s", limit=100_000)
            messages = (await db.read("s")).plain()["messages"]
        await agent.close()
        bodies = [sent.body for sent in proxy.taken()]
    turns = [b for b in bodies if b'"tools":[' in b]
    asked = [_request(b) for b in turns]
    said = [m["content"] for m in messages if m["role"] == "user"]
    facts = [json.loads(m["content"])["n"] for m in messages if m["role"] == "tool" and '"n": ' in m["content"][:8]]
    wanted = [n for n in range(1, steps - 2) if n % TASK]
    last = asked[-1].messages[-1]
    return Talked(
        how,
        sum(is_answer(c.more) for c in history),
        len(bodies) - len(turns),
        max(c.more["usage"]["input"] for c in history if "usage" in c.more),
        sum(r["status"] != 200 for r in requests(server)),
        [f"request {i}: {what}" for i, r in enumerate(asked) for what in orphans(r.messages)],
        sum(extends(a, b) for a, b in pairwise(asked)) / (len(asked) - 1),
        sum(_shared(a, b) for a, b in pairwise(turns)) / sum(map(len, turns[1:])),
        next((c.more["window"]["from"] for c in history if "window" in c.more), 0),
        said == [*(f"task {i}" for i in range(rounds)), "what was that old one?"] and facts == wanted,
        last["role"] == "tool" and f"{OLD} " in last["content"] and f"{OLD} " not in str(asked[-2].messages),
    )


def _request(body: bytes) -> Request:
    told = json.loads(body)
    return Request(told.pop("model"), told.pop("messages"), told.pop("tools"), told)


def _shared(before: bytes, after: bytes) -> int:
    """How many bytes both begin with."""
    return next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
