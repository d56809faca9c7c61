"""Ctrl-C at random moments: the short form of ``make interrupts``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.campaigns.interrupts.delivery import KINDS, STORES, interrupt
from tests.store_urls import url_of

if TYPE_CHECKING:
    from pathlib import Path

SEED = 20267
INTERRUPTS = 15


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("store", STORES)
def test_after_an_interrupt_the_handle_goes_on_and_nothing_is_lost(kind: str, store: str, tmp_path: Path) -> None:
    outcome = interrupt(kind, store, url_of(store, tmp_path), INTERRUPTS, SEED)
    assert not outcome.problems, f"{outcome}\n{outcome.problems[:5]}"
    assert outcome.seen["interrupts"] >= INTERRUPTS
    assert outcome.seen["acknowledged"] > 0


def test_edits_that_are_lost_with_an_interrupt_are_found_out(tmp_path: Path) -> None:
    lost = 0
    for seed in range(SEED, SEED + 20):
        outcome = interrupt("handle", "memory", url_of("memory", tmp_path, str(seed)), 50, seed, "hasty")
        lost += outcome.seen["lost"]
        if lost:
            break
    assert lost
