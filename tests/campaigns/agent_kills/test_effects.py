"""Agents killed at the boundaries of their loop: the short form of ``make effects``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.campaigns.agent_kills.campaign import summary
from tests.campaigns.agent_kills.killing import STORES, campaigning, kill_agents

if TYPE_CHECKING:
    from pathlib import Path

KILLS = 30
ROUNDS = 12


@pytest.mark.parametrize("store", STORES)
def test_whenever_the_agent_is_killed_every_order_is_paid_once_and_nobody_is_asked_needlessly(
    store: str, tmp_path: Path
) -> None:
    campaign = kill_agents(store, tmp_path, seed=20_261, wanted=KILLS)
    assert campaign.kills >= KILLS
    assert not [v for v in campaign.verdicts if not v.ok], "\n".join(summary(campaign))
    assert not campaign.told_wrong()


def test_a_tool_that_sends_no_key_is_found_out(tmp_path: Path) -> None:
    campaign = kill_agents("sqlite", tmp_path, seed=3, wanted=12, sabotage="keys", scenes=("retry",))
    assert any(v.twice for v in campaign.verdicts)


def test_a_journal_that_makes_doubtful_calls_again_is_found_out(tmp_path: Path) -> None:
    campaign = kill_agents("sqlite", tmp_path, seed=3, wanted=12, sabotage="doubts", scenes=("ask",))
    assert any(v.twice for v in campaign.verdicts)
    assert any(v.entered_twice for v in campaign.verdicts)


def test_a_journal_that_forgets_what_raised_is_found_out(tmp_path: Path) -> None:
    campaign = kill_agents("sqlite", tmp_path, seed=3, wanted=2, sabotage="raised", scenes=("raising",))
    assert any(v.twice for v in campaign.verdicts)


def test_a_journal_that_forgets_it_once_a_repetition_is_refused_is_found_out(tmp_path: Path) -> None:
    with campaigning("sqlite", tmp_path, seed=3, sabotage="refused") as campaign:
        campaign.session("raising", drops=False, kills=[])
    (verdict,) = campaign.verdicts
    assert len(verdict.twice) == 2, "that of ask and that of report"


def test_a_call_that_a_siblings_commit_calls_started_is_found_out(tmp_path: Path) -> None:
    with campaigning("sqlite", tmp_path, seed=3, sabotage="siblings") as campaign:
        # Which sibling commits first is up to the machine: one round in a few happens to show it.
        for hit in ROUNDS * list(range(3, 12)):
            campaign.session("approved", drops=False, kills=[("commit.after_write", hit)])
            if campaign.verdicts[-1].never_begun:
                return
    raise AssertionError(f"{campaign.kills} kills, and no call in doubt that nobody had begun")
