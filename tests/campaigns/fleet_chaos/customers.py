"""The customers: sessions of several messages, submitted steadily; each message has a key, so asking again is safe."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from perdure.errors import StoreError
from perdure.fleet.board import submit

if TYPE_CHECKING:
    from collections.abc import Callable

    import perdure

AGENT = "shop"
LEDGERED = ("charge", "ship", "refund")


class Said(NamedTuple):
    """A message to be posted, and when."""

    at: float
    session: str
    text: str


def conversation(number: int, dice: random.Random) -> list[str]:
    """What one customer says: charges side by side, reads, a refund that somebody must agree to, a reminder."""
    order = f"o{number:05}"
    said = [
        f"charge {order}-1 {order}-2 {order}-3",
        f"look_up {order} {order}-7",
        f"refund {order}-1",
        f"remind {dice.randint(1, 3)}",
        f"ship {order}-2",
        f"charge {order}-4",
        "thanks",
    ]
    chosen = [said[0], *(text for text in said[1:] if dice.random() < 0.6)]
    return [f"m{at} {text}" for at, text in enumerate(chosen)]


class Customers(threading.Thread):
    """Post what is to be said at its time, again and again while the store does not take it."""

    def __init__(self, db: perdure.Database, rate: float, seed: int) -> None:
        super().__init__(name="customers", daemon=True)
        self.said: dict[str, list[str]] = {}
        """What was posted durably, by session."""
        self.refused = 0
        """How often the store could not be reached."""
        self.problem = ""
        self._db = db
        self._rate = rate
        self._dice = random.Random(seed)
        self._over = threading.Event()

    def run(self) -> None:
        """Post until it is over, and then what is still to be said."""
        try:
            self._talk()
        except Exception as e:
            self.problem = f"{type(e).__name__}: {e}"
            raise

    def _talk(self) -> None:
        waiting: list[Said] = []
        number, arrival = 0, time.monotonic()
        while waiting or not self._over.is_set():
            now = time.monotonic()
            if not self._over.is_set() and now >= arrival:
                arrival += self._dice.expovariate(self._rate)
                when = now
                for text in conversation(number, self._dice):
                    waiting.append(Said(when, f"c{number:05}", text))
                    when += self._dice.choice((0.0, 0.05, 0.5, 1.5))
                number += 1
                waiting.sort()
            if waiting and (waiting[0].at <= now or self._over.is_set()):
                self._say(waiting.pop(0))
            else:
                time.sleep(0.01)

    def _say(self, said: Said) -> None:
        key = said.text.split()[0]
        if key == "m0":
            self._surely(
                lambda: submit(self._db, said.session, said.text, agent=AGENT, owner=said.session[-2:], key=key)
            )
        else:
            self._surely(lambda: self._db.post(said.session, said.text, key=key))
        self.said.setdefault(said.session, []).append(said.text)

    def _surely(self, do: Callable[[], object]) -> None:
        wait = 0.05
        while True:
            try:
                do()
                return
            except StoreError:
                self.refused += 1
                time.sleep(wait)
                wait = min(1.0, wait * 2)

    def stop(self) -> None:
        """No new conversations; those that began are said to the end."""
        self._over.set()
        self.join(120)
        if self.is_alive() and not self.problem:
            self.problem = "the store did not take all messages within two minutes"
