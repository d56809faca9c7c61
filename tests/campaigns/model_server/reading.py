"""A reader in a process of its own, while workers are killed in the middle of their answers."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import perdure
from tests.campaigns.agent_kills.log import Log
from tests.campaigns.model_server.scene import settled
from tests.servers.llmock import base_url, forget, plan, reply
from tests.store_urls import url_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.campaigns.crash.zygote import Zygote
    from tests.servers.process import Running

WORDS = 220
"""Words of an answer that is to be cut off: at the server's pace it takes seconds."""
LAST_WORDS = 30
PATIENCE = 120.0


class Read(NamedTuple):
    """What one reader saw."""

    kills: int
    deltas: int
    retracted: int
    same: bool
    """Whether what it shows in the end is what was committed."""
    fits: bool
    """Whether every piece belonged where it was put."""
    problems: list[str]

    @property
    def ok(self) -> bool:
        """Whether the reader was told of every death, and shows the truth."""
        return self.same and self.fits and self.retracted >= self.kills > 0 and not self.problems


class Bench:
    """A store, processes that work, and a process that reads."""

    def __init__(self, server: Running, folder: Path, store: str, workers: Zygote, readers: Zygote) -> None:
        self._server = server
        self._folder = folder
        self._store = store
        self._workers = workers
        self._readers = readers
        self._url = url_of(store, folder, "read-along")

    def read(self, n: int, kills: int, rng: random.Random) -> Read:
        """Have a conversation of one answer, whose worker is killed so many times after a few pieces were seen."""
        session, log = f"read-{n}", self._folder / f"{self._store}-reader-{n}.log"
        reader = self._start(self._readers, {"reads": True, "session": session, "log": str(log)})
        _wait(lambda: _events(log) is not None, reader)
        api = rng.choice(("chat", "responses"))
        problems: list[str] = []
        for attempt in range(kills + 1):
            last = attempt == kills
            words = " ".join(f"word{i}" for i in range(LAST_WORDS if last else WORDS))
            forget(self._server)
            plan(self._server, reply(f"attempt {attempt} of {n}: {words}"))
            diary = self._folder / f"{self._store}-worker-{n}-{attempt}.log"
            job = {"session": session, "log": str(diary), "api": api, "base_url": base_url(self._server)}
            before = len(_events(log) or [])
            worker = self._start(self._workers, {**job, "messages": ["Tell me all."], "live": True})
            if not last:
                enough = rng.randint(2, 8)
                _wait(lambda b=before, e=enough: _deltas((_events(log) or [])[b:]) >= e, reader)
                pid = next(e["pid"] for e in Log(str(diary)).read() if e["what"] == "began")
                os.kill(pid, signal.SIGKILL)
            worker.join(PATIENCE)
            written = Log(str(diary)).read()
            problems += [e["trace"] for e in written if e["what"] == "problem"]
            if not last and any(e["what"] == "finished" for e in written):
                problems.append("the worker had ended before it was killed")
        reader.join(PATIENCE)
        events = _events(log) or []
        problems += [e["trace"] for e in Log(str(log)).read() if e["what"] == "problem"]
        shown, fits = settled(events)
        retracted = sum(e["kind"] == "retracted" for e in events)
        return Read(kills, _deltas(events), retracted, shown == self._committed(session), fits, problems)

    def _start(self, zygote: Zygote, job: dict[str, Any]) -> threading.Thread:
        thread = threading.Thread(target=zygote.do, args=({"url": self._url, **job},), daemon=True)
        thread.start()
        return thread

    def _committed(self, session: str) -> str:
        with perdure.open(self._url, maintain=False) as db:
            return "".join(m["content"] for m in db.read(session).messages if m["role"] == "assistant")


def _events(log: Path) -> list[dict[str, Any]] | None:
    """What a reader has written down; None before it has begun."""
    if not log.exists():
        return None
    return [e for e in Log(str(log)).read() if e["what"] == "event"]


def _deltas(events: list[dict[str, Any]]) -> int:
    return sum(e["kind"] == "delta" for e in events)


def _wait(until: Callable[[], bool], reader: threading.Thread) -> None:
    """Wait for something that the reader must see sooner or later."""
    end = time.monotonic() + PATIENCE
    while not until():
        if time.monotonic() > end or not reader.is_alive():
            raise TimeoutError("the reader has not seen what it should: it has ended, or nothing was told")
        time.sleep(0.01)


def lines(store: str, every: list[Read]) -> list[str]:
    """For people."""
    rows = {
        "workers killed in the middle of an answer": sum(r.kills for r in every),
        "pieces seen": sum(r.deltas for r in every),
        "attempts retracted": sum(r.retracted for r in every),
        "pieces out of place": sum(not r.fits for r in every),
        "final text other than the committed one": sum(not r.same for r in every),
    }
    return [
        f"{store}: a reader in another process, {len(every)} answers",
        *(f"  {what:44}{n}" for what, n in rows.items()),
    ]
