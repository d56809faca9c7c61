"""How much is measured: the full run whose figures count, and a quick one that only shows that everything works."""

from __future__ import annotations

from typing import Any, NamedTuple

from perdure.bench.messages import make_messages


class Plan(NamedTuple):
    """Sizes of all measurements."""

    name: str = "full"
    saves: int = 4_200
    """Saves of each side; the first ``warm`` fill SQLite's log once and are shown apart."""
    warm: int = 1_200
    block: int = 100
    """Saves whose medians are compared."""
    steps: int = 10_000
    early: int = 500
    """Where the early stretch of the long session begins."""
    window: int = 2_000
    session: int = 1_000
    """Messages of the session that is stored, loaded and resumed."""
    loads: int = 25
    picks: int = 25
    """Random steps that are opened."""
    sessions: int = 100
    each: int = 30
    """Saves of every session of the fleet."""
    fleets: int = 5
    colds: int = 9
    """Processes started of each kind."""

    def messages(self, count: int) -> list[dict[str, Any]]:
        """The first messages of the fixed conversation."""
        while len(_made) < count:
            _made.extend(make_messages(max(count, 1_000))[len(_made) :])
        return _made[:count]


_made: list[dict[str, Any]] = []

FULL = Plan()
QUICK = Plan(
    name="quick",
    saves=40,
    warm=10,
    block=10,
    steps=200,
    early=20,
    window=80,
    session=100,
    loads=3,
    picks=3,
    sessions=10,
    each=5,
    fleets=1,
    colds=1,
)
