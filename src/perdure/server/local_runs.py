"""Runs of agents inside the server, for those who have no fleet and for branches: under way, and how they ended."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.agent.branching_off import run_on
from perdure.errors import PerdureError
from perdure.model import MAIN
from perdure.server.problems import Refusal
from perdure.session.handover import close_to
from perdure.session.tools.exceptions import is_of_the_call, words_of
from perdure.system.commands import typed
from perdure.system.wording import storable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.agent.agent import Agent
    from perdure.aio import AsyncDatabase

log = logging.getLogger("perdure.server")
MOST = 32
"""Runs at once; more are refused."""
REMEMBERED = 200
"""Ends of runs that are remembered."""


class RunState(NamedTuple):
    """How a run stands."""

    running: bool
    status: str = ""
    said: str = ""
    """The last thing the agent said, or why it ended."""


class Runs:
    """What this process is running."""

    def __init__(self, db: AsyncDatabase, agents: Mapping[str, Agent], most: int = MOST) -> None:
        self._db = db
        self._agents = agents
        self._most = most
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._ended: dict[tuple[str, str], RunState] = {}
        self._again: set[tuple[str, str]] = set()
        """Those that were given a message while they ran, which may have come too late for that run."""
        self._stop = asyncio.Event()

    def is_running(self, session: str, branch: str) -> bool:
        """Whether a branch is being run here."""
        return (session, branch) in self._tasks

    def branches(self, session: str) -> list[str]:
        """The branches of a session that are being run here: one at a time has the lease."""
        return sorted(branch for running, branch in self._tasks if running == session)

    def state(self, session: str, branch: str) -> RunState | None:
        """How the run of a branch stands; None when none was started here."""
        return RunState(True) if self.is_running(session, branch) else self._ended.get((session, branch))

    def mark(self, session: str) -> str:
        """Something that differs when a run of a session began or ended."""
        ended = sorted((b, state.status) for (s, b), state in self._ended.items() if s == session)
        return repr((self.branches(session), ended))

    def agent(self, name: str) -> Agent:
        """An agent of this server."""
        found = self._agents.get(name)
        if found is None:
            known = ", ".join(sorted(self._agents)) or "none"
            meant = f"; did you mean {likely[0]}?" if (likely := close_to(name, self._agents)) else ""
            raise Refusal(
                409,
                "no-agent",
                f"this server has no agent {name[:80]!r} (it has {known}{meant}): start {typed('serve APP')}",
            )
        return found

    def start(self, agent: Agent, session: str, branch: str, *, again: bool = False, **options: Any) -> bool:
        """Run a branch in the background; False when it is being run already, and then ``again`` if that is wanted."""
        if self.is_running(session, branch):
            if again:
                self._again.add((session, branch))
            return False
        self.check_room()
        task = asyncio.create_task(self._work(agent, session, branch, options))
        self._tasks[session, branch] = task
        task.add_done_callback(lambda _: self._tasks.pop((session, branch), None))
        return True

    def check_room(self) -> None:
        """Refuse another run when too many are under way."""
        if len(self._tasks) >= self._most:
            raise Refusal(
                429, "too-many", f"{self._most} runs are under way here: wait for one to end", Retry_After="2"
            )

    async def _work(self, agent: Agent, session: str, branch: str, options: dict[str, Any]) -> None:
        self._ended.pop((session, branch), None)
        more: dict[str, Any] = {"live": True, "stop": self._stop, "agents": list(self._agents.values()), **options}
        try:
            if branch == MAIN:
                result = await agent.run(self._db, session=session, **more)
                while (session, branch) in self._again and not self._stop.is_set():
                    self._again.discard((session, branch))
                    # What it was begun with is said, and it is open; who closes it meanwhile means it.
                    rest = {name: value for name, value in more.items() if name not in ("message", "key", "reopen")}
                    result = await agent.run(self._db, session=session, **rest)
            else:
                # What waits in the inbox is meant for main.
                result = await run_on(self._db, agent, session, branch, **more)
            ended = RunState(False, result.status, storable(result.reason or result.text))
        except PerdureError as e:
            log.warning("a run of session %r on %r ended: %s", session[:80], branch[:80], e)
            ended = RunState(False, "failed", words_of(e))
        except BaseException as e:
            if not is_of_the_call(e):
                raise
            log.exception("a run of session %r on %r failed", session[:80], branch[:80])
            ended = RunState(False, "failed", f"{type(e).__name__}: {words_of(e)}")
        self._again.discard((session, branch))
        self._ended[session, branch] = ended
        while len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]

    async def close(self, grace: float = 5.0) -> None:
        """Put all runs down: after their current step, or where they are."""
        self._stop.set()
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
