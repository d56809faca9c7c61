"""Every fault that ``make sabotage`` plants still has its place in the source."""

from __future__ import annotations

from tests.campaigns.faults import FAULTS
from tests.campaigns.sabotage import located


def test_each_fault_has_its_place_once():
    assert len(located(FAULTS)) == len(FAULTS) >= 40
