"""An agent whose tool waits for a file, so that a test can kill a worker in the middle of a step."""

from __future__ import annotations

import os
import time
from pathlib import Path

from perdure import Agent, ScriptedModel, tool
from perdure.agent.models.scripted import calls


@tool(if_unsure="retry")
def wait_for_it(order: str) -> str:
    """Say that it has begun, then wait until it may end."""
    folder = Path(os.environ["SCENE"])
    (folder / f"{order}.begun").touch()
    while not (folder / "go").exists():
        time.sleep(0.02)
    return "it came"


agent = Agent("patient", model=ScriptedModel([calls(("wait_for_it", {"order": "A-1"})), "done"]), tools=[wait_for_it])
