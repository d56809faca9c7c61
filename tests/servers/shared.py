"""The servers of a whole test run: the first test process that needs one starts it, the run's end stops all."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.objects import start_objects
from tests.servers.postgres import start_postgres
from tests.servers.process import Running, stop
from tests.servers.valkey import redis_binary, start_valkey

if TYPE_CHECKING:
    from collections.abc import Callable

PLACE = "PERDURE_TEST_SERVERS"
"""The folder where the run's servers are written down, as ``<pid of the run>:<folder>``."""


def begin() -> None:
    """Called once by the process that owns the test run; its children inherit the place."""
    if PLACE not in os.environ:
        os.environ[PLACE] = f"{os.getpid()}:{tempfile.mkdtemp(prefix='perdure-servers-')}"


def end() -> None:
    """Stop everything that the run started; only its owner does."""
    owner, folder = _place()
    if owner != os.getpid():
        return
    for note in Path(folder).glob("*.json"):
        stop(Running(**json.loads(note.read_text())))
    shutil.rmtree(folder, ignore_errors=True)
    del os.environ[PLACE]


def _place() -> tuple[int, str]:
    owner, _, folder = os.environ[PLACE].partition(":")
    return int(owner), folder


def _server(name: str, make: Callable[[int], Running]) -> Running:
    begin()
    owner, folder = _place()
    note = Path(folder) / f"{name}.json"
    with (Path(folder) / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if note.exists():
            return Running(**json.loads(note.read_text()))
        server = make(owner)
        note.write_text(json.dumps(server._asdict()))
        return server


def postgres() -> Running:
    """The run's PostgreSQL. Each test uses a schema of its own."""
    return _server("postgres", lambda owner: start_postgres(owner=owner))


def valkey() -> Running:
    """The run's Valkey with appendfsync always. Each test uses a prefix of its own."""
    return _server("valkey", lambda owner: start_valkey(owner=owner))


def redis() -> Running | None:
    """Debian's Redis with the same settings, or None where nobody installed it."""
    binary = redis_binary()
    return _server("redis", lambda owner: start_valkey(binary=binary, owner=owner)) if binary else None


def objects() -> Running:
    """The run's S3 server. Each test uses a bucket or prefix of its own."""
    return _server("objects", lambda owner: start_objects(owner=owner))
