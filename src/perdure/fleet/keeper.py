"""Keeps the leases of a worker alive while its process computes and cannot: a small process beside it.

Python runs one thread at a time, and a tool that computes in C without letting others run silences every thread of
its process, the heartbeat among them. The keeper hears the heartbeat over a pipe. When it falls silent while the
worker uses up processor time, the keeper renews the leases in its place. A worker that is stopped (SIGSTOP), hangs or
has died uses none, and its leases end: it must not hold what it cannot work on.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.aio import AsyncDatabase
    from perdure.model import Lease

log = logging.getLogger("perdure.fleet")

UNHEARD = 1 << 20
"""Bytes that wait at most for a keeper that does not listen."""
GOING = 5.0
"""Seconds a keeper has to end once its pipe is closed."""


class Keeper:
    """The worker's side: starts the process and tells it of leases and beats."""

    def __init__(self, db: AsyncDatabase, ttl: int, url: str | None) -> None:
        self._db = db
        self._ttl = ttl
        self._url = url
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._unheard = b""

    def start(self) -> None:
        """Start the process; without a URL that it can open the store by there is none."""
        if self._url is None:
            return
        command = [sys.executable, "-m", "perdure.fleet.keeper"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        assert self._process.stdin is not None
        # Whoever tells it is often the event loop, which waits for nobody.
        os.set_blocking(self._process.stdin.fileno(), False)
        # Through the pipe: a password has no place in a list of processes.
        self._say({"url": self._url, "ttl": self._ttl, "pid": os.getpid()})
        self._db.caretaker.heartbeat.listen(self._told)

    def _told(self, what: str, lease: Lease | None) -> None:
        self._say([what, *lease] if lease is not None else [what])

    def _say(self, what: Any) -> None:
        with self._lock:
            process = self._process
            if process is None or process.stdin is None:
                return
            self._unheard += json.dumps(what).encode() + b"\n"
            try:
                self._unheard = self._unheard[os.write(process.stdin.fileno(), self._unheard) :]
            except BlockingIOError:
                if len(self._unheard) > UNHEARD:
                    self._give_up(process, "does not listen")
            except OSError:
                self._give_up(process, "has died")

    def _give_up(self, process: subprocess.Popen[bytes], why: str) -> None:
        log.warning("the keeper %s: a tool that blocks the whole process may lose its lease", why)
        self._process, self._unheard = None, b""
        process.kill()
        _end(process)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(GOING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Watch:
    """The keeper's side: knows the leases, and whether their holder computes."""

    def __init__(self, url: str, ttl: int, pid: int) -> None:
        self._url = url
        self._ttl = ttl
        self._pid = pid
        self._leases: dict[int, Lease] = {}
        self._used = used_by(pid)
        self._store: Any = None

    def hear(self, said: list[Any]) -> None:
        """A lease comes or goes, or the worker's own heartbeat works."""
        from perdure.model import Lease

        if said[0] == "+":
            lease = Lease(*said[1:])
            self._leases[lease.token] = lease
        elif said[0] == "-":
            self._leases.pop(said[3], None)
        else:
            self._used = used_by(self._pid)

    def silent(self) -> None:
        """No beat has come for too long: renew in its place if the process is at work."""
        used = used_by(self._pid)
        busy = used is not None and (self._used is None or used > self._used)
        self._used = used
        if not busy or not self._leases:
            return
        leases = list(self._leases.values())
        for lease, ok in zip(leases, self._opened().renew(leases, self._ttl), strict=True):
            if not ok:
                self._leases.pop(lease.token, None)

    def _opened(self) -> Any:
        if self._store is None:
            from perdure.stores import open_store
            from perdure.system.clock import SystemClock

            self._store = open_store(self._url, clock=SystemClock())
        return self._store


def used_by(pid: int) -> int | None:
    """Processor time of a process in ticks; None when it has ended, is stopped, or cannot be seen."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "TtZX" else int(fields[11]) + int(fields[12])


def main(told: int) -> None:
    """Read what the worker says, from a file descriptor, until it closes the pipe or dies."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # Those are for the worker, which is still finishing its steps.
        signal.signal(number, signal.SIG_IGN)
    watch: Watch | None = None
    patience, rest = 1.0, b""
    while True:
        ready, _, _ = select.select([told], [], [], patience)
        if not ready:
            if watch is not None:
                _tried(watch)
            continue
        data = os.read(told, 1 << 16)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        for said in map(json.loads, lines):
            if watch is None:
                watch = Watch(said["url"], said["ttl"], said["pid"])
                patience = said["ttl"] / 1000 * 0.45
            else:
                watch.hear(said)


def _tried(watch: Watch) -> None:
    from perdure.errors import PerdureError

    try:
        watch.silent()
    except PerdureError as e:
        log.warning("the keeper could not renew leases: %s", e)


if __name__ == "__main__":
    main(0)
