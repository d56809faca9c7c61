"""The short form of the chaos run: every kind of fault within seconds, on each kind of store."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SECONDS = {"sqlite": 8, "tiered": 11}
"""Enough for every kind of fault to have its turn; ``make chaos`` goes on for minutes."""


@pytest.mark.parametrize("kind", SECONDS)
def test_nothing_is_lost_doubled_or_stuck_whatever_fails(kind: str):
    seed = random.SystemRandom().randrange(1 << 31)
    command = [
        sys.executable,
        "-m",
        "tests.campaigns.fleet_chaos.campaign",
        "--store",
        kind,
        "--seconds",
        str(SECONDS[kind]),
    ]
    # A process of its own: it moves to where it may mount a small disk.
    done = subprocess.run(
        [*command, "--rate", "1.5", "--outage", "2", "--seed", str(seed)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    said = f"{done.stdout}\n{done.stderr[-6000:]}"
    assert done.returncode == 0, said
    assert "lost messages 0" in done.stdout, said
    assert f"seed {seed}" in done.stdout, said
