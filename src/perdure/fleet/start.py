"""Starting a worker on a database named by its URL, with the engine that fits it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from perdure.fleet.board import board_of
from perdure.fleet.worker import Settings, Worker
from perdure.opening import open_async

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.agent.agent import Agent
    from perdure.fleet.worker import Engine


async def start_worker(
    agents: Sequence[Agent],
    store: str | None = None,
    settings: Settings | None = None,
    *,
    blobs: str | None = None,
    lease: float = 10.0,
    schema: str = "1.0.0",
    direct: str | None = None,
    ready: Callable[[Worker], None] | None = None,
) -> None:
    """Run a worker in this process until it is told to stop; ``ready`` is given it once it is about to begin.

    ``schema`` is the version of the state that the program writes, as for :func:`perdure.open`.
    """
    url = store or default_store()
    async with open_async(url, lease_ttl=lease, blobs=blobs, schema=schema) as db:
        # Before anybody is told that it serves: where there is no board it cannot.
        await db.driver.call(board_of, db)
        worker = Worker(db, agents, settings, url=url)
        engine = worker.engine = engine_for(url, worker, direct)
        if ready is not None:
            ready(worker)
        try:
            await worker.run()
        finally:
            if engine is not None:
                await engine.close()


def default_store() -> str:
    """Where a program without a word about it keeps its sessions; absolute, for other processes open it too."""
    os.makedirs(".perdure", exist_ok=True)
    return f"sqlite:///{os.path.abspath(os.path.join('.perdure', 'agents.db'))}"


def engine_for(url: str, worker: Worker, direct: str | None = None) -> Engine | None:
    """Notifications where there is a server that sends them; a file is looked at instead."""
    from perdure.system.urls import TIERED, tiers

    truth = tiers(url)[1] if url.startswith(TIERED) else url
    if not truth.startswith(("postgresql://", "postgres://")):
        return None
    from perdure.fleet.procrastinate import ProcrastinateEngine

    return ProcrastinateEngine(truth, agents=tuple(worker.agents), direct_url=direct, room=worker.has_room)
