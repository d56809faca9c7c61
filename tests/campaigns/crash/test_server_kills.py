"""Clients of servers killed at named points and at random moments, and the servers themselves killed under load.

The short form of ``make crash-servers``.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.campaigns.crash.kills import Tally, Victim, kill_at_points, kill_at_random, scratch_folder
from tests.campaigns.crash.points import never_reached
from tests.campaigns.crash.server_kills import kill_servers
from tests.campaigns.crash.zygote import Zygote
from tests.store_urls import SERVERS

if TYPE_CHECKING:
    from collections.abc import Iterator

SEED = 20261
SENDS = {
    "postgres": "postgres.append.before_send",
    "redis": "redis.append.before_send",
    "tiered": "postgres.append.before_send",
}
"""Where a commit is about to leave the client."""
POINTS = {
    "postgres": ("postgres.", "commit.", "call."),
    "redis": ("redis.", "commit.", "call."),
    "tiered": ("tiered.", "postgres.append.", "commit."),
}
"""Where clients are killed: the store's own points, and some of those that the embedded stores are killed at."""


@pytest.fixture
def folder() -> Iterator[str]:
    """Where journals are; kept when something is wrong."""
    made = scratch_folder()
    yield made
    shutil.rmtree(made)


def _silent(tally: Tally) -> None:
    """Nobody watches."""


def _clean(tally: Tally) -> None:
    print(tally)
    assert not tally.problems, f"{tally}\n{tally.problems[:5]}"
    assert tally.acknowledged > 0


@pytest.mark.parametrize("store", SERVERS)
def test_a_client_killed_at_points_of_the_store_loses_nothing_and_repeats_nothing(store: str, folder: str) -> None:
    tally = kill_at_points(store, folder, SEED, 0, _silent, POINTS[store])
    _clean(tally)
    assert not never_reached(store, set(tally.points), own=True), "points of the store that nothing was killed at"


@pytest.mark.parametrize("store", SERVERS)
def test_a_client_killed_at_a_random_moment_loses_nothing_and_repeats_nothing(store: str, folder: str) -> None:
    tally = kill_at_random(store, folder, SEED, 4, _silent)
    _clean(tally)
    assert tally.kills == 4


@pytest.mark.parametrize("store", SERVERS)
def test_a_server_killed_and_started_again_under_load_loses_nothing(store: str, folder: str) -> None:
    tally = kill_servers(store, folder, SEED, 2, _silent)
    _clean(tally)
    assert tally.kills == 2


@pytest.mark.parametrize("store", SERVERS)
def test_a_commit_acknowledged_before_it_was_sent_is_found_out(store: str, folder: str) -> None:
    tally = Tally(store, "hasty")
    zygote = Zygote()
    try:
        victim = Victim(zygote, store, folder, tally, sabotage="hasty")
        for seed in range(8):
            if not victim.broken:
                victim.do(seed, scenario=["commit"], point=SENDS[store], hit=1)
        victim.end(5)
    finally:
        zygote.close()
    assert tally.lost > 0
