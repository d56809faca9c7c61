"""A process that works until it has sent so many requests, and then kills itself: ``victim DATABASE LOG LIFE``."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

from perdure.agent.models import Answer, Request, request_digest
from tests.agent.context.checker import CheckingModel, is_summary
from tests.agent.context.scene import opened, script, worker


class Writing(CheckingModel):
    """Writes down each request, and dies by the one that is its last, before it answers or just after."""

    def __init__(self, log: str, life: int) -> None:
        super().__init__(self._by_conversation)
        self._log, self._life = log, life

    def _by_conversation(self, _: int, request: Request) -> Any:
        # The same to the same request, whichever process asks.
        at = int(request_digest(request)[:6], 16)
        last = request.messages[-1]
        n = int(last["content"].split()[1]) * 10 if last["role"] == "user" else json.loads(self._fact(request))["n"]
        return script(n + 1, request) if n % 10 != 9 else f"that was {at % 7}"

    @staticmethod
    def _fact(request: Request) -> str:
        return next(m["content"] for m in reversed(request.messages) if m["role"] == "tool" and "fact" in m["content"])

    async def answer(self, request: Request, on_delta: Any = None) -> Answer:
        with open(self._log, "a", encoding="utf-8") as file:  # noqa: ASYNC230 - it may be the last thing it does
            text = json.dumps(request, ensure_ascii=False)
            file.write(json.dumps({"digest": request_digest(request), "request": text}) + "\n")
        self._life -= 1
        if self._life == 0 and is_summary(request):
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await super().answer(request, on_delta)
        if self._life == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


async def main(database: str, log: str, life: int) -> None:
    """Work off four tasks."""
    agent = worker(Writing(log, life))
    async with opened(f"sqlite:///{database}") as db:
        for i in range(4):
            result = await agent.run(db, session="s", message=f"task {i}", key=f"task {i}", context={"n": i})
            assert result.ok, result


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
