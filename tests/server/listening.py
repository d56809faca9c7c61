"""A server as a real process, and a reader of its events that comes back with Last-Event-ID as a browser does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx

from tests.server.asking import BEARER, TOKEN
from tests.servers.process import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LIMIT = 90.0
"""Seconds after which what never comes is a failure."""
PLAIN = False
"""Nothing here is encrypted: a client would read all certificates of the machine each time it tries to connect."""


def until(what: Callable[[], Any], about: Callable[[], object] = str) -> Any:
    """Wait until something is so."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.02)
    raise AssertionError(f"it never came to that: {about()}")


class Server:
    """``perdure serve``, started as often as it is killed."""

    def __init__(self, url: str, folder: Path, *options: str) -> None:
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self._log = folder / "server.log"
        self._command = [sys.executable, "-m", "perdure.cli", "serve", *options]
        self._command += ["--store", url, "--port", str(self.port)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self._log.open("ab") as log:
            environment = {**os.environ, "PERDURE_TOKEN": TOKEN}
            self._process = subprocess.Popen(self._command, env=environment, stdout=log, stderr=log)
        until(self._answers, self.said)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.said()
        try:
            return httpx.get(f"{self.base}/readyz", timeout=5, verify=PLAIN).status_code == 200
        except httpx.HTTPError:
            return False

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Send it a signal and wait for its end."""
        assert self._process is not None
        self._process.send_signal(number)
        code = self._process.wait(LIMIT)
        self._process = None
        return code

    def stop(self) -> None:
        """End it, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def said(self) -> str:
        """What it has printed."""
        return self._log.read_text()[-3000:] if self._log.exists() else ""


@contextmanager
def serving(url: str, folder: Path, *options: str) -> Iterator[Server]:
    """A server that is gone afterwards."""
    server = Server(url, folder, *options)
    try:
        server.start()
        yield server
    finally:
        server.stop()


class Told(NamedTuple):
    """One event as it arrived."""

    kind: str
    id: str
    data: Any


class Reader:
    """Reads a stream in a thread; whenever it breaks, comes back with the id of the last event it has had."""

    def __init__(self, url: str, **params: str) -> None:
        self.events: list[Told] = []
        self.connections = 0
        self.problem = ""
        self._url = url
        self._params = params
        self._over = threading.Event()
        self._client: httpx.Client | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._over.is_set():
            try:
                self._connect()
            except httpx.HTTPError:
                time.sleep(0.05)

    def _connect(self) -> None:
        last = {"Last-Event-ID": self.events[-1].id} if self.events else {}
        with (
            httpx.Client(timeout=httpx.Timeout(10, read=30), verify=PLAIN) as client,
            client.stream("GET", self._url, params=self._params, headers={**BEARER, **last}) as answer,
        ):
            if answer.status_code != 200:
                self.problem = f"{answer.status_code} {answer.read().decode()}"
                return
            self.connections += 1
            fields: dict[str, str] = {}
            for line in answer.iter_lines():
                if self._over.is_set():
                    return
                if not line:
                    if "data" in fields:
                        self.events.append(Told(fields["event"], fields["id"], json.loads(fields["data"])))
                    fields = {}
                elif not line.startswith(":"):
                    name, _, value = line.partition(": ")
                    fields[name] = value

    def kinds(self) -> list[str]:
        """What kinds of events have arrived."""
        return [e.kind for e in self.events]

    def wait(self, what: Callable[[Reader], Any]) -> Any:
        """Wait until enough has arrived."""
        return until(lambda: what(self), lambda: (self.problem, self.events[-5:]))

    def close(self) -> None:
        """Read no more."""
        self._over.set()


@contextmanager
def reading(server: Server, path: str, **params: str) -> Iterator[Reader]:
    """A reader that is connected."""
    reader = Reader(f"{server.base}/api/v1{path}", **params)
    try:
        reader.wait(lambda r: r.connections)
        yield reader
    finally:
        reader.close()
