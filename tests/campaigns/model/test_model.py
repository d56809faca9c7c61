"""Random histories by two writers on every store are what a plain model in memory says they are."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.campaigns.model.machine import Histories
from tests.store_urls import SERVERS, STORES

EXAMPLES = int(os.environ.get("PERDURE_MODEL_EXAMPLES", "24"))
SLOWER = 6
"""A server answers over a wire, and each history gets a store of its own: so fewer histories."""
STEPS = int(os.environ.get("PERDURE_MODEL_STEPS", "40"))
SHRINK = [] if os.environ.get("PERDURE_MODEL_SHRINK") == "0" else [Phase.shrink]


@pytest.mark.parametrize("kind", STORES)
def test_two_writers_on_a_store_equal_the_model(kind: str):
    machine = type(f"Histories_{kind}", (Histories,), {"kind": kind})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES // SLOWER if kind in SERVERS else EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
            print_blob=True,
            report_multiple_bugs=False,
            phases=[Phase.explicit, Phase.reuse, Phase.generate, *SHRINK],
        ),
    )
