"""The agent that is spoken to: it answers by name everything that was said since its last answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure import Agent, ScriptedModel, tool
from perdure.agent.models import text_of
from perdure.agent.models.scripted import calls

if TYPE_CHECKING:
    from perdure.agent.models import Request


@tool(read=True)
def look(what: str) -> str:
    """Look something up, so that an answer takes several checkpoints."""
    return f"found {what}"


def answer(request: Request) -> Any:
    """Look up what ends with a question mark, then name everything that was said since the last answer."""
    answers = (i for i, m in enumerate(request.messages) if m["role"] == "assistant" and not m.get("tool_calls"))
    since = request.messages[max(answers, default=-1) + 1 :]
    said = [text_of(m) for m in since if m["role"] == "user"]
    if any(name.endswith("?") for name in said) and not any(m["role"] == "tool" for m in since):
        return calls(("look", {"what": said[0]}))
    return " ".join(["answers", *said])


agent = Agent("desk", model=ScriptedModel(answer), tools=[look], compactor=False)
