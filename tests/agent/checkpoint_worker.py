"""An agent in a process of its own that is killed while it asks its model: ``checkpoint_worker FOLDER POLICY DIE_AT``.

Its model makes a line in FOLDER/log for every answer asked of it, its tools one for every call.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from perdure import Agent, Context, Every, ScriptedModel, tool
from perdure.agent.models.scripted import calls

if TYPE_CHECKING:
    from perdure.agent.models import Request

POLICIES: dict[str, Any] = {
    "step": "step",
    "answer": "answer",
    "every 2": Every(2),
    "every 10": Every(10),
    "every 10 or 0.1 s": Every(10, seconds=0.1),
}
EFFECT, LAST = 6, 8
"""The turn that calls an effect, and the one that ends the run."""
PAYING = -1
"""Dies not while it asks, but when it has paid and nobody knows."""
LATE = 2.0
"""Seconds that a model takes over the answer that nobody hears."""


def run(folder: str, policy: str, die_at: int) -> str:
    """Run the agent to its end, or to its death; what it answered."""

    def log(what: str) -> None:
        with open(f"{folder}/log", "a") as f:
            f.write(f"{what}\n")

    @tool(read=True)
    def look(turn: int) -> str:
        log(f"look {turn}")
        return "fine"

    @tool(if_unsure="retry")
    def pay(turn: int, ctx: Context) -> str:
        log(f"pay {turn}")
        with open(f"{folder}/keys", "a") as f:
            f.write(f"{ctx.effect_id}\n")
        if die_at == PAYING:
            os.kill(os.getpid(), signal.SIGKILL)
        return "paid"

    async def answer(request: Request) -> Any:
        turn = 1 + sum(m["role"] == "assistant" for m in request.messages)
        log(f"ask {turn}")
        if turn == die_at:
            if "0.1 s" in policy:
                await asyncio.sleep(LATE)
            os.kill(os.getpid(), signal.SIGKILL)
        if turn == LAST:
            return "all done"
        return calls(("pay" if turn == EFFECT else "look", {"turn": turn}))

    agent = Agent("a", model=ScriptedModel(answer), tools=[look, pay], checkpoints=POLICIES[policy])
    return agent.run_sync(f"sqlite:///{folder}/agents.db", session="s", message="go", key="m").text


if __name__ == "__main__":
    print(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))
