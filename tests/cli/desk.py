"""A small support desk for tests of commands that run agents: polite only when told so, and it writes a ledger."""

from __future__ import annotations

import os
from typing import Any

import perdure
from perdure import Agent, ScriptedModel, tool
from perdure.agent.models import Request, text_of
from perdure.agent.models.scripted import calls


@tool(if_unsure="retry", key_valid_for="1h")
def book(order: str, ctx: perdure.Context) -> str:
    """Write one line into the ledger."""
    with open(os.environ["DESK_LEDGER"], "a", encoding="utf-8") as file:
        file.write(f"{order} {ctx.effect_id}\n")
    return f"booked {order}"


@tool(approve=True)
def refund(amount: int) -> int:
    """Give money back."""
    return amount


@tool
def wire(amount: int) -> None:
    """Nobody knows what becomes of it."""
    raise TimeoutError


@tool
def seat(ctx: perdure.Context) -> str:
    """Ask the traveller."""
    return str(ctx.ask("Window or aisle?", {"enum": ["window", "aisle"]}))


def said(request: Request) -> Any:
    """Answers by the last message, in the manner of the instructions."""
    last = request.messages[-1]
    polite = any(m["role"] == "system" and "polite" in text_of(m) for m in request.messages)
    if last["role"] == "tool":
        return f"{'With pleasure: ' if polite else ''}{text_of(last)}"
    words = text_of(last).split()
    if words[:1] == ["book"]:
        return calls(("book", {"order": words[1]}))
    if words[:1] == ["refund"]:
        return calls(("refund", {"amount": int(words[1])}))
    if words[:1] == ["wire"]:
        return calls(("wire", {"amount": 1}))
    if words[:1] == ["ask"]:
        return calls(("seat", {}))
    if words[:1] == ["whose"]:
        # What would be known had the process been killed here.
        with perdure.open() as db:
            row = db.look(words[1])
            return f"{row.owner}, {row.agent}, {row.pending} waiting"
    if words[:1] == ["break"]:
        raise perdure.ModelError("the model is out of order")
    return f"You said: {text_of(last)}"


agent = Agent("desk", model=ScriptedModel(said), tools=[book, refund, wire, seat], instructions="Be brief.")
