"""Kills the agent at every kind of moment, has another process go on, and compares the bytes of all requests."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import perdure
from tests.campaigns.agent_kills.log import Log
from tests.campaigns.model_server.life import DELTA
from tests.campaigns.model_server.scene import SCRIPT
from tests.servers.llmock import forget, plan
from tests.store_urls import url_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.campaigns.crash.zygote import Zygote
    from tests.campaigns.model_server.proxy import Proxy, Sent
    from tests.servers.process import Running

KINDS = {
    "during the model's answer": (DELTA, "agent.before_model"),
    "before the commit": ("agent.after_model", "agent.before_commit", "commit.before_write"),
    "after the commit": ("agent.after_commit", "commit.after_write"),
    "inside a tool": ("tool.weather", "tool.clock", "tool.book"),
    "around a call": ("call.before_started", "call.after_started", "call.before_outcome", "call.after_outcome"),
}
"""Where a process dies."""
EVERY_DELTA = 7
"""One in so many pieces of answers is a moment to die."""


class Killed(NamedTuple):
    """One conversation that was killed, beside one that was not."""

    where: str
    hit: int
    kills: int
    sent: int
    again: int
    """Requests that were sent once more, because their answer had died with the process."""
    same: bool
    """Whether the requests are, byte for byte, those of the undisturbed conversation."""
    ended: bool
    """Whether the conversation came to the same end."""
    problems: list[str]

    @property
    def ok(self) -> bool:
        """Whether it was killed, and nobody could tell afterwards."""
        return self.kills > 0 and self.same and self.ended and not self.problems


class Bench:
    """One API of the server, and a store."""

    def __init__(
        self, server: Running, proxy: Proxy, zygote: Zygote, folder: Path, api: str, *, sabotage: bool = False
    ) -> None:
        self._server = server
        self._proxy = proxy
        self._zygote = zygote
        self._folder = folder
        self._api = api
        self._sabotage = sabotage
        self._url = url_of("sqlite", folder, f"killed-{api}")
        self.calm: list[Sent] = []
        """The requests of the undisturbed conversation."""
        self._words: list[Any] = []
        self.moments: list[tuple[str, int]] = []
        self._held = self._lives = 0

    def undisturbed(self) -> None:
        """Hold the conversation once without a kill: what it sends, and which points it passes."""
        log = self._live("calm")
        passed = next(e["passed"] for e in log if e["what"] == "finished")
        self.calm = [sent.renamed() for sent in self._proxy.taken()]
        self._words = self._said("calm")
        for kind, points in KINDS.items():
            for point in points:
                hits = range(1, passed.get(point, 0) + 1, EVERY_DELTA if point == DELTA else 1)
                if not hits and kind != "around a call":
                    raise AssertionError(f"{point} is never passed: there is no killing there")
                self.moments += [(point, hit) for hit in hits]

    def kill(self, first: tuple[str, int], *then: tuple[str, int]) -> Killed:
        """Hold it with a kill there, and perhaps others on the way back."""
        self._held += 1
        session, kills = f"killed-{self._held}", 0
        for moment in (first, *then):
            log = self._live(session, moment)
            if any(e["what"] == "finished" for e in log):
                break  # on the way back this moment did not come any more
            kills += 1
        log = self._live(session)
        sent = [one.renamed() for one in self._proxy.taken()]
        # An answer that died with the process is asked for again, right away, in the same words.
        once = [one for one, _ in groupby(sent)]
        problems = [e["trace"] for e in log if e["what"] == "problem"]
        return Killed(
            *first, kills, len(sent), len(sent) - len(once), once == self.calm,
            self._said(session) == self._words, problems,
        )  # fmt: skip

    def _live(self, session: str, die: tuple[str, int] | None = None) -> list[dict[str, Any]]:
        """One life of the conversation; what its process wrote down."""
        forget(self._server)
        if left := SCRIPT[self._answers(session) :]:
            plan(self._server, *left)
        self._lives += 1
        log = str(self._folder / f"{self._api}-{self._lives}.log")
        job = {"url": self._url, "base_url": self._proxy.base_url, "api": self._api, "session": session, "log": log}
        self._zygote.do({**job, "die": die, "sabotage": self._sabotage})
        return Log(log).read()

    def _answers(self, session: str) -> int:
        return sum(m["role"] == "assistant" for m in self._read(session))

    def _said(self, session: str) -> list[Any]:
        return [[m["role"], m["content"]] for m in self._read(session)]

    def _read(self, session: str) -> list[dict[str, Any]]:
        with perdure.open(self._url, maintain=False) as db:
            try:
                return db.read(session).plain()["messages"]
            except perdure.NotFound:
                return []


def lines(api: str, bench: Bench, every: list[Killed]) -> list[str]:
    """For people."""
    by_kind: Counter[str] = Counter()
    for one in every:
        by_kind[next(kind for kind, points in KINDS.items() if one.where in points)] += 1
    size = sum(len(s.body) for s in bench.calm)
    return [
        f"{api}: kill and go on, {len(every)} conversations of {len(bench.calm)} requests, {size:,} bytes",
        _row("kills", sum(k.kills for k in every)),
        *(_row(f"  first one {kind}", n) for kind, n in by_kind.items()),
        _row("requests sent", sum(k.sent for k in every)),
        _row("  once more: the answer had died", sum(k.again for k in every)),
        _row("conversations with other bytes", sum(not k.same for k in every)),
        _row("conversations with another end", sum(not k.ended for k in every)),
    ]


def _row(what: str, n: int) -> str:
    return f"  {what:44}{n}"
