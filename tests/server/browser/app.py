"""A support desk for the tests of the console: a scripted model that does better with better instructions.

What is really done is appended to a ledger, a file that every process shares.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from typing import Any

from perdure import Agent, tool
from perdure.agent.models import Request, text_of
from perdure.agent.models.prices import Price
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.errors import ModelError
from perdure.session.tools.context import Context

LEDGER = os.environ.get("CONSOLE_LEDGER", "")
PAUSE = float(os.environ.get("CONSOLE_PAUSE", "0.01"))
INSTRUCTIONS = "You are the support desk of an online shop. Be kind, be brief, be exact."
BETTER = INSTRUCTIONS + " Order numbers are always written as ORD-2024-<number>."
ORDERS = {"ORD-2024-8847": {"status": "shipped", "carrier": "Northway", "eta": "Friday", "paid": 249.0}}


def note(*words: object) -> None:
    """Append a line to the ledger, at once."""
    file = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, (" ".join(str(w) for w in words) + "\n").encode())
    finally:
        os.close(file)


@tool(if_unsure="retry")
def open_case(order: str, ctx: Context) -> dict[str, str]:
    """Open a case in the books of the shop."""
    note("case", order, ctx.effect_id)
    return {"case": f"C-{order[-4:]}"}


@tool(read=True)
def find_order(number: str) -> dict[str, Any]:
    """Look an order up by its number."""
    if number not in ORDERS:
        raise LookupError(f"there is no order {number}: numbers look like ORD-2024-8847")
    return ORDERS[number]


def _paid(order: str, amount: float) -> dict[str, Any]:
    return {"paid": 249.0, "refunded so far": 0.0}


@tool(if_unsure="ask", approve=lambda a: a["amount"] > 100, facts=_paid)
def refund(order: str, amount: float, ctx: Context) -> dict[str, Any]:
    """Give money back."""
    note("refund", order, amount, ctx.effect_id)
    return {"refunded": amount, "receipt": f"R-{order[-4:]}"}


@tool(if_unsure="ask")
def send_parcel(order: str, ctx: Context) -> Any:
    """Send a parcel; the carrier hangs up before it says whether it has it."""
    note("parcel", order, ctx.effect_id)
    raise ConnectionError("the carrier hung up")


async def script(request: Request) -> Any:
    """What the model says next: a function of the conversation and of its instructions."""
    await asyncio.sleep(PAUSE)
    system = text_of(request.messages[0]) if request.messages[0]["role"] == "system" else ""
    asked = next((text_of(m) for m in reversed(request.messages) if m["role"] == "user"), "")
    last = request.messages[-1]
    number = re.search(r"\d{4}\b", asked)
    order = number[0] if number else "0000"
    if last["role"] == "tool":
        return _after(request, json.loads(text_of(last)), system, order)
    if "Where is" in asked:
        return calls(("open_case", {"order": order}), text="I am opening a case.")
    if "money back" in asked:
        return calls(
            ("refund", {"order": f"ORD-2024-{order}", "amount": 249.0}), text="I will give you your money back."
        )
    if "again" in asked:
        return calls(("send_parcel", {"order": f"ORD-2024-{order}"}))
    return f"You said: {asked}"


def _after(request: Request, result: Any, system: str, order: str) -> Any:
    made = [c["function"]["name"] for m in request.messages for c in m.get("tool_calls") or ()][-1]
    if made == "open_case":
        return calls(("find_order", {"number": f"ORD-2024-{order}" if "ORD-2024-" in system else order}))
    if made == "find_order":
        if "error" in result:
            raise ModelError("the model gave up: it was told that the order does not exist")
        return f"Your order is {result['status']} with {result['carrier']} and comes on {result['eta']}."
    if made == "refund":
        return f"Sorry: {result['error']}." if "error" in result else f"Done: {json.dumps(result)}"
    return f"The parcel: {json.dumps(result)}"


def model() -> ScriptedModel:
    """A model of its own for each agent."""
    return ScriptedModel(script, name="scripted-desk")


PRICES = {"scripted-desk": Price(input=0.5, output=2.0)}
support = Agent(
    "support",
    model=model(),
    tools=[open_case, find_order, refund, send_parcel],
    instructions=INSTRUCTIONS,
    prices=PRICES,
)
