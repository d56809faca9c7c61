"""What the tests of this folder share: an agent with a window, and ways to end its process without ending ours."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import perdure
from perdure import tool
from perdure.agent.agent import Agent
from perdure.agent.context.window import Window
from perdure.agent.requests import is_answer
from perdure.session.tools.exceptions import LetThrough
from perdure.system import faults

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.aio import AsyncDatabase


class Killed(LetThrough):
    """Stands for the end of a process: nothing may catch it."""


@contextmanager
def killed_at(name: str, nth: int = 1) -> Iterator[None]:
    """End whatever passes a named point for the nth time."""
    passed = 0

    def hook(point: str) -> None:
        nonlocal passed
        passed += point == name
        if point == name and passed == nth:
            raise Killed(name)

    faults.hook = hook
    try:
        yield
    finally:
        faults.hook = None


@tool(read=True)
def look(n: int) -> dict[str, Any]:
    """Look something up."""
    return {"n": n, "text": f"fact-{n} " + "lorem ipsum " * 10}


@tool(if_unsure="retry")
def act(n: int) -> str:
    """Do something."""
    return f"acted {n}"


def script(n: int, _: Any) -> Any:
    """Nine turns of work, one of talk."""
    if n % 10 == 0:
        return f"done with {n}"
    return [("look", {"n": n})] if n % 3 else [("look", {"n": n}), ("act", {"n": n})]


def worker(model: Any, **options: Any) -> Agent:
    """An agent with little room."""
    options.setdefault("window", Window(4000, low_water=1200))
    return Agent("worker", model=model, tools=[look, act], instructions="Be brief.", max_turns=10_000, **options)


def opened(url: str = "memory://") -> AsyncDatabase:
    """A database without upkeep of its own."""
    return perdure.open_async(url, maintain=False)


async def answers(db: AsyncDatabase, session: str, branch: str = "main") -> list[int]:
    """The steps that hold answers of turns, oldest first."""
    history = await db.history(session, branch=branch, limit=100_000)
    return [c.step for c in reversed(history) if is_answer(c.more)]
