"""What every request is answered with: the database, the agents, the guard. Made once per server."""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.agent.agent import Agent
    from perdure.aio import AsyncDatabase
    from perdure.protocols import Clock
    from perdure.server.auth import Guard
    from perdure.server.local_runs import Runs

R = TypeVar("R")
THREADS = 16


def _threads() -> ThreadPoolExecutor:
    # Its own: the usual one is where agents' tools run, which may take as long as they like.
    return ThreadPoolExecutor(THREADS, "perdure-http")


@dataclass(frozen=True)
class Ctx:
    """One server's parts, for the API and for the console's pages."""

    db: AsyncDatabase
    agents: dict[str, Agent]
    """The agents this server was started with, by name; it runs them when it is asked to."""
    guard: Guard
    runs: Runs
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server is about to go: whatever streams must end."""
    _pool: ThreadPoolExecutor = field(default_factory=_threads)

    @property
    def clock(self) -> Clock:
        """The database's clock."""
        return self.db.kernel.clock

    async def blocking(self, fn: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        """Call something of the library that blocks, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, functools.partial(fn, *args, **kwargs))

    async def close(self) -> None:
        """End what this server has under way; the database stays open."""
        self.closing.set()
        await self.runs.close()
        await asyncio.to_thread(self._pool.shutdown)
