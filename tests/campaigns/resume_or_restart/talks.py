"""The conversations: a support desk, 15 to 30 turns, told by a seed; every second question needs a tool."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from perdure.agent.agent import Agent
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.session.tools.declaration import tool
from perdure.system import faults

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.agent.models import Answer, Delta, Request
    from tests.campaigns.agent_kills.log import Log

SHORTEST, LONGEST = 15, 30
WORDS = [
    "order", "parcel", "label", "refund", "size", "colour", "kettle", "desk", "boots", "carrier", "note", "point",
    "week", "Friday", "address", "invoice", "exchange", "stock", "warehouse", "tracking", "number", "delivered",
    "scanned", "voucher", "account", "customer",
]  # fmt: skip


def turns_of(seed: int) -> int:
    """How many turns a conversation has."""
    return random.Random(f"{seed}/turns").randint(SHORTEST, LONGEST)


def question(seed: int, n: int) -> str:
    """What the customer asks."""
    return f"({n}) " + _text(f"{seed}/asks/{n}", 12, 40)


def _text(seed: str, least: int, most: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choices(WORDS, k=rng.randint(least, most)))


INSTRUCTIONS = "You are the support desk of a web shop. " + _text("rules", 1150, 1150)
"""About 2,000 tokens, as the rules of a support desk have."""


class Metered(ScriptedModel):
    """Counts what a provider would have counted, whatever becomes of its answer."""

    def __init__(self, seed: int, log: Log, ready: Callable[[], None]) -> None:
        super().__init__(lambda request: _say(seed, request))
        self._log = log
        self._ready = ready

    async def answer(self, request: Request, on_delta: Callable[[Delta], None] | None = None) -> Answer:
        """Answer, and write down how many tokens that took."""
        self._ready()
        given = await super().answer(request, on_delta)
        used = given.usage.input + given.usage.output
        self._log.note("asked", tokens=used, talk=used - len(INSTRUCTIONS) // 4)
        return given


def _say(seed: int, request: Request) -> Any:
    n = sum(m["role"] == "user" for m in request.messages)
    if request.messages[-1]["role"] == "user" and n % 2 == 0:
        return calls(("look_up", {"order": f"ORD-{seed}-{n}"}))
    return _text(f"{seed}/says/{n}", 20, 60)


def desk(seed: int, log: Log, ready: Callable[[], None]) -> Agent:
    """The agent of one conversation; ``ready`` is told when it begins to do something."""

    @tool(if_unsure="retry")
    def look_up(order: str) -> dict[str, Any]:
        """Look an order up, and note that somebody asked."""
        ready()
        faults.point("tool.entered")
        return {"order": order, "status": _text(f"{order}/status", 5, 30), "price": len(order) * 1.5}

    return Agent("desk", model=Metered(seed, log, ready), tools=[look_up], instructions=INSTRUCTIONS)


class Watch:
    """Measures from now until the agent first does something, once."""

    def __init__(self, log: Log, what: str, began: float | None = None) -> None:
        self._log = log
        self._what = what
        self._began = time.time() if began is None else began
        self._stopped = False

    def stop(self) -> None:
        """It has begun."""
        if not self._stopped:
            self._stopped = True
            self._log.note(self._what, ms=(time.time() - self._began) * 1000)
