"""Resume against restart: the short form of ``make resume``."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import pytest

from tests.campaigns.resume_or_restart.measuring import measure, saved_after, saved_in_all

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_session_that_crashed_ends_word_for_word_as_one_that_did_not_and_pays_less(
    store: str, tmp_path: Path
) -> None:
    measured = measure(store, tmp_path, sessions=4, seed=21, cold_every=4)
    assert measured.ok, measured.crashes
    used = [c.tokens for c in measured.crashes]
    # At most the answer that was on its way is paid for twice.
    assert all(t.whole <= t.resumed <= t.restarted for t in used)
    assert 0 < saved_in_all(used) < saved_after(used) < 100
    assert statistics.mean(measured.sizes) < 2048
