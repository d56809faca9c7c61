"""Starts the racers, and judges what they say against what the store holds afterwards."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import perdure
from tests.campaigns.race.racers import FREELY, LOCKSTEP, PATIENCE, RACES, Start, Try

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RACERS = 10
END = 2**53
PRELOADED = [
    "tests.campaigns.race.racers",
    "perdure.database",
    "perdure.stores.postgres.store",
    "perdure.stores.redis.store",
    "perdure.stores.tiered.store",
]
"""What a racer would otherwise import each time it starts."""


class Outcome:
    """What a race came to."""

    def __init__(self, store: str, how: str, tries: Sequence[Try], problems: Sequence[str]) -> None:
        self.store = store
        self.how = how
        self.tries = len(tries)
        self.won = sum(bool(t.won) for t in tries)
        self.refused = Counter(t.refused for t in tries if t.refused)
        self.winners = len({t.racer for t in tries if t.won})
        self.problems = list(problems)

    def __str__(self) -> str:
        refused = ", ".join(f"{name} {count}" for name, count in sorted(self.refused.items()))
        return (
            f"{self.store:9}{self.how:10} tries {self.tries:6}   won {self.won:6}   refused: {refused:16}   "
            f"racers that won {self.winners:2}   problems {len(self.problems)}"
        )


_wait: Any = None


def _arm(barrier: Any) -> None:
    global _wait  # noqa: PLW0603 - a barrier reaches a process only while it starts
    _wait = barrier.wait


def _race(how: str, start: Start) -> list[Try]:
    return RACES[how](start, _wait)


def race(store: str, url: str, how: str, tries: int) -> Outcome:
    """Let ten racers make ``tries`` tries in all on one session, and judge them."""
    session = f"race-{how}"
    starts = [Start(url, session, racer, tries // RACERS) for racer in range(RACERS)]
    # Made before, so that the race is about commits and not about who makes the store; and kept open after,
    # because what is in memory is gone with its last handle.
    with perdure.open(url, maintain=False) as db:
        if store == "memory":
            wait = threading.Barrier(RACERS).wait
            with ThreadPoolExecutor(RACERS) as pool:
                said = list(pool.map(lambda start: RACES[how](start, wait), starts))
        else:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(PRELOADED)
            barrier = context.Barrier(RACERS, timeout=PATIENCE)
            with ProcessPoolExecutor(RACERS, context, _arm, (barrier,)) as pool:
                said = [race.result() for race in [pool.submit(_race, how, start) for start in starts]]
        every = [one for tries in said for one in tries]
        problems = [*_judge(db, session, how, every)]
    return Outcome(store, how, every, problems)


def _judge(db: perdure.Database, session: str, how: str, tries: Sequence[Try]) -> Iterator[str]:
    """Everything that is not as it must be."""
    winners: dict[int, list[str]] = defaultdict(list)
    for one in tries:
        if one.won:
            winners[one.version].append(one.won)
    for version, ids in sorted(winners.items()):
        if len(ids) != 1:
            yield f"version {version} was won {len(ids)} times: {ids}"
    first = 0 if how == LOCKSTEP else 1
    if sorted(winners) != list(range(first, first + len(winners))):
        yield f"versions are missing: {len(winners)} were won, the last is {max(winners, default=None)}"
    yield from _stored(db, session, winners)
    if how == LOCKSTEP:
        for one in tries:
            if one.refused and one.head not in winners.get(one.version, ()):
                yield f"round {one.version}: a loser was told of head {one.head}, the winner is {winners[one.version]}"
    else:
        yield from _told(tries, winners)
        yield from _linear(db, session, winners)


def _stored(db: perdure.Database, session: str, winners: dict[int, list[str]]) -> Iterator[str]:
    """Every winner's commit is there, once, at its step, and nothing else is."""
    row = db.kernel.store.look(session)
    rows = db.kernel.store.slice(session, 0, 0, END).rows
    there = {stored.step: stored.id.hex() for stored in rows}
    if row is None or row.lines != 1 or len(row.heads) != 1 or len(there) != len(rows):
        yield f"the history is not one line: {row}"
    for version in sorted(winners.keys() | there.keys()):
        if [there.get(version)] != winners.get(version):
            yield f"version {version} holds {there.get(version)}, won by {winners.get(version)}"
    if row and row.heads and row.heads[0].id.hex() != there.get(max(there, default=0)):
        yield f"the head is {row.heads[0]}, the newest commit {there.get(max(there, default=0))}"


def _told(tries: Sequence[Try], winners: dict[int, list[str]]) -> Iterator[str]:
    """A loser was told of a head that was there, and that it had not known of."""
    at = {ids[0]: version for version, ids in winners.items()}
    for one in tries:
        if one.refused == "Conflict" and at.get(one.head, -1) < one.version:
            yield f"a loser of version {one.version} was told of head {one.head}, version {at.get(one.head)}"


def _linear(db: perdure.Database, session: str, winners: dict[int, list[str]]) -> Iterator[str]:
    """Each checkpoint stands on the one before, and each winner's message is there once, in order."""
    points = db.history(session, limit=len(winners) + 10)[::-1]
    for before, after in itertools.pairwise(points):
        if after.parent != before.id or after.step != before.step + 1:
            yield f"step {after.step} stands on {after.parent}, not on {before.id}"
    if len(points) != len(winners):
        yield f"the history has {len(points)} checkpoints, {len(winners)} were won"
    messages = [(m["racer"], m["try"]) for m in db.read(session).plain()["messages"]]
    if len(messages) != len(winners) or len(set(messages)) != len(messages):
        yield f"{len(messages)} messages are there, {len(set(messages))} different ones, {len(winners)} were won"
    report = db.verify(session)
    if not report.ok:
        yield f"verify says {report}"


__all__ = ["FREELY", "LOCKSTEP", "Outcome", "race"]
