"""Runs of agents inside the server, for those who have no fleet and for branches: started here, and tidied up here."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from perdure.agent.branching_off import run_on
from perdure.errors import PerdureError
from perdure.model import MAIN
from perdure.server.problems import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.agent.agent import Agent
    from perdure.aio import AsyncDatabase

log = logging.getLogger("perdure.server")
MOST = 32
"""Runs at once; more are refused."""


class Runs:
    """What this process is running."""

    def __init__(self, db: AsyncDatabase, agents: Mapping[str, Agent], most: int = MOST) -> None:
        self._db = db
        self._agents = agents
        self._most = most
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._stop = asyncio.Event()

    def is_running(self, session: str, branch: str) -> bool:
        """Whether a branch is being run here."""
        return (session, branch) in self._tasks

    def branches(self, session: str) -> list[str]:
        """The branches of a session that are being run here: one at a time has the lease."""
        return sorted(branch for running, branch in self._tasks if running == session)

    def agent(self, name: str) -> Agent:
        """An agent of this server."""
        found = self._agents.get(name)
        if found is None:
            known = ", ".join(sorted(self._agents)) or "none"
            raise Refusal(
                409,
                "no-agent",
                f"this server has no agent {name[:80]!r} (it has {known}): start perdure serve with its APP",
            )
        return found

    def start(self, agent: Agent, session: str, branch: str, **options: Any) -> bool:
        """Run a branch in the background; False when it is being run already."""
        if self.is_running(session, branch):
            return False
        if len(self._tasks) >= self._most:
            raise Refusal(
                429, "too-many", f"{self._most} runs are under way here: wait for one to end", Retry_After="2"
            )
        task = asyncio.create_task(self._work(agent, session, branch, options))
        self._tasks[session, branch] = task
        task.add_done_callback(lambda _: self._tasks.pop((session, branch), None))
        return True

    async def _work(self, agent: Agent, session: str, branch: str, options: dict[str, Any]) -> None:
        try:
            more: dict[str, Any] = {"live": True, "stop": self._stop, "agents": list(self._agents.values()), **options}
            if branch == MAIN:
                await agent.run(self._db, session=session, **more)
            else:
                # What waits in the inbox is meant for main.
                await run_on(self._db, agent, session, branch, **more)
        except PerdureError as e:
            log.warning("a run of session %r on %r ended: %s", session[:80], branch[:80], e)
        except Exception:
            log.exception("a run of session %r on %r failed", session[:80], branch[:80])

    def track(self, session: str, branch: str, task: asyncio.Task[None]) -> None:
        """Count a run in that was started elsewhere in this server: its end is waited for as well."""
        self._tasks[session, branch] = task
        task.add_done_callback(lambda _: self._tasks.pop((session, branch), None))

    async def close(self, grace: float = 5.0) -> None:
        """Put all runs down: after their current step, or where they are."""
        self._stop.set()
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
