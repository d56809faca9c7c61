"""Lives of agents and of readers, each in a process of its own: a zygote like :mod:`tests.campaigns.crash.zygote`."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import openai

from perdure.agent import run_result as ended
from perdure.agent.session_stream import follow
from perdure.opening import open_async
from perdure.stores.postgres import store
from perdure.stores.redis import store as redis_store
from perdure.stores.sqlite import store as sqlite_store
from perdure.system import faults
from tests.campaigns.agent_kills.log import Log
from tests.campaigns.crash.zygote import BROKE, PATIENCE, serve
from tests.campaigns.model_server.scene import MESSAGES, guide

if TYPE_CHECKING:
    from perdure.agent.session_stream import Event

PRELOADED = (openai, store, redis_store, sqlite_store)
DELTA = "delta"
"""The point that is passed with every piece of an answer."""


class Points:
    """Counts the points that a process passes, and kills it at one of them."""

    def __init__(self, die: list[Any] | None) -> None:
        self._die = tuple(die or ("", 0))
        self.passed: Counter[str] = Counter()
        faults.hook = self.pass_

    def pass_(self, point: str) -> None:
        """Pass a point."""
        self.passed[point] += 1
        if (point, self.passed[point]) == self._die:
            os.kill(os.getpid(), signal.SIGKILL)

    def see(self, event: Event) -> None:
        """Pieces of answers are points, too."""
        if event.kind == "delta":
            self.pass_(DELTA)


async def talk(job: dict[str, Any]) -> int:
    """Go on with the conversation wherever it is, to its end."""
    log = Log(job["log"])
    log.note("began", pid=os.getpid())
    # An agent that is not the same in every process must be found out.
    agent = guide(job["base_url"], job["api"], f"Process {os.getpid()}." if job.get("sabotage") else "Be brief.")
    said = job.get("messages", MESSAGES)
    async with open_async(job["url"], maintain=False) as db:
        # Each run has a context of its own: what is open belongs to the message that was given last.
        row = db.kernel.store.look(job["session"])
        given = row.pending if row is not None else 0
        if row is not None and row.heads:
            given += sum(m["role"] == "user" for m in (await db.read(job["session"])).messages)
        points = Points(job.get("die"))
        for n in range(max(given - 1, 0), len(said)):
            result = await agent.run(
                db, session=job["session"], message=said[n], key=f"m{n}", context={"message": n},
                on_event=points.see, live=job.get("live", False),
            )  # fmt: skip
            if result.status != ended.DONE:
                raise AssertionError(f"the run ended with {result.status}: {result.reason}")
        log.note("finished", passed=dict(points.passed))
    await agent.close()
    return 0


async def read_along(job: dict[str, Any]) -> int:
    """Write down what is seen of a session from outside, until its run has ended."""
    log = Log(job["log"])
    async with open_async(job["url"], maintain=False) as db:
        log.note("began", pid=os.getpid())
        async for event in follow(db, job["session"], after=0, poll=0.02):
            seen = {k: v for k, v in event.data.items() if k in ("text", "offset", "attempt", "worker", "status")}
            log.note("event", kind=event.kind, **seen)
    return 0


def _child(job: dict[str, Any], ready: int) -> int:
    del ready
    try:
        warnings.simplefilter("ignore")
        signal.alarm(PATIENCE)
        return asyncio.run(read_along(job) if job.get("reads") else talk(job))
    except BaseException:
        Log(job["log"]).note("problem", trace=traceback.format_exc())
        return BROKE


if __name__ == "__main__":
    serve(_child)
