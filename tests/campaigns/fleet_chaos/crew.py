"""The workers of a chaos run: their clocks can be set, and those that die are replaced."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fleet.harness import Fleet

if TYPE_CHECKING:
    import random

APP = "tests.campaigns.fleet_chaos.app"
LEASE = 1.0
CONCURRENCY = 8
TRIES = 20
"""Where a worker dies or freezes every few seconds bad luck alone has a session meet five of them."""


class Crew(Fleet):
    """Workers under libfaketime, whose wall clock is what a file says; monotonic clocks stay as they are."""

    def __init__(self, url: str, folder: Path, number: int) -> None:
        self._clock = folder / "clock"
        self.offset = 0
        """Seconds by which the workers' clock is wrong."""
        self.jump(0)
        super().__init__(url, folder, app=APP, lease=LEASE, FLEET_PAUSE="0.15", **self._faked())
        self.frozen: dict[int, float] = {}
        """Workers that are stopped, and until when."""
        self.expected: set[int] = set()
        """Workers that we have ended."""
        self.quit: list[int] = []
        """Workers that ended by themselves although they had begun to work."""
        self.begun: set[int] = set()
        """Workers that were seen on the board."""
        self._number = number

    def _faked(self) -> dict[str, str]:
        spec = importlib.util.find_spec("libfaketime")
        assert spec is not None
        assert spec.origin is not None
        library = Path(spec.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_CACHE_DURATION": "1",
            "NO_FAKE_STAT": "1",
        }

    def jump(self, offset: int) -> None:
        """Set the workers' wall clock so many seconds before or behind the real one."""
        new = self._clock.with_suffix(".new")
        new.write_text(f"{offset:+d}s\n")
        new.replace(self._clock)
        self.offset = offset

    def alive(self) -> list[subprocess.Popen[bytes]]:
        """Workers that are there, frozen ones among them."""
        return [w for w in self.workers if w.poll() is None]

    def awake(self) -> list[subprocess.Popen[bytes]]:
        """Workers that can do something."""
        return [w for w in self.alive() if w.pid not in self.frozen]

    def refill(self) -> None:
        """Replace those that are gone; note those that went by themselves."""
        for worker in list(self.workers):
            if worker.poll() is not None:
                self.workers.remove(worker)
                if worker.pid not in self.expected and worker.pid in self.begun:
                    self.quit.append(worker.returncode)
        if (missing := self._number - len(self.workers)) > 0:
            self.start(missing, "--concurrency", str(CONCURRENCY), "--tries", str(TRIES))

    def one(self, dice: random.Random) -> subprocess.Popen[bytes] | None:
        """Some worker that is awake and has begun to work."""
        able = [w for w in self.awake() if w.pid in self.begun and w.pid not in self.expected]
        return dice.choice(able) if able else None

    def strike(self, worker: subprocess.Popen[bytes], number: int) -> None:
        """End a worker without waiting for it."""
        self.expected.add(worker.pid)
        worker.send_signal(number)

    def freeze(self, worker: subprocess.Popen[bytes], until: float) -> None:
        """Stop a worker for longer than its lease."""
        worker.send_signal(signal.SIGSTOP)
        self.frozen[worker.pid] = until

    def thaw(self, now: float) -> None:
        """Let those go on whose time has come."""
        for worker in self.alive():
            if worker.pid in self.frozen and self.frozen[worker.pid] <= now:
                worker.send_signal(signal.SIGCONT)
                del self.frozen[worker.pid]
