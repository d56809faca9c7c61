"""An agent in a process of its own that says as many words as it may. ``python -m tests.server.talker JOB``."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import perdure
from perdure import Agent
from perdure.agent.models import Answer, Delta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perdure.agent.models import Request

WORDS = 20


def said(attempt: str, words: int) -> str:
    """The first words of an attempt; each begins otherwise."""
    return "".join(f"{attempt}{n} " for n in range(words))


class Talker:
    """A model that says a word as soon as the file allows it."""

    name = "talker"

    def __init__(self, attempt: str, allowed: Path) -> None:
        self._attempt = attempt
        self._allowed = allowed

    async def answer(self, request: Request, on_delta: Callable[[Delta], None] | None = None) -> Answer:
        """All words."""
        assert on_delta is not None
        for n in range(WORDS):
            while int(self._allowed.read_text()) <= n:  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.02)
            on_delta(Delta(text=f"{self._attempt}{n} "))
        return Answer({"role": "assistant", "content": said(self._attempt, WORDS)})

    async def close(self) -> None:
        """Nothing to release."""


class Talk:
    """Workers that talk, one after the other, and how far they may."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._allowed = folder / "allowed"
        self._workers: list[subprocess.Popen[bytes]] = []
        self._attempt = ""
        self.allow(0)

    def start(self, attempt: str, branch: str = "main") -> subprocess.Popen[bytes]:
        """Start a worker."""
        self._attempt = attempt
        job = {"url": self.url, "attempt": attempt, "allowed": str(self._allowed), "branch": branch}
        worker = subprocess.Popen([sys.executable, "-m", "tests.server.talker", json.dumps(job)])
        self._workers.append(worker)
        return worker

    def allow(self, words: int) -> str:
        """Let so many words be said; what that is."""
        new = self._allowed.with_suffix(".new")
        new.write_text(str(words))
        new.replace(self._allowed)
        return said(self._attempt, words)

    def whole(self, attempt: str) -> str:
        """All that an attempt says."""
        return said(attempt, WORDS)

    def stop(self) -> None:
        """End all workers."""
        for worker in self._workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()


@contextmanager
def talking(url: str, folder: Path) -> Iterator[Talk]:
    """Workers that are gone afterwards."""
    talk = Talk(url, folder)
    try:
        yield talk
    finally:
        talk.stop()


async def work(job: dict[str, Any]) -> None:
    """Answer one message."""
    agent = Agent("talker", model=Talker(job["attempt"], Path(job["allowed"])))
    async with perdure.open_async(job["url"]) as db:
        await agent.run(db, session="s", message="go", key="m", live=True, branch=job["branch"])


if __name__ == "__main__":
    asyncio.run(work(json.loads(sys.argv[1])))
