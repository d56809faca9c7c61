"""An agent that does nothing but take steps: its model answers at once, with a call until it was asked enough."""

from __future__ import annotations

from typing import Any

from perdure import Agent, tool
from perdure.agent.models import Request
from perdure.agent.models.scripted import ScriptedModel, calls

CALLS = 10
"""Calls of a run; each is two steps: the answer that makes it, and its outcome."""


@tool(read=True)
async def look(n: int) -> str:
    """Look something up."""
    return f"row {n}: " + "x" * 200


def script(request: Request) -> Any:
    """Call until it has been enough."""
    made = sum(m["role"] == "tool" for m in request.messages)
    return calls(("look", {"n": made})) if made < CALLS else "done"


stepper = Agent("stepper", model=ScriptedModel(script), tools=[look], instructions="Look things up.")
