"""Branches that this server runs on, started from a page: what is under way, and how the last run ended."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.agent.branching_off import run_on
from perdure.errors import LimitExceeded, PerdureError

if TYPE_CHECKING:
    from perdure.agent.agent import Agent
    from perdure.server.resources import Ctx

log = logging.getLogger("perdure.server")
MOST = 8
"""Runs at once."""
REMEMBERED = 200
"""Ends of runs that are remembered."""


class State(NamedTuple):
    """How a run stands."""

    running: bool
    status: str = ""
    said: str = ""
    """The last thing the agent said, or why it ended."""


class BranchRuns:
    """The runs of one server that were started from its pages."""

    def __init__(self, ctx: Ctx) -> None:
        self._ctx = ctx
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._ended: dict[tuple[str, str], State] = {}

    def state(self, session: str, branch: str) -> State | None:
        """How the run of a branch stands; None when none was started here."""
        if (session, branch) in self._tasks:
            return State(True)
        return self._ended.get((session, branch))

    def mark(self, session: str) -> str:
        """Something that differs when a run of a session began or ended."""
        running = sorted(b for s, b in self._tasks if s == session)
        return repr((running, sorted((b, st.status) for (s, b), st in self._ended.items() if s == session)))

    def start(self, agent: Agent, session: str, branch: str, effects: str) -> None:
        """Run a branch on, in the background."""
        if (session, branch) in self._tasks:
            return
        if len(self._tasks) >= MOST:
            raise LimitExceeded(f"{MOST} branches are being run here already: wait until one has ended")
        task = asyncio.create_task(self._work(agent, session, branch, effects))
        self._tasks[session, branch] = task
        task.add_done_callback(lambda _: self._tasks.pop((session, branch), None))
        self._ctx.runs.track(session, branch, task)

    async def _work(self, agent: Agent, session: str, branch: str, effects: str) -> None:
        key, ctx = (session, branch), self._ctx
        self._ended.pop(key, None)
        try:
            more: dict[str, Any] = {"agents": list(ctx.agents.values()), "stop": ctx.closing}
            result = await run_on(ctx.db, agent, session, branch, effects=effects, **more)
            self._ended[key] = State(False, result.status, result.reason or result.text)
        except PerdureError as e:
            self._ended[key] = State(False, "failed", str(e))
        except Exception as e:
            log.exception("a run of session %r on %r failed", session[:80], branch[:80])
            self._ended[key] = State(False, "failed", f"{type(e).__name__}: {e}")
        finally:
            while len(self._ended) > REMEMBERED:
                del self._ended[next(iter(self._ended))]
