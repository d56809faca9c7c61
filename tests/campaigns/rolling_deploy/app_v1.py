"""The old version of the program: it refunds amounts, books, and sends faxes."""

from __future__ import annotations

from typing import Any

from perdure import Agent, tool
from perdure.session.tools.context import Context
from tests.campaigns.rolling_deploy.tools import charge, model
from tests.fleet.app import note


@tool(if_unsure="retry", approve=True)
def refund(order: str, amount: float, ctx: Context) -> str:
    """Refund an amount; the new version calls it give_back and counts cents."""
    note("v1", "refund", order, amount, ctx.effect_id)
    return f"refunded {order}"


@tool(if_unsure="retry", approve=True)
def fax(order: str, ctx: Context) -> str:
    """Send a fax; the new version cannot."""
    note("v1", "fax", order, ctx.effect_id)
    return f"faxed {order}"


@tool(if_unsure="retry", approve=True)
def book(order: str, ctx: Context) -> str:
    """Book an order; the new version means something else by it."""
    note("v1", "book", order, ctx.effect_id)
    return f"booked {order}"


def _ask(verb: str, words: list[str]) -> tuple[str, dict[str, Any]]:
    if verb == "refund":
        return "refund", {"order": words[0], "amount": float(words[1])}
    return ("fax" if verb == "send" else verb), {"order": words[0]}


desk = Agent("desk", model=model(_ask), tools=[charge, refund, fax, book], version="1", instructions="Help.")
