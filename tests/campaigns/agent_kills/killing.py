"""Kills agents at every boundary of their loop and has them go on, then judges them by the shop's ledger."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import perdure
from tests.campaigns.agent_kills.judging import Verdict, judge, wrong_answers
from tests.campaigns.agent_kills.log import Log
from tests.campaigns.agent_kills.scenes import SCENES, order_of, orders
from tests.campaigns.crash.zygote import Zygote
from tests.shop.client import open_shop
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shop.client import Shop

STORES = ("sqlite", "postgres")
MOST_KILLS = 4
"""Kills that one session goes through at most before it is left to finish."""
BOUNDARIES = ("agent.", "call.", "commit.", "tool.")
"""Points of the loop itself; the others are inside a store."""


class Target:
    """Where to kill: in which scene, at which passing of which point, with or without a shop that drops connections."""

    def __init__(self, scene: str, drops: bool, point: str, hit: int) -> None:
        self.scene = scene
        self.drops = drops
        self.point = point
        self.hit = hit


class Campaign:
    """Sessions of one store, killed and judged."""

    def __init__(
        self,
        store: str,
        folder: Path,
        shop: Shop,
        zygote: Zygote,
        seed: int,
        *,
        sabotage: str = "",
        scenes: tuple[str, ...] = SCENES,
    ) -> None:
        self.store = store
        self._folder = folder
        self._url = url_of(store, folder, "cashier")
        self._shop = shop
        self._zygote = zygote
        self._rng = random.Random(f"{seed}/{store}/effects")
        self._sabotage = sabotage
        self._scenes = scenes
        self._count = 0
        self.kills = 0
        self.drops = 0
        """Charges that the shop makes and then drops the connection, kill or not."""
        self.points: Counter[str] = Counter()
        self.verdicts: list[Verdict] = []

    # -- one session ------------------------------------------------------------------------------------------------

    def session(self, scene: str, *, drops: bool, kills: list[tuple[str, int]]) -> dict[str, int]:
        """Run one session to its end, killed on the way; what it passed when it was never killed."""
        self._count += 1
        name = f"{self.store}-{scene}-{self._count}"
        log = Log(str(self._folder / f"{name}.log"))
        log.note("begins", scene=scene)
        if drops:
            dropped = {order_of(name, n) for n in (1, 4)} & orders(scene, name).keys()
            self._shop.drop(*dropped)
            self.drops += len(dropped)
        job = {"session": name, "scene": scene, "url": self._url, "shop": self._shop.port, "log": log.path}
        job["sabotage"] = self._sabotage
        for died, (point, hit) in enumerate(kills):
            ended = self._zygote.do({**job, "again": died, "point": point, "hit": hit})
            if not ended["killed"]:
                break
            self.kills += 1
            self.points[point] += 1
            log.note("killed", point=point, hit=hit)
        else:
            self._zygote.do({**job, "again": len(kills), "census": not kills})
        entries = log.read()
        self.verdicts.append(judge(scene, name, entries, self._shop.books(f"{name}.")))
        return next((e["points"] for e in entries if e["what"] == "census"), {})

    # -- many -------------------------------------------------------------------------------------------------------

    def targets(self) -> list[Target]:
        """Every place to kill at: all passings of all points in an undisturbed session of each scene."""
        return [
            Target(scene, drops, point, hit)
            for scene in self._scenes
            for drops in ((False, True) if scene != "read" else (False,))
            for point, count in sorted(self.session(scene, drops=drops, kills=[]).items())
            for hit in range(1, count + 1)
        ]

    def kill(self, wanted: int) -> None:
        """Kill at every boundary of every scene, then on until there were enough kills."""
        every = self.targets()
        if not all(v.finished for v in self.verdicts):
            raise RuntimeError(f"sessions end badly without any kill: {[v for v in self.verdicts if not v.ok][:3]}")
        first = self._one_of_each(every)
        while self.kills < wanted:
            for target in first:
                kills = [(target.point, target.hit)]
                if self._rng.random() < 0.4:
                    others = [t for t in every if t.scene == target.scene]
                    again = self._rng.choices(others, k=self._rng.randrange(1, MOST_KILLS))
                    # A life that takes up another has less left to do: it meets each point earlier.
                    kills += [(t.point, self._rng.randint(1, t.hit)) for t in again]
                self.session(target.scene, drops=target.drops, kills=kills)
                if self.kills >= wanted:
                    return
            first = self._rng.sample(every, len(every))

    def _one_of_each(self, every: list[Target]) -> list[Target]:
        """Each boundary of each scene once, at a passing that chance chooses, in an order that chance chooses."""
        found: dict[tuple[str, bool, str], Target] = {}
        for target in self._rng.sample(every, len(every)):
            if target.point.startswith(BOUNDARIES):
                found.setdefault((target.scene, target.drops, target.point), target)
        return self._rng.sample(list(found.values()), len(found))

    def told_wrong(self) -> list[str]:
        """Sessions whose model was not told exactly once, and truthfully, what became of each of its calls."""
        with perdure.open(self._url, maintain=False) as db:
            return [
                f"{v.session}: {problem}"
                for v in self.verdicts
                for problem in wrong_answers(db.read(v.session).plain()["messages"], v)
            ]


@contextmanager
def campaigning(store: str, folder: Path, seed: int, **options: Any) -> Iterator[Campaign]:
    """A campaign on one kind of store, with a shop of its own."""
    zygote = Zygote("tests.campaigns.agent_kills.life")
    try:
        with open_shop() as shop:
            yield Campaign(store, folder, shop, zygote, seed, **options)
    finally:
        zygote.close()


def kill_agents(store: str, folder: Path, seed: int, wanted: int, **options: Any) -> Campaign:
    """A whole campaign."""
    with campaigning(store, folder, seed, **options) as campaign:
        campaign.kill(wanted)
        return campaign
