"""Agents for the tests of the fleet; what they charge is in a file that every process appends to."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time

from perdure import Agent, tool
from perdure.agent.models import Request, text_of
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.errors import ModelUnavailable
from perdure.session.tools.context import Context

LEDGER = os.environ.get("FLEET_LEDGER", "")
PAUSE = float(os.environ.get("FLEET_PAUSE", "0.05"))
GATE = os.environ.get("FLEET_GATE", "")
"""A file until which tools take their time, so that a test can be sure of what goes on meanwhile."""


def note(*words: object) -> None:
    """Append a line to the ledger, at once."""
    line = " ".join(str(w) for w in (*words, os.getpid())) + "\n"
    file = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


async def linger() -> None:
    """Take a while, and as long as the gate is closed."""
    for _ in iter(lambda: not GATE or os.path.exists(GATE), True):
        await asyncio.sleep(0.01)
    await asyncio.sleep(PAUSE)


@tool(if_unsure="retry")
async def charge(order: str, ctx: Context) -> str:
    """Charge an order; the key makes it safe to ask again."""
    note("charge", order, ctx.effect_id)
    await linger()
    return f"charged {order}"


@tool(read=True)
def look_up(order: str) -> str:
    """Look an order up."""
    return f"{order} is paid"


@tool(if_unsure="ask", approve=True)
async def refund(order: str, ctx: Context) -> str:
    """Refund an order."""
    note("refund", order, ctx.effect_id)
    return f"refunded {order}"


@tool(if_unsure="retry")
def compute(seconds: float, ctx: Context) -> str:
    """Compute in C without ever letting another thread run."""
    note("compute", ctx.effect_id)
    data, end = b"x" * 2_000_000_0, time.monotonic() + seconds
    while time.monotonic() < end:
        hashlib.pbkdf2_hmac("md5", b"x", b"y", 1)
        # Sorting a long list holds the interpreter for as long as it takes.
        sorted(memoryview(data)[:3_000_000])
    return "computed"


@tool
def stumble(order: str) -> str:
    """Fail of a bug."""
    raise KeyError(f"{order} with api_key=hunter2-{order}")


@tool(if_unsure="retry")
def crash(ctx: Context) -> str:
    """Take the whole process down, every time."""
    note("crash", ctx.effect_id)
    os.kill(os.getpid(), 9)
    return "never"


@tool(if_unsure="retry")
def stay(seconds: float, ctx: Context) -> str:
    """Block a thread, deaf to everything."""
    note("stay", ctx.effect_id)
    time.sleep(seconds)
    return "stayed"


@tool(if_unsure="retry", limit=2)
async def narrow(order: str, ctx: Context) -> str:
    """Something of which only two may be done at once."""
    note("enter", order, time.time_ns())
    await linger()
    note("leave", order, time.time_ns())
    return "done"


async def script(request: Request) -> object:
    """What the model says: a message names a tool and its argument, and is answered by the tool's result."""
    await asyncio.sleep(PAUSE)
    last = request.messages[-1]
    said = text_of(last)
    if last["role"] == "tool":
        return f"done: {said}"
    words = said.split()
    if not words:
        return "nothing to do"
    if words[0] == "charge":
        return calls(*(("charge", {"order": order}) for order in words[1:]))
    if words[0] in ("refund", "look_up", "narrow", "stumble"):
        return calls((words[0], {"order": words[1]}))
    if words[0] == "both":
        return calls(("refund", {"order": words[1]}), ("charge", {"order": words[1]}))
    if words[0] in ("compute", "stay"):
        return calls((words[0], {"seconds": float(words[1])}))
    if words[0] == "crash":
        return calls(("crash", {}))
    if words[0] == "delegate":
        return calls(("desk", {"task": " ".join(words[1:])}))
    if words[0] == "down":
        raise ModelUnavailable("the model is down")
    return f"you said {said}"


def model() -> ScriptedModel:
    """A model of its own for each agent."""
    return ScriptedModel(script)


desk = Agent("desk", model=model(), tools=[charge, look_up, refund, narrow, stumble], instructions="Help.")
heavy = Agent("heavy", model=model(), tools=[compute, crash, stay])
boss = Agent("boss", model=model(), tools=[desk.as_tool(description="Have the desk do it.")])
