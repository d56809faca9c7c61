"""The agent of the campaign: what it does is said by the first word of a message; what is broken, people mend."""

from __future__ import annotations

from typing import Any

from perdure import Agent, Context, Later, ModelError, RequestRefused, tool
from perdure.agent.models.scripted import ScriptedModel, calls


class Cause:
    """Why runs fail, until somebody sees to it."""

    broken = True


@tool(approve=True)
def refund(order: str) -> str:
    """Give money back."""
    return "done"


@tool
def send(parcel: str) -> str:
    """Send a parcel; the answer is lost."""
    raise ConnectionError("the line is dead")


@tool
def render(video: str) -> Later:
    """Takes hours."""
    return Later("job-1")


@tool
def choose(what: str, ctx: Context) -> str:
    """Needs to know more."""
    return str(ctx.ask("Red or blue?"))


def _script(request: Any) -> Any:
    last = request.messages[-1]
    if last["role"] == "tool":
        return "Good."
    match str(last.get("content")).split(maxsplit=1)[0]:
        case "refund":
            return calls(("refund", {"order": "A-1"}))
        case "send":
            return calls(("send", {"parcel": "P-1"}))
        case "render":
            return calls(("render", {"video": "v"}))
        case "choose":
            return calls(("choose", {"what": "colour"}))
        case "delegate":
            return calls(("helper", {"task": "refund it"}))
        case "reject":
            raise RequestRefused("it answered 400: forbidden contents")
        case "fail" if Cause.broken:
            raise ModelError("it said nothing sensible")
        case _:
            return "Hello."


helper = Agent("helper", model=ScriptedModel(_script), tools=[refund])
desk = Agent(
    "desk",
    model=ScriptedModel(_script),
    tools=[refund, send, render, choose, helper.as_tool(description="Helps.")],
)
