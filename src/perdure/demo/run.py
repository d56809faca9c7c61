"""The night put together: a shop, a store, workers, customers, chaos, and the reckoning in the morning."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.demo.chaos import CONCURRENCY, GRACE, LEASE, Chaos, Workforce, plan
from perdure.demo.crowd import Crowd
from perdure.demo.crowd import night as planned
from perdure.demo.desk import FACTOR, NAME, SHOP
from perdure.demo.ledger_checks import check_digests, check_sessions, check_shop
from perdure.demo.report import Measured, reckon
from perdure.demo.shop import Shop
from perdure.errors import InvalidInput, Unavailable
from perdure.fleet.board import board_of
from perdure.opening import open as open_database

if TYPE_CHECKING:
    from collections.abc import Generator

AHEAD = 0.04
"""By so much of all answers the customers may be ahead of what is to go wrong; then most of them wait for it."""
PATIENCE = 45.0
"""Seconds without any commit after which the night is given up."""


class Wish(NamedTuple):
    """What was asked for on the command line."""

    store: str | None = None
    sessions: int = 847
    kills: int = 40
    seed: int = 847
    workers: int = 4
    factor: float = 1.0


class Night:
    """One night while it is played: what a view may look at."""

    def __init__(self, wish: Wish, folder: Path) -> None:
        self.wish = wish
        self.url = wish.store or f"sqlite:///{folder}/agents.db"
        # In a store of somebody's own there may be other sessions, and those of an earlier night.
        tag = secrets.token_hex(3) if wish.store else ""
        self.agent = f"support-{tag}" if tag else "support"
        self.night = planned(wish.seed, wish.sessions, f"bf-{tag}" if tag else "bf")
        self.phase = "opening the shop"
        self.began = time.monotonic()
        self._stop = threading.Event()
        shop = f"{folder}/shop.db"
        self._log = folder / "workers.log"
        self.shop = Shop(shop)
        self.shop.stock_up([o for c in self.night.conversations for o in c.orders], self.night.stock)
        self.db = open_database(self.url, lease_ttl=LEASE, maintain=False)
        # One of them is always just being replaced: what waits for an answer has room on the others.
        at_once = max(1, wish.workers - 1) * CONCURRENCY
        self.crowd = Crowd(self.db, self.night, self.agent, at_once, lambda: self._progress() > self.chaos.next + AHEAD)
        # The store is named in the environment: a password has no place in a command.
        env = {SHOP: shop, FACTOR: str(wish.factor), NAME: self.agent, "PERDURE_STORE": self.url}
        self.force = Workforce(board_of(self.db), {**os.environ, **env}, wish.workers, self._log)
        self.chaos = Chaos(self.db, self.force, plan(wish.seed, wish.kills), wish.seed, self._progress)

    def _progress(self) -> float:
        return self.crowd.answered / self.crowd.total

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.began

    def play(self) -> dict[str, Any]:
        """Play it to its end; the report."""
        self.phase = "starting workers"
        try:
            self.force.begin()
            self.crowd.arrive()
            if not self.force.wait_until_up(60.0, self._stop.is_set):
                raise Unavailable(f"the workers did not start within a minute: {self._last_words()}")
            self.phase = "the night"
            self.chaos.begin()
            self.crowd.play(PATIENCE, self._stop.is_set)
        finally:
            self._stop.set()
            # First: it would replace the workers that are now sent home.
            self.chaos.end()
            self.phase = "sending workers home"
            self.force.end(GRACE + 5)
        while self.crowd.listen():
            pass
        return self._reckoning()

    def _reckoning(self) -> dict[str, Any]:
        self.phase = "reading the ledger"
        books = check_shop(self.shop, self.night)
        spoken = check_sessions(self.db, self.crowd.talks)
        self.phase = "verifying every digest"
        verified = check_digests(self.db, list(self.crowd.talks))
        self.phase = "done"
        problems = [*self.chaos.problems, *self.force.unexpected]
        measured = Measured(
            self.wish, self.db.url, self.chaos.struck, self.chaos.hits, self.crowd.posted, self.crowd.approved,
            self.crowd.commits, self.seconds, problems,
        )  # fmt: skip
        return reckon(measured, self.crowd.talks, books, spoken, verified)

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return lines[-1][:300] if lines else "they said nothing"

    def close(self) -> None:
        """Close what is open."""
        self.db.close()
        self.shop.close()


@contextlib.contextmanager
def opened(wish: Wish) -> Generator[Night]:
    """A night that is about to begin; its files are gone afterwards, and so are its processes."""
    if wish.store is not None and wish.store.startswith("memory:"):
        raise InvalidInput("memory:// lives inside one process: the workers of the demo are processes of their own")
    with (
        tempfile.TemporaryDirectory(prefix="perdure-demo-") as folder,
        contextlib.closing(Night(wish, Path(folder))) as night,
    ):
        yield night


def play(wish: Wish, *, live: bool) -> dict[str, Any]:
    """The whole demo; the report says in ``ok`` whether everything is as it should be."""
    from perdure.demo.view import watched

    with opened(wish) as night, _ended_by_signals(), watched(night, live=live):
        return night.play()


@contextlib.contextmanager
def _ended_by_signals() -> Generator[None]:
    """Let SIGTERM end the night as Ctrl-C does: workers must not stay behind."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
