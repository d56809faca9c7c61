"""The agent of the chaos runs: what it charges, refunds and ships is in a ledger outside the store.

A message is an id, a verb and its words: ``m3 charge A B``. The answer names the ids of all that it answers.
"""

from __future__ import annotations

import asyncio
from typing import Any

from perdure import Agent, Context, Done, NotDone, tool, wake_me
from perdure.agent.models import Request, text_of
from perdure.agent.models.scripted import ScriptedModel, calls
from tests.fleet.app import LEDGER, PAUSE, note

LONG = 40_000
"""Characters of an order's history: too long for a row, so that it is kept as a blob."""


@tool(if_unsure="retry")
async def charge(order: str, ctx: Context) -> str:
    """Charge an order; the key makes it safe to ask again."""
    note("charge", order, ctx.effect_id)
    await asyncio.sleep(PAUSE)
    return f"charged {order}"


def was_shipped(order: str) -> Done | NotDone:
    """Look into the ledger whether a parcel is on its way."""
    with open(LEDGER, encoding="utf-8") as lines:
        there = any(line.split()[:2] == ["ship", order] for line in lines)
    return Done(f"shipped {order}") if there else NotDone("it is still here")


@tool(if_unsure=was_shipped)
def ship(order: str, ctx: Context) -> str:
    """Ship an order: one can look whether it was done."""
    note("ship", order, ctx.effect_id)
    return f"shipped {order}"


@tool(if_unsure="retry", approve=True)
async def refund(order: str, ctx: Context) -> str:
    """Refund an order once a person agrees."""
    note("refund", order, ctx.effect_id)
    await asyncio.sleep(PAUSE / 2)
    return f"refunded {order}"


@tool(read=True)
def look_up(order: str) -> str:
    """Look an order up; some have a long history."""
    return f"{order} is paid " + "x" * (LONG if order.endswith("7") else 10)


def _wanted(words: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """The calls that one message asks for."""
    name, verb, *rest = words
    match verb:
        case "charge" | "ship" | "refund" | "look_up":
            return [(verb, {"order": order}) for order in rest]
        case "remind":
            return [("wake_me", {"message": f"w{name} woken", "delay": f"{rest[0]}s"})]
        case _:
            return []


async def script(request: Request) -> object:
    """First the calls that new messages ask for; then an answer that names all that were not answered yet."""
    await asyncio.sleep(PAUSE)
    said = request.messages
    spoke = max((i for i, m in enumerate(said) if m["role"] == "assistant"), default=-1)
    new = [text_of(m).split() for m in said[spoke + 1 :] if m["role"] == "user"]
    if asked := [call for words in new for call in _wanted(words)]:
        return calls(*asked)
    told = max((i for i, m in enumerate(said) if m["role"] == "assistant" and not m.get("tool_calls")), default=-1)
    return "answered " + " ".join(text_of(m).split()[0] for m in said[told + 1 :] if m["role"] == "user")


shop = Agent("shop", model=ScriptedModel(script), tools=[charge, ship, refund, look_up, wake_me], instructions="Help.")
