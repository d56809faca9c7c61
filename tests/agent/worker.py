"""An agent in a process of its own that is killed at a moment told to it. ``python -m tests.agent.worker JOB``."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import perdure
from perdure import tool
from perdure.agent.agent import Agent
from perdure.agent.models import Answer, Delta
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.system import faults
from tests.agent.working import by_turn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from perdure.agent.models import Request

WORDS = [f"word{i} " for i in range(40)]
FEW = 5


class Talker:
    """A model that says its words one by one, and may be killed after some; each attempt begins otherwise.

    After every few it waits until somebody has heard of them, who leaves a file in a folder each time that happens.
    """

    name = "talker"

    def __init__(self, attempt: str, die_after: int, heard: str) -> None:
        self._begin = attempt
        self._die_after = die_after
        self._heard = heard

    async def answer(self, request: Request, on_delta: Callable[[Delta], None] | None = None) -> Answer:
        """All words, at about a hundred each second."""
        said = [f"{self._begin} ", *WORDS]
        before = len(os.listdir(self._heard))
        for n, word in enumerate(said):
            if n and n % FEW == 0:
                for _ in iter(lambda before=before: len(os.listdir(self._heard)) > before, True):
                    await asyncio.sleep(0.01)
                before = len(os.listdir(self._heard))
            if n == self._die_after:
                os.kill(os.getpid(), signal.SIGKILL)
            assert on_delta is not None
            on_delta(Delta(text=word))
            await asyncio.sleep(0.01)
        return Answer({"role": "assistant", "content": "".join(said)})

    async def close(self) -> None:
        """Nothing to release."""


@tool(if_unsure="retry")
def book(city: str, ctx: perdure.Context) -> str:
    """Book a hotel, once for each key."""
    with open(os.environ["BOOKINGS"], "a", encoding="utf-8") as file:
        file.write(ctx.effect_id + "\n")
    return f"{city} booked"


def talk(job: dict[str, Any]) -> Agent:
    """An agent that talks."""
    return Agent("talker", model=Talker(job["attempt"], job["die_after"], job["heard"]))


def plan(job: dict[str, Any]) -> Agent:
    """An agent that has another one book a hotel."""

    def last(request: Request) -> str:
        return request.messages[-1]["content"]

    child = Agent("booker", model=ScriptedModel(by_turn(calls(("book", {"city": "Paris"})), last)), tools=[book])
    asks = by_turn(calls(("booker", {"task": "book Paris"})), last)
    return Agent("planner", model=ScriptedModel(asks), tools=[child.as_tool()])


def die_at(point: str, hit: int) -> None:
    """Have this process killed the ``hit``-th time it passes a point."""
    left = hit

    def hook(passed: str) -> None:
        nonlocal left
        if passed == point:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    faults.hook = hook


async def work(job: dict[str, Any]) -> None:
    """Run the agent once and print how that ended."""
    agent = {"talk": talk, "plan": plan}[job["scene"]](job)
    async with perdure.open_async(job["url"]) as db:
        if job.get("point"):
            die_at(job["point"], job["hit"])
        end = await agent.run(db, session="s", message="go", key="m", live=job["scene"] == "talk")
        print(json.dumps([end.status, end.text]))


def start(folder: Path, **job: Any) -> subprocess.Popen[str]:
    """Start a worker."""
    environment = {**os.environ, "BOOKINGS": str(folder / "bookings")}
    command = [sys.executable, "-m", "tests.agent.worker", json.dumps(job)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


if __name__ == "__main__":
    asyncio.run(work(json.loads(sys.argv[1])))
