"""The servers of a whole test run: the first test process that needs one starts it, the run's end stops all."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from tests.servers import place
from tests.servers.objects import start_objects
from tests.servers.place import begin
from tests.servers.postgres import start_postgres
from tests.servers.process import Running, stop
from tests.servers.valkey import redis_binary, start_valkey

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["begin", "end", "objects", "of_the_run", "postgres", "redis", "valkey"]


def end() -> None:
    """Stop everything that the run started and remove its folder; only its owner does."""
    owner, folder = place.where()
    if owner != os.getpid():
        return
    for note in folder.glob("*.json"):
        stop(Running(**json.loads(note.read_text())))
    place.forget()


def of_the_run(name: str, make: Callable[[int], Running]) -> Running:
    """The server of this name, made for the process that owns the run unless somebody has done so already."""
    with place.alone(name) as folder:
        note = folder / f"{name}.json"
        if note.exists():
            return Running(**json.loads(note.read_text()))
        server = make(place.where()[0])
        note.write_text(json.dumps(server._asdict()))
        return server


def postgres() -> Running:
    """The run's PostgreSQL. Each test uses a schema of its own."""
    return of_the_run("postgres", lambda owner: start_postgres(owner=owner))


def valkey() -> Running:
    """The run's Valkey with appendfsync always. Each test uses a prefix of its own."""
    return of_the_run("valkey", lambda owner: start_valkey(owner=owner))


def redis() -> Running | None:
    """Debian's Redis with the same settings, or None where nobody installed it."""
    binary = redis_binary()
    return of_the_run("redis", lambda owner: start_valkey(binary=binary, owner=owner)) if binary else None


def objects() -> Running:
    """The run's S3 server. Each test uses a bucket or prefix of its own."""
    return of_the_run("objects", lambda owner: start_objects(owner=owner))
