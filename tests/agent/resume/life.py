"""One life of a conversation, in a process of its own; a zygote like that of :mod:`tests.crash.zygote`.

With a job as its argument it does only that one, from a cold start.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import traceback
import warnings
from typing import Any

from perdure import faults
from perdure.agent import outcome as ended
from perdure.opening import open_async
from perdure.stores import postgres, sqlite
from tests.agent.kills.scenes import Log
from tests.agent.resume.talks import Watch, desk, question, turns_of
from tests.crash.zygote import BROKE, PATIENCE, serve

PRELOADED = (postgres, sqlite)
BOUNDARIES = ("agent.", "call.", "tool.")


def die_after(passes: int) -> None:
    """Have this process killed when it has passed that many boundaries of its loop; 0: count them only."""

    def hook(point: str) -> None:
        if point.startswith(BOUNDARIES):
            hook.passed += 1  # pyright: ignore[reportFunctionMemberAccess]
            if hook.passed == passes:  # pyright: ignore[reportFunctionMemberAccess]
                os.kill(os.getpid(), signal.SIGKILL)

    hook.passed = 0  # pyright: ignore[reportFunctionMemberAccess]
    faults.hook = hook


async def talk(job: dict[str, Any]) -> int:
    """Go on with the conversation wherever it is, to its end."""
    log, seed, session = Log(job["log"]), job["seed"], job["session"]
    watch = Watch(log, "ready", job.get("began"))
    agent = desk(seed, log, watch.stop)
    async with open_async(job["url"], maintain=False) as db:
        die_after(job.get("die", 0))
        result = await agent.run(db, session=session)
        watch.stop()
        async with db.session(session) as s:
            heard = sum(m["role"] == "user" for m in s.messages)
        for n in range(heard, turns_of(seed)):
            result = await agent.run(db, session=session, message=question(seed, n), key=f"q{n}")
        if result.status != ended.DONE:
            raise AssertionError(f"the run ended with {result.status}: {result.reason}")
        passed: Any = faults.hook
        log.note("finished", passed=passed.passed)
    return 0


def _child(job: dict[str, Any], ready: int) -> int:
    try:
        warnings.simplefilter("ignore")
        signal.alarm(PATIENCE)
        return asyncio.run(talk(job))
    except BaseException:
        Log(job["log"]).note("problem", trace=traceback.format_exc())
        return BROKE


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(_child(json.loads(sys.argv[1]), 0))
    serve(_child)
