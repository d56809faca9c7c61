"""What is said in the conversations of this campaign: by the user, and by the server when it is told to."""

from __future__ import annotations

from typing import Any

from perdure.agent.agent import Agent
from perdure.agent.models.openai import OpenAIModel
from perdure.session.tools.declaration import tool
from perdure.system import faults
from tests.servers.llmock import KEY, reply

APIS = ("chat", "responses")
MESSAGES = ("Rain in Genève? And a table at «Sol», please.", "Then a taxi, and tell me the time.")
SCRIPT: list[dict[str, Any]] = [
    reply(None, ("weather", {"city": "Genève"}), ("book", {"what": "a table at «Sol»"}), ("weather", {"city": "Nyon"})),
    reply("It rains in Genève and in Nyon, and your table is booked."),
    reply("One moment, please.", ("book", {"what": "a taxi, with 2 seats"}), ("clock", {"city": "Genève"})),
    reply(None, ("clock", {"city": "Nyon"})),
    reply("It is noon in both places, and the taxi is on its way."),
]
"""What the server answers, in this order."""


@tool(read=True)
def weather(city: str) -> dict[str, Any]:
    """Look up the weather."""
    faults.point("tool.weather")
    return {"city": city, "sky": "rain", "degrees": 7.5}


@tool(read=True)
def clock(city: str) -> str:
    """Look up the time."""
    faults.point("tool.clock")
    return f"noon in {city}"


@tool(if_unsure="retry")
def book(what: str) -> str:
    """Book something."""
    faults.point("tool.book")
    return f"{what} is booked"


def guide(base_url: str, api: str, instructions: str = "Be brief.") -> Agent:
    """The agent that is killed."""
    model = OpenAIModel("m", provider="openai", base_url=base_url, api_key=KEY, api=api, temperature=0.2)
    return Agent("guide", model=model, tools=[weather, clock, book], instructions=instructions, params={"seed": 7})


def settled(events: list[dict[str, Any]]) -> tuple[str, bool]:
    """What a reader shows in the end, and whether its pieces always fitted together.

    Deltas go where their offset says, are thrown away when retracted, and give way to what was committed.
    """
    whole, shown, fits = "", "", True
    for e in events:
        if e["kind"] == "delta":
            fits = fits and e["offset"] == len(shown)
            shown += e["text"]
        elif e["kind"] == "retracted":
            shown = ""
        elif e["kind"] == "committed":
            fits = fits and e["text"].startswith(shown)
            whole, shown = whole + e["text"], ""
    return whole, fits and not shown
