"""Others at the file that is written: the short form of ``make foreign``."""

from __future__ import annotations

import pytest

from perdure.stores.sqlite import own_locks
from tests.campaigns.foreign.program import NO_LOCKS, NO_LOOK, OURS
from tests.campaigns.foreign.rounds import Tally, campaign, discard

SEED = 20267


def _silent(tally: Tally) -> None:
    """Nobody watches."""


@pytest.mark.skipif(bool(own_locks.WEAKNESS), reason=own_locks.WEAKNESS)
@pytest.mark.parametrize("writers", [1, 2])
def test_what_was_acknowledged_survives_others_at_the_file_and_kills(writers: int) -> None:
    tally = campaign(OURS, writers, 2, SEED, _silent)
    assert not tally.problems, f"{tally}\n{tally.problems[:5]}"
    assert tally.acknowledged > 0


@pytest.mark.parametrize("sabotage", [NO_LOCKS, NO_LOOK])
def test_losses_without_our_locks_or_without_a_look_are_found_out(sabotage: str) -> None:
    lost = 0
    for seed in range(SEED, SEED + 20):
        tally = campaign(sabotage, 1, 1, seed, _silent)
        discard(tally)
        lost += tally.lost
        if lost:
            break
    assert lost
