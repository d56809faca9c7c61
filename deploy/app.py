"""The agent that the image carries until you put your own in its place: a desk that tells the time and takes notes.

Without HOLYSHEEP_API_KEY a scripted model answers, with no network; with it, a real one.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from perdure import Agent, ScriptedModel, tool
from perdure.agent.models import Request, text_of
from perdure.agent.models.scripted import calls


@tool(read=True)
def now() -> str:
    """What time it is."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def offline(request: Request) -> Any:
    """What the model says when there is none: it looks at the clock, then answers."""
    last = request.messages[-1]
    if last["role"] == "tool":
        return f"It is {text_of(last)}. What else?"
    return calls(("now", {}))


def model() -> dict[str, Any]:
    """The real model when there is a key, else the scripted one."""
    if os.environ.get("HOLYSHEEP_API_KEY"):
        return {"model": "deepseek-v3.2", "provider": "holysheep"}
    return {"model": ScriptedModel(offline)}


agent = Agent("desk", **model(), tools=[now], instructions="You are a friendly desk. Be brief.")
