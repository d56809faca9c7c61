"""Lives of conversations, each in a process of its own: a zygote like that of :mod:`tests.campaigns.crash.zygote`."""

from __future__ import annotations

import asyncio
import signal
import traceback
import warnings
from typing import Any

from perdure.stores.postgres import store
from perdure.stores.sqlite import store as sqlite_store
from tests.campaigns.agent_kills.log import Log
from tests.campaigns.crash.zygote import BROKE, PATIENCE, serve
from tests.campaigns.resume_or_restart.talking import talk

PRELOADED = (store, sqlite_store)


def _child(job: dict[str, Any], ready: int) -> int:
    try:
        warnings.simplefilter("ignore")
        signal.alarm(PATIENCE)
        return asyncio.run(talk(job))
    except BaseException:
        Log(job["log"]).note("problem", trace=traceback.format_exc())
        return BROKE


if __name__ == "__main__":
    serve(_child)
