"""SIGKILL at every named point, and at random moments: the short form of ``make crash``.

Every point of the source is died at once on each store, in one of the scenarios that pass it; the campaign dies at
each point of each scenario, again and again.
"""

from __future__ import annotations

import shutil

import pytest

from tests.campaigns.crash.kills import STORES, Tally, Victim, kill_at_points, kill_at_random, scratch_folder
from tests.campaigns.crash.points import never_reached
from tests.campaigns.crash.zygote import Zygote

SEED = 20260


def _silent(tally: Tally) -> None:
    """Nobody watches."""


def _clean(tally: Tally, folder: str) -> None:
    print(tally)
    assert not tally.problems, f"{tally}\n{tally.problems[:5]}\nthe stores are kept in {folder}"
    shutil.rmtree(folder)


@pytest.mark.parametrize("store", STORES)
def test_a_process_killed_at_any_named_point_loses_nothing_and_repeats_nothing(store: str) -> None:
    folder = scratch_folder()
    tally = kill_at_points(store, folder, SEED, 0, _silent)
    _clean(tally, folder)
    assert not never_reached(store, set(tally.points)), "points of the source that nothing was killed at"


@pytest.mark.parametrize("store", STORES)
def test_a_process_killed_at_a_random_moment_loses_nothing_and_repeats_nothing(store: str) -> None:
    folder = scratch_folder()
    tally = kill_at_random(store, folder, SEED, 25, _silent)
    _clean(tally, folder)
    assert tally.kills == 25


def _broken(how: str, scenario: str, point: str) -> Tally:
    """Kill a program that was made to do wrong, and see what the checks say."""
    folder = scratch_folder()
    tally = Tally("file", how)
    zygote = Zygote()
    try:
        victim = Victim(zygote, "file", folder, tally, sabotage=how)
        for seed in range(4):
            if not victim.broken:
                victim.do(seed, scenario=[scenario], point=point, hit=1)
        victim.end(5)
    finally:
        zygote.close()
        shutil.rmtree(folder)
    return tally


def test_a_commit_acknowledged_before_it_is_written_is_found_out() -> None:
    assert _broken("hasty", "commit", "file.append.before_write").lost > 0


def test_a_call_made_again_because_its_outcome_is_unknown_is_found_out() -> None:
    assert _broken("forgetful", "call:ask", "tool.did").duplicated > 0
