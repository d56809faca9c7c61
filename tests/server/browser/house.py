"""A real server and real workers on one store, as processes, and their end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import perdure

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

LIMIT = 60.0
"""Seconds after which a condition that never comes true is a failure."""
APP = "tests.server.browser.app"
TOKEN = "a-token-for-the-tests-of-the-console"
NEAR = "sqlite:///agents.db"
"""The store as its processes name it, in its folder: pages show that, and pictures must not show a machine."""
ROOT = Path(__file__).resolve().parents[3]


class House:
    """One store in a folder, with a server and workers on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'agents.db'}"
        self.ledger = folder / "ledger"
        self.address = ""
        self._log = folder / "log"
        self._processes: list[subprocess.Popen[bytes]] = []

    def fill(self, *makers: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        """Put sessions into the store, in a thread of its own: the browser's loop runs in this one."""

        async def work() -> None:
            # Not synced: what is only looked at later need not survive a power loss.
            async with perdure.open_async(self.url, synchronous="normal") as db:
                for make in makers:
                    await make(db)

        in_thread(work)

    def serve(self, *, app: bool = True) -> None:
        """Start ``perdure serve`` and wait until it answers."""
        options = [APP] if app else []
        log = self._start("serve", *options, "--store", NEAR, "--port", "0", "--token", TOKEN)
        said = until(lambda: re.search(r" at (http://\S+/)", log.read_text()), log.read_text)
        self.address = said[1].rstrip("/")

    def work(self, *options: str) -> subprocess.Popen[bytes]:
        """Start ``perdure worker`` and wait until it serves."""
        log = self._start("worker", APP, "--store", NEAR, "--lease", "2", "--grace", "10", *options)
        until(lambda: "serves" in log.read_text(), log.read_text)
        return self._processes[-1]

    def _start(self, *words: str) -> Path:
        log = self.folder / f"{words[0]}-{len(self._processes)}.log"
        environment = {**os.environ, "CONSOLE_LEDGER": str(self.ledger), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "perdure.cli", *words]
        with log.open("wb") as out:
            process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, cwd=self.folder)
        self._processes.append(process)
        return log

    def lines(self) -> list[str]:
        """What was really done, by what was written into the ledger."""
        return self.ledger.read_text().splitlines() if self.ledger.exists() else []

    def said(self) -> str:
        """The end of what the processes have logged."""
        return "\n".join(log.read_text()[-3000:] for log in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        """End every process; those that do not go by themselves are killed."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def until(what: Callable[[], Any], else_say: Callable[[], str] = lambda: "", limit: float = LIMIT) -> Any:
    """Wait until something is so."""
    end = time.monotonic() + limit
    while not (found := what()):
        if time.monotonic() > end:
            raise AssertionError(f"it did not come to that in {limit} s\n{else_say()}")
        time.sleep(0.05)
    return found


def in_thread(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine to its end in a thread that has no loop yet."""
    problems: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(work())
        except BaseException as e:
            problems.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
