"""Servers that are killed and started again under load, while a client works on through its retries."""

from __future__ import annotations

import os
import random
import select
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.campaigns.crash.journal import read_journal
from tests.campaigns.crash.kills import Tally, Victim
from tests.campaigns.crash.zygote import Zygote
from tests.servers.postgres import postgres_url, start_postgres
from tests.servers.process import Running, kill, stop
from tests.servers.valkey import redis_url, start_valkey

if TYPE_CHECKING:
    from collections.abc import Callable

LEASE_TTL = 2.0
"""Seconds; a lease that could not be given back keeps its own session waiting that long."""
DEATHS = 10
"""Deaths of its server that one store goes through before its final check; then a new one is begun."""


class Patient:
    """A server of our own that dies and lives again in the same place."""

    def __init__(self, kind: str) -> None:
        self._start: Callable[..., Running] = {"postgres": start_postgres, "redis": start_valkey}[kind]
        self._server = self._start()

    @property
    def running(self) -> Running:
        """The server as it runs now."""
        return self._server

    def die(self, *, gently: bool, away: float) -> None:
        """End it, by SIGKILL or by asking it to, and start it again after a while."""
        if gently:
            # SIGINT has PostgreSQL end all sessions and shut down at once; Valkey does so too.
            os.kill(self._server.server, signal.SIGINT)
            _gone(self._server)
        else:
            kill(self._server)
        time.sleep(away)
        self._server = self._start(folder=self._server.folder, port=self._server.port)

    def close(self) -> None:
        """End it for good."""
        stop(self._server)


def _gone(server: Running) -> None:
    """Wait until an asked server has ended; its guard goes with it."""
    with suppress(ProcessLookupError):
        watch = os.pidfd_open(server.guard)
        try:
            if not select.select([watch], [], [], 30)[0]:
                raise RuntimeError(f"{server.kind} does not end")
        finally:
            os.close(watch)
    stop(server, keep=True)


def kill_servers(store: str, folder: str, seed: int, wanted: int, say: Callable[[Tally], None]) -> Tally:
    """Kill or restart the servers of a store ``wanted`` times while a client works."""
    tally = Tally(store, "server")
    rng = random.Random(f"{seed}/{store}/server")
    kinds = {"postgres": ["postgres"], "redis": ["redis"], "tiered": ["redis", "postgres"]}[store]
    patients = {kind: Patient(kind) for kind in kinds}
    zygote = Zygote()
    try:
        # Where something is wrong, killing on would only bury it.
        while tally.kills < wanted and not tally.problems:
            url = _url(store, patients, tally.stores)
            victim = Victim(zygote, store, folder, tally, url=url)
            _live(victim, list(patients.values()), rng, min(DEATHS, wanted - tally.kills), tally, say)
            victim.end(rng.randrange(1 << 30), options={"lease_ttl": LEASE_TTL})
    finally:
        zygote.close()
        for patient in patients.values():
            patient.close()
    return tally


def _url(store: str, patients: dict[str, Patient], number: int) -> str:
    urls = {}
    if "postgres" in patients:
        urls["postgres"] = f"{postgres_url(patients['postgres'].running)}?schema=victim{number}"
    if "redis" in patients:
        urls["redis"] = f"{redis_url(patients['redis'].running)}?prefix=victim{number}"
    return f"tiered:{urls['redis']},{urls['postgres']}" if store == "tiered" else urls[store]


def _live(
    victim: Victim, patients: list[Patient], rng: random.Random, deaths: int, tally: Tally, say: Callable[[Tally], None]
) -> None:
    """One store's life: a client at work, and its servers dying."""
    halt = f"{victim.folder}/stop"
    ended: list[Any] = []

    def work() -> None:
        ended.append(victim.do(rng.randrange(1 << 30), stop=halt, options={"lease_ttl": LEASE_TTL}, maintain=True))

    client = threading.Thread(target=work)
    client.start()
    try:
        for _ in range(deaths):
            _wait_for_work(victim.journal, client)
            if not client.is_alive():
                break
            time.sleep(rng.random() * 0.4)
            patient = rng.choice(patients)
            patient.die(gently=rng.random() < 0.3, away=rng.choice((0.0, 0.0, rng.random())))
            tally.kills += 1
            tally.points["server"] += 1
            say(tally)
    finally:
        Path(halt).touch()
        client.join()
    tally.away += sum(event["t"] == "away" for event in read_journal(victim.journal))


def _wait_for_work(journal: str, client: threading.Thread) -> None:
    """Until the client has finished something since we last looked: a server that is killed is under load."""
    before = _done(journal)
    deadline = time.monotonic() + 60
    while client.is_alive() and _done(journal) < before + 3:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the client does not get anywhere: see {journal}")
        time.sleep(0.02)


def _done(journal: str) -> int:
    try:
        return Path(journal).read_bytes().count(b'{"t":"done"')
    except FileNotFoundError:
        return 0
