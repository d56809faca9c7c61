"""What the tests of agents at work share: a database in a folder, and a way to run coroutines."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import perdure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from perdure.agent.models import Request
    from perdure.testing.clock import FakeClock


def play(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end."""
    return asyncio.run(work)


@asynccontextmanager
async def opened(folder: Path, clock: FakeClock | None = None) -> AsyncIterator[perdure.AsyncDatabase]:
    """A database of the test's own, which may be opened again."""
    async with perdure.open_async(f"sqlite:///{folder}/agents.db", clock=clock) as db:
        yield db


def heard(request: Request) -> list[str]:
    """What each message of a request says, with who says it."""
    return [f"{m['role']}: {m.get('content')}" for m in request.messages]


def by_turn(*answers: Any) -> Callable[[Request], Any]:
    """A script that answers by the number of messages of the assistant so far; functions are asked."""

    def script(request: Request) -> Any:
        at = sum(m["role"] == "assistant" for m in request.messages)
        said = answers[at]
        return said(request) if callable(said) else said

    return script
