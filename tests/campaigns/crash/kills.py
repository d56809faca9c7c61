"""The kill campaign on one kind of store: at every named point of every scenario, then at random moments."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.campaigns.crash import plans
from tests.campaigns.crash.journal import FileJournal
from tests.campaigns.crash.zygote import OPENING, Zygote
from tests.servers.place import memory
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Callable

STORES = ("file", "sqlite")
SERVERS = ("postgres", "redis", "tiered")
"""Stores on servers, which have campaigns of their own."""
LIFE = 25
"""Kills that one store goes through before its final check; then a new one is begun."""
SCENARIOS = [name for name in plans.DOING if name not in ("call", "recall")]


class Tally:
    """What a campaign has seen on one kind of store."""

    def __init__(self, store: str, kind: str) -> None:
        self.store = store
        self.kind = kind
        self.kills = 0
        self.missed = 0
        """Jobs that ended without passing the point they were to be killed at."""
        self.acknowledged = 0
        self.away = 0
        """How often a client was told that its server cannot be reached, or that nobody knows."""
        self.stores = 0
        self.points: Counter[str] = Counter()
        self.problems: list[dict[str, Any]] = []

    def count(self, *kinds: str) -> int:
        """How many problems of some kinds there were."""
        return sum(p["kind"] in kinds for p in self.problems)

    @property
    def lost(self) -> int:
        """Acknowledged, and not there."""
        return self.count("lost")

    @property
    def duplicated(self) -> int:
        """Happened twice."""
        return self.count("duplicated")

    @property
    def half(self) -> int:
        """Half there, or in any other way wrong."""
        return self.count("half", "error")

    def __str__(self) -> str:
        return (
            f"{self.store:7}{self.kind:8} kills {self.kills:5}   acknowledged {self.acknowledged:6}   "
            f"lost {self.lost}   duplicated {self.duplicated}   half there {self.half}   "
            f"points {len(self.points):3}   stores {self.stores:3}   missed {self.missed}"
        )

    def as_dict(self) -> dict[str, Any]:
        """For reports."""
        return {
            "store": self.store, "kind": self.kind, "kills": self.kills, "acknowledged": self.acknowledged,
            "lost": self.lost, "duplicated": self.duplicated, "half": self.half, "stores": self.stores,
            "missed": self.missed, "points": dict(sorted(self.points.items())), "problems": self.problems,
        }  # fmt: skip


class Victim:
    """One store that goes through kill after kill."""

    def __init__(
        self,
        zygote: Zygote,
        store: str,
        folder: str,
        tally: Tally,
        *,
        sabotage: str | None = None,
        url: str | None = None,
    ) -> None:
        self._zygote = zygote
        self._sabotage = sabotage
        self._tally = tally
        self.folder = tempfile.mkdtemp(prefix="victim-", dir=folder)
        self.journal = f"{self.folder}/journal"
        self._url = url or url_of(store, Path(self.folder), "a")
        self.kills = 0
        self.broken = False
        tally.stores += 1

    def do(self, seed: int, **job: Any) -> bool:
        """Do one job; True when its process was killed."""
        job = {"url": self._url, "journal": self.journal, "seed": seed, "rounds": 3, "scenario": [], **job}
        job["sabotage"] = self._sabotage
        answer = self._zygote.do(job)
        if answer["killed"]:
            self.kills += 1
            self._tally.kills += 1
            self._tally.points[job.get("point") or "random"] += 1
        elif answer["code"]:
            self.broken = True
        return answer["killed"]

    def kill_at(self, rng: random.Random, scenario: str, point: str, hit: int, *, early: bool) -> bool:
        """Have a process die at a point; when it is not passed so often this time, at its first passing."""
        scenarios = [] if scenario == OPENING else [scenario]
        for nth in (hit, 1, 1):
            seed, warm = rng.randrange(1 << 30), rng.randrange(3)
            if self.do(seed, scenario=scenarios, point=point, hit=nth, warm=warm, early=early):
                return True
            if self.broken:
                return False
            early = False
        return False

    def census(self, scenarios: list[str], seed: int) -> dict[str, dict[str, int]]:
        """Which points the scenarios pass, and how often."""
        self.do(seed, census=True, scenario=scenarios)
        return FileJournal(self.journal).history.census

    def end(self, seed: int, **job: Any) -> None:
        """The final check, and the sums."""
        if not self.broken:
            self.do(seed, finish=True, **job)
        history = FileJournal(self.journal).history
        self._tally.acknowledged += len(history.acked) + sum(history.posted.values())
        self._tally.problems += history.problems
        if not history.problems:
            if self.broken:
                raise RuntimeError(f"a child ended without saying why: see {self.folder}")
            shutil.rmtree(self.folder)


def hits(count: int) -> list[int]:
    """Which times of passing a point to die at: the first, the last, and one between."""
    return sorted({1, (count + 1) // 2, count})


def targets(zygote: Zygote, store: str, folder: str, seed: int) -> list[tuple[str, str, int]]:
    """Every (scenario, point, hit) there is."""
    tally = Tally(store, "census")
    victim = Victim(zygote, store, folder, tally)
    found = victim.census(SCENARIOS, seed)
    victim.end(seed)
    if tally.problems or set(found) != {OPENING, *SCENARIOS}:
        raise RuntimeError(f"the workload fails without any kill: {tally.problems[:3]}")
    return [
        (scenario, point, hit)
        for scenario, points in found.items()
        for point, count in points.items()
        for hit in hits(count)
    ]


FRESH = 3
"""As many new stores are tried for a point that was not come by."""


def kill_at_points(
    store: str, folder: str, seed: int, wanted: int, say: Callable[[Tally], None], only: tuple[str, ...] = ("",)
) -> Tally:
    """Kill at every named point of every scenario, over and over, until there were ``wanted`` kills.

    Each target comes at least once, whatever ``wanted`` says (0: exactly the first hit of each point, once).
    ``only`` limits it to points whose names begin like that.
    """
    tally = Tally(store, "points")
    rng = random.Random(f"{seed}/{store}/points")
    zygote = Zygote()
    try:
        every = [target for target in targets(zygote, store, folder, seed) if target[1].startswith(only)]
        if not wanted:
            every = _one_of_each(every, rng)
        victim = Victim(zygote, store, folder, tally)
        turn = 0
        while turn == 0 or tally.kills < wanted:
            for scenario, point, hit in rng.sample(every, len(every)):
                if victim.kills >= LIFE or victim.broken or (scenario == OPENING and victim.kills):
                    victim.end(rng.randrange(1 << 30))
                    victim = Victim(zygote, store, folder, tally)
                # Every third time the process is to die as soon as it gets there, while it still takes things up.
                early = scenario == OPENING or (turn > 0 and rng.random() < 0.3)
                killed, fresh = victim.kill_at(rng, scenario, point, hit, early=early), 0
                while not (killed or victim.broken) and fresh < FRESH:
                    # Some points are passed only the first time that something is done to a store, and not each time.
                    victim.end(rng.randrange(1 << 30))
                    victim = Victim(zygote, store, folder, tally)
                    killed, fresh = victim.kill_at(rng, scenario, point, hit, early=True), fresh + 1
                tally.missed += not killed
                say(tally)
                if turn and tally.kills >= wanted:
                    break
            turn += 1
        victim.end(rng.randrange(1 << 30))
    finally:
        zygote.close()
    return tally


def _one_of_each(every: list[tuple[str, str, int]], rng: random.Random) -> list[tuple[str, str, int]]:
    """Each point once, in one of the scenarios that pass it."""
    by_point: dict[str, tuple[str, str, int]] = {}
    for target in rng.sample(every, len(every)):
        by_point.setdefault(target[1], target)
    return list(by_point.values())


def kill_at_random(store: str, folder: str, seed: int, wanted: int, say: Callable[[Tally], None]) -> Tally:
    """Kill from outside at moments that nobody chose."""
    tally = Tally(store, "random")
    rng = random.Random(f"{seed}/{store}/random")
    zygote = Zygote()
    try:
        while tally.kills < wanted:
            victim = Victim(zygote, store, folder, tally)
            while victim.kills < LIFE and tally.kills < wanted and not victim.broken:
                early = rng.random() < 0.15
                job: dict[str, Any] = {"delay": rng.random() * (0.05 if early else 0.25), "early": early}
                victim.do(rng.randrange(1 << 30), rounds=100_000, maintain=rng.random() < 0.5, **job)
                say(tally)
            victim.end(rng.randrange(1 << 30))
    finally:
        zygote.close()
    return tally


def scratch_folder() -> str:
    """A new folder for stores. A kill tests no disk (power loss does, elsewhere), so memory will do."""
    return tempfile.mkdtemp(prefix="perdure-kills-", dir=memory())
