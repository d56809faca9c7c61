"""What both versions of the program of the rolling deploy have in common; each call says which version made it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from perdure import tool
from perdure.agent.models import Request, text_of
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.session.tools.context import Context
from tests.fleet.app import PAUSE, note

if TYPE_CHECKING:
    from collections.abc import Callable

    Ask = Callable[[str, list[str]], tuple[str, dict[str, Any]]]


@tool(if_unsure="retry")
async def charge(order: str, ctx: Context) -> str:
    """Charge an order: the same in both versions."""
    note("charge", order, ctx.effect_id)
    await asyncio.sleep(PAUSE)
    return f"charged {order}"


def model(ask: Ask) -> ScriptedModel:
    """A model that calls, for a message such as ``refund A 5``, what this version has for it."""

    async def script(request: Request) -> object:
        await asyncio.sleep(PAUSE)
        said = request.messages
        spoke = max((i for i, m in enumerate(said) if m["role"] == "assistant"), default=-1)
        new = [text_of(m).split() for m in said[spoke + 1 :] if m["role"] == "user"]
        if not new:
            return f"done: {text_of(said[-1])}"
        asked = [("charge", {"order": order}) for verb, *orders in new if verb == "charge" for order in orders]
        asked += [ask(verb, words) for verb, *words in new if verb != "charge"]
        return calls(*asked)

    return ScriptedModel(script)
