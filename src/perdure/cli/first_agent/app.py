"""A first agent: it keeps a shopping list in list.txt, and asks before it orders anything.

    perdure chat app          talk to it; kill it at any moment, type the same again, and it goes on

Without HOLYSHEEP_API_KEY a scripted model answers, with no network; with it, a real one.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import perdure
from perdure import Agent, ScriptedModel, tool
from perdure.agent.models import Request, text_of
from perdure.agent.models.scripted import calls

LIST = Path("list.txt")


def lines() -> list[str]:
    """What is on the list."""
    return LIST.read_text("utf-8").splitlines() if LIST.exists() else []


@tool(read=True)
def show() -> list[str]:
    """What is on the shopping list. Reading has no effect, so it may run as often as it likes."""
    return lines()


def is_there(item: str) -> Any:
    """After a crash nobody knows whether an item was added. The list does."""
    return perdure.Done(f"{item} is on the list") if item in lines() else perdure.NotDone


@tool(if_unsure=is_there)
def add(item: str) -> str:
    """Put something on the shopping list."""
    with LIST.open("a", encoding="utf-8") as file:
        file.write(item + "\n")
    return f"{item} is on the list"


@tool(approve=True, facts=lines)
def order() -> str:
    """Order everything on the list. Somebody must agree, and to this very list: if it changes, they are asked again."""
    ordered = ", ".join(lines())
    LIST.write_text("", "utf-8")
    return f"ordered: {ordered}"


def offline(request: Request) -> Any:
    """What the model says when there is none: it understands "add milk", "show" and "order"."""
    last = request.messages[-1]
    if last["role"] == "tool":
        return f"Done. {text_of(last)}"
    said = text_of(last).strip().lower()
    if found := re.match(r"add (.+)", said):
        return calls(("add", {"item": found[1]}))
    if said in ("show", "order"):
        return calls((said, {}))
    return 'Say "add milk", "show" or "order".'


def model() -> dict[str, Any]:
    """The real model when there is a key, else the scripted one."""
    if os.environ.get("HOLYSHEEP_API_KEY"):
        return {"model": "deepseek-v3.2", "provider": "holysheep"}
    return {"model": ScriptedModel(offline)}


agent = Agent("myagent", **model(), tools=[show, add, order], instructions="You keep a shopping list. Be brief.")
