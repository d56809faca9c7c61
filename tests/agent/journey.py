"""One process of a journey: ``python -m tests.agent.journey run|approve MS_LATER [APPROVAL]``, at its own time.

The agent is that of ``examples/travel``; where its world and its store are, the environment says.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import perdure
from perdure.agent.app_loader import load_agent
from tests.campaigns.crash.worker import ShiftedClock

APP = Path(__file__).parents[2] / "examples" / "travel" / "app.py"
SESSION = "trip-42"


async def run(later: int, message: str | None) -> dict[str, Any]:
    """Go on with the journey, so many ms later than now; what it came to."""
    agent = load_agent(str(APP))
    clock = ShiftedClock()
    clock.shift = later
    async with perdure.open_async(os.environ["TRAVEL_STORE"], clock=clock) as db:
        result = await agent.run(db, session=SESSION, message=message, key="asked")
    return {
        "status": result.status, "text": result.text,
        "approvals": [{"id": a.id, "facts": a.facts, "because": a.because} for a in result.approvals],
    }  # fmt: skip


def approve(later: int, approval: str) -> dict[str, Any]:
    """Agree, so many ms later than now."""
    clock = ShiftedClock()
    clock.shift = later
    with perdure.open(os.environ["TRAVEL_STORE"], clock=clock) as db:
        try:
            db.approve(SESSION, approval, by="ana")
        except perdure.ApprovalError as e:
            return {"error": str(e)}
    return {}


if __name__ == "__main__":
    what, later, *rest = sys.argv[1:]
    said = approve(int(later), rest[0]) if what == "approve" else asyncio.run(run(int(later), *(rest or [None])))
    print(json.dumps(said))
