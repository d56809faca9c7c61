"""One life of a conversation: go on wherever it is, to its end. Run with a job to do that from a cold start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

from perdure.agent import run_result as ended
from perdure.opening import open_async
from perdure.system import faults
from tests.campaigns.agent_kills.log import Log
from tests.campaigns.resume_or_restart.talks import Watch, desk, question, turns_of

BOUNDARIES = ("agent.", "call.", "tool.")


class Counting:
    """Counts the boundaries of the loop that a process passes, and kills it at one of them (0: at none)."""

    def __init__(self, die: int) -> None:
        self._die = die
        self.passed = 0
        faults.hook = self._pass

    def _pass(self, point: str) -> None:
        if point.startswith(BOUNDARIES):
            self.passed += 1
            if self.passed == self._die:
                os.kill(os.getpid(), signal.SIGKILL)


async def talk(job: dict[str, Any]) -> int:
    """Go on with the conversation wherever it is, to its end."""
    log, seed, session = Log(job["log"]), job["seed"], job["session"]
    watch = Watch(log, "ready", job.get("began"))
    agent = desk(seed, log, watch.stop)
    async with open_async(job["url"], maintain=False) as db:
        counting = Counting(job.get("die", 0))
        result = await agent.run(db, session=session)
        watch.stop()
        async with db.session(session) as s:
            heard = sum(m["role"] == "user" for m in s.messages)
        for n in range(heard, turns_of(seed)):
            result = await agent.run(db, session=session, message=question(seed, n), key=f"q{n}")
        if result.status != ended.DONE:
            raise AssertionError(f"the run ended with {result.status}: {result.reason}")
        log.note("finished", passed=counting.passed)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(talk(json.loads(sys.argv[1]))))
