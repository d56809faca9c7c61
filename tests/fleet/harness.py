"""Workers as real processes, and what they charged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import perdure
from perdure.fleet.board import board_of
from perdure.protocols import Filter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perdure.protocols import Board

LIMIT = 90.0
"""Seconds after which a condition that never comes true is a failure."""


class Fleet:
    """Some workers on one store."""

    def __init__(
        self, url: str, folder: Path, *, app: str = "tests.fleet.app", lease: float = 1.0, **more: str
    ) -> None:
        self.url = url
        self.ledger = folder / "ledger"
        self.log = folder / "workers.log"
        self.workers: list[subprocess.Popen[bytes]] = []
        self._app = app
        self._lease = lease
        self._more = more

    def start(self, number: int = 1, *options: str, **env: str) -> list[subprocess.Popen[bytes]]:
        """Start workers."""
        command = [sys.executable, "-m", "perdure.cli", "worker", self._app, "--store", self.url]
        command += ["--lease", str(self._lease), "--grace", "20", *options]
        environment = {**os.environ, "FLEET_LEDGER": str(self.ledger), **self._more, **env}
        new: list[subprocess.Popen[bytes]] = []
        for _ in range(number):
            with self.log.open("ab") as log:
                new.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        self.workers += new
        return new

    def kill(self, worker: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
        """Send a worker a signal; one that dies of it is waited for."""
        worker.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            worker.wait(LIMIT)

    def stop(self) -> None:
        """End all workers; those that do not go by themselves are killed."""
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGCONT)
                worker.terminate()
        for worker in self.workers:
            try:
                worker.wait(30)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()

    def lines(self, first: str = "") -> list[list[str]]:
        """What was written into the ledger, by its first word."""
        if not self.ledger.exists():
            return []
        found = [line.split() for line in self.ledger.read_text().splitlines()]
        return [words for words in found if not first or words[0] == first]

    def charges(self, what: str = "charge") -> Counter[str]:
        """How often each order was charged: requests under one key count once."""
        return Counter(order for order, _ in {(words[1], words[2]) for words in self.lines(what)})

    def said(self) -> str:
        """The end of what the workers have logged."""
        return self.log.read_text()[-4000:] if self.log.exists() else ""


@contextmanager
def fleet(url: str, folder: Path, **options: Any) -> Iterator[Fleet]:
    """A fleet whose workers are gone afterwards, whatever happens."""
    found = Fleet(url, folder, **options)
    try:
        yield found
    finally:
        found.stop()


def until(what: Callable[[], Any], fleet: Fleet | None = None, limit: float = LIMIT) -> Any:
    """Wait until something is so."""
    end = time.monotonic() + limit
    while not (found := what()):
        if time.monotonic() > end:
            raise AssertionError(f"it did not come to that in {limit} s\n{fleet.said() if fleet is not None else ''}")
        time.sleep(0.02)
    return found


def working(board: Board, pid: int | None = None) -> list[str]:
    """Sessions that are being worked on, by one process or by any."""
    works = board.works(Filter(state="working"), limit=10_000)
    return [w.session for w in works if pid is None or w.worker.split("/")[1] == str(pid)]


def answered(db: perdure.Database, session: str) -> list[str]:
    """What the agent has said to the user in a session so far."""
    messages = db.read(session).plain()["messages"]
    return [m["content"] for m in messages if m["role"] == "assistant" and m["content"]]


def is_idle(db: perdure.Database, sessions: list[str]) -> bool:
    """Whether nothing is left to do in these sessions."""
    rows = [db.look(session) for session in sessions]
    return all(r.status == "idle" and not r.pending and not r.lease.holder for r in rows)


def board(db: perdure.Database) -> Board:
    """The board of a database."""
    return board_of(db)
