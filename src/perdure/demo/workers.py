"""The worker processes of the night: started, watched, and replaced like a cluster replaces pods."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from perdure.protocols import Filter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from perdure.protocols import Board, Work

STARTING, UP, FROZEN, LEAVING, DEAD = "starting", "up", "frozen", "leaving", "dead"
WORKING = Filter(state="working")
PAGE = 500


def pid_of(holder: str) -> int:
    """The process behind the name of a worker or of a lease's holder; 0 when it has none."""
    parts = holder.split("/")
    return int(parts[1]) if len(parts) > 2 and parts[1].isdigit() else 0


class Member:
    """One worker process."""

    def __init__(self, number: int, process: subprocess.Popen[bytes]) -> None:
        self.number = number
        self.process = process
        self.state = STARTING
        self.busy = 0
        self.began = time.monotonic()

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid

    def send(self, what: signal.Signals) -> None:
        """Send a signal; one that has ended hears nothing."""
        if self.process.poll() is None:
            os.kill(self.pid, what)


class Workforce:
    """As many workers as wanted: whatever happens to one, another one takes its place."""

    def __init__(self, board: Board, command: list[str], env: dict[str, str], count: int, log: Path) -> None:
        self._board = board
        self._command = command
        self._env = env
        self._count = count
        self._log = log
        self._lock = threading.Lock()
        self.members: list[Member] = []
        self.started = 0
        self.unexpected: list[str] = []
        """Ends that nobody brought about."""

    def begin(self) -> None:
        """Start all of them."""
        for _ in range(self._count):
            self.add()

    def add(self) -> Member:
        """Start one more."""
        with self._lock, self._log.open("ab") as log:
            self.started += 1
            process = subprocess.Popen(
                self._command, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            member = Member(self.started, process)
            self.members.append(member)
            return member

    def replace(self, member: Member) -> None:
        """Start another one in its place."""
        with self._lock:
            self.members.remove(member)
        self.add()

    def works(self) -> list[Work]:
        """What is being worked on, by anybody."""
        found: list[Work] = []
        while True:
            page = self._board.works(WORKING, after=found[-1].session if found else None, limit=PAGE)
            found += page
            if len(page) < PAGE:
                return found

    def look(self) -> None:
        """See who is up and how busy, and replace whoever has ended by itself."""
        rows = {row.pid: row for row in self._board.workers()}
        for member in list(self.members):
            row = rows.get(member.pid)
            if row is not None and member.state in (STARTING, UP):
                member.state, member.busy = UP, row.busy
            code = member.process.poll()
            if code is not None and member.state in (STARTING, UP):
                self.unexpected.append(f"worker {member.number} ended by itself with {code}")
                member.state = DEAD
                self.replace(member)

    def wait_until_up(self, patience: float, stop: Callable[[], bool]) -> bool:
        """Wait until all serve; False when they do not in time."""
        until = time.monotonic() + patience
        while time.monotonic() < until and not stop():
            self.look()
            if all(m.state == UP for m in self.members):
                return True
            time.sleep(0.05)
        return False

    def end(self, grace: float) -> None:
        """Tell all to go, and see to it that they do."""
        with self._lock:
            members = list(self.members)
        for member in members:
            member.send(signal.SIGCONT)
            member.send(signal.SIGTERM)
        until = time.monotonic() + grace
        for member in members:
            try:
                member.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()


def command(concurrency: int, lease: float, grace: float) -> list[str]:
    """How a worker is started; the store is named in its environment, for a password has no place in a command."""
    start = [sys.executable, "-m", "perdure.cli", "worker", "perdure.demo.app"]
    return [*start, "--concurrency", str(concurrency), "--lease", str(lease), "--grace", str(grace)]
