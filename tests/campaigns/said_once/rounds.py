"""Callers at three doors who say something to one session at the same time, are killed, and say it again."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import perdure
from tests.campaigns.agent_kills.log import Log
from tests.campaigns.crash.zygote import Zygote
from tests.campaigns.said_once.app import agent
from tests.campaigns.said_once.judging import ANSWERED, Caller, Verdict, judge
from tests.campaigns.said_once.life import COMMAND, DOORS, HTTP, LIBRARY
from tests.servers.process import answers, free_port
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

STORES = {"sqlite": 2000, "postgres": 200}
"""Kinds of stores, and how many rounds each has in a long run: what is told does not hang on the store."""
CALLERS = 3
PER_SESSION = 10
"""Rounds in one session; then the next one is spoken to."""
POINTS = {LIBRARY: 40, COMMAND: 40, HTTP: 6, "server": 400}
"""About as many points a life passes: it is killed at one of them that chance chooses."""
KILLED, TWIN, LATE, OTHER = 0.5, 0.25, 0.3, 0.05
"""How many callers are killed, say what another one says with its key at the same time, say what was answered in an
earlier round once more, and say something else under a key that was used."""
MOST_KILLS = 4
TRIES = 20
PATIENT = 60
LIFE = "tests.campaigns.said_once.life"


class Server:
    """``perdure serve``, started again whenever it was killed."""

    def __init__(self, url: str, folder: Path, seed: int) -> None:
        self.port = free_port()
        self.kills = 0
        self._log = Log(str(folder / "server.log"))
        self._job = {"url": url, "port": self.port, "door": "server", "log": self._log.path}
        self._rng = random.Random(f"{seed}/server")
        self._ending = False
        self._thread = threading.Thread(target=self._keep)
        self._thread.start()

    def _keep(self) -> None:
        zygote = Zygote(LIFE)
        try:
            while not self._ending:
                self.kills += zygote.do({**self._job, "hit": self._rng.randint(1, POINTS["server"])})["killed"]
        finally:
            zygote.close()

    def end(self) -> None:
        """End it, and do not start it again."""
        self._ending = True
        while self._thread.is_alive():
            if answers(self.port):
                os.kill([e["pid"] for e in self._log.read() if e["what"] == "begins"][-1], signal.SIGTERM)
                self._thread.join(10)
            time.sleep(0.05)


class Campaign:
    """Rounds on one store, judged."""

    def __init__(
        self, store: str, folder: Path, zygotes: Sequence[Zygote], seed: int, *, sabotage: str = ""
    ) -> None:  # fmt: skip
        self.store = store
        self.rounds = self.kills = 0
        self.ways: Counter[str] = Counter()
        """How callers came to the end of what they had to say."""
        self.points: Counter[str] = Counter()
        self.verdicts: list[Verdict] = []
        self.server: Server | None = None
        """What those who speak HTTP are heard by."""
        self._folder = folder
        self._zygotes = zygotes
        self._seed = seed
        self._job: dict[str, Any] = {"url": url_of(store, folder, "talks"), "sabotage": sabotage}
        self._rng = random.Random(f"{seed}/{store}/said")

    def speak(self, rounds: int) -> None:
        """So many rounds, several in each session, with callers as chance has them."""
        perdure.open(self._job["url"]).close()
        self.server = Server(self._job["url"], self._folder, self._seed)
        self._job["port"] = self.server.port
        try:
            while self.rounds < rounds:
                self.hold(self._callers, min(PER_SESSION, rounds - self.rounds))
        finally:
            self.server.end()

    def hold(self, callers: Callable[[str, list[Caller]], list[Caller]], rounds: int) -> Verdict:
        """One session: rounds of callers, who know of those before them, and what it holds in the end."""
        session, before = f"talk-{len(self.verdicts)}", list[Caller]()
        url = self._job["url"]
        with perdure.open(url, maintain=False) as db, ThreadPoolExecutor(len(self._zygotes)) as pool:
            db.create(session, agent=agent.name)
            for _ in range(rounds):
                self.rounds += 1
                speaking = callers(session, before)
                list(pool.map(self._speak, self._zygotes, speaking))
                before += speaking
            # What nobody waited for is answered as well.
            asyncio.run(agent.run(url, session=session, wait=PATIENT))
            self.verdicts.append(judge(session, before, db.read(session).plain()["messages"]))
        self.ways.update(f"{c.door}{'' if c.key else ', no key'}: {c.end}" for c in before)
        return self.verdicts[-1]

    def _callers(self, session: str, before: list[Caller]) -> list[Caller]:
        """Who speaks in a round."""
        rng, speaking = self._rng, list[Caller]()
        for n in range(rng.randint(2, len(self._zygotes))):
            key = f"k{self.rounds}.{n}" if rng.random() < 0.6 else None
            said = f"m{self.rounds}.{n}{rng.choice(('', '?'))}"
            caller = Caller(session, f"{self.rounds}.{n}", rng.choice(DOORS), said, key, seed=rng.random())
            known = [c for c in before if c.key and c.end == ANSWERED and not c.other]
            if speaking and speaking[0].key and not speaking[0].other and rng.random() < TWIN:
                caller.repeats(speaking[0])
            elif known and rng.random() < LATE:
                caller.repeats(rng.choice(known))
            elif known and rng.random() < OTHER:
                caller.misuses(rng.choice(known))
            speaking.append(caller)
        return speaking

    def _speak(self, zygote: Zygote, caller: Caller) -> None:
        """One caller, from the first time it says it until it was told, or may not say it again."""
        rng = random.Random(caller.seed)
        log = Log(str(self._folder / f"{caller.name}.log"))
        job = {**self._job, "door": caller.door, "session": caller.session, "message": caller.message}
        job |= {"log": log.path, "wait": rng.choice((0, 0, 10))}
        for life in range(TRIES):
            dies: dict[str, Any] = {}
            if caller.deaths is not None:
                dies = {"point": caller.deaths[life], "hit": 1} if life < len(caller.deaths) else {}
            elif life < MOST_KILLS and rng.random() < KILLED:
                dies = {"hit": rng.randint(1, POINTS[caller.door])}
            killed = zygote.do({**job, "key": caller.known, **dies})["killed"]
            caller.entries = log.read()
            if killed:
                self.kills += 1
                self.points[caller.entries[-1]["point"]] += 1
            if caller.hears(killed=killed):
                return
            time.sleep(rng.uniform(0, 0.02))
        caller.end = "stranded"


@contextmanager
def zygotes(count: int = CALLERS) -> Iterator[list[Zygote]]:
    """Who starts the lives of callers, each one at a time."""
    started = [Zygote(LIFE) for _ in range(count)]
    try:
        yield started
    finally:
        for zygote in started:
            zygote.close()
