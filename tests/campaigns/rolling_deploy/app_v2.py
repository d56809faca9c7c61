"""The new version of the program: one tool is renamed, one is new, one is gone, and one means something else."""

from __future__ import annotations

from typing import Any

from perdure import Agent, tool, tool_migration
from perdure.session.tools.context import Context
from tests.campaigns.rolling_deploy.tools import charge, model
from tests.fleet.app import note


@tool(if_unsure="retry", approve=True, version="2")
def give_back(order: str, cents: int, ctx: Context) -> str:
    """Give money back: what was called refund."""
    note("v2", "give_back", order, cents, ctx.effect_id)
    return f"gave back {order}"


@tool_migration("refund", "1", "2", renamed="give_back")
def in_cents(arguments: dict[str, Any]) -> None:
    """Open calls of refund become calls of give_back."""
    arguments["cents"] = round(arguments.pop("amount") * 100)


@tool(if_unsure="retry")
def email(order: str, ctx: Context) -> str:
    """Send an e-mail, which needs nobody's consent."""
    note("v2", "email", order, ctx.effect_id)
    return f"mailed {order}"


@tool(if_unsure="retry", approve=True, version="2")
def book(order: str, ctx: Context) -> str:
    """Book an order in another sense: calls that were made for the old one are not for this one."""
    note("v2", "book", order, ctx.effect_id)
    return f"booked {order} otherwise"


def _ask(verb: str, words: list[str]) -> tuple[str, dict[str, Any]]:
    if verb == "refund":
        return "give_back", {"order": words[0], "cents": round(float(words[1]) * 100)}
    return ("email" if verb == "send" else verb), {"order": words[0]}


desk = Agent("desk", model=model(_ask), tools=[charge, give_back, email, book], version="2", instructions="Help.")
