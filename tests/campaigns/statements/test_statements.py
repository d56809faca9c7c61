"""A sample of the campaign: what is said in some situations is so; every sentence falsified on purpose is noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.campaigns.statements.judging import judge
from tests.campaigns.statements.mutations import MUTATIONS, Mutation, caught
from tests.campaigns.statements.search import FAMILIES, lead, situations
from tests.campaigns.statements.world import PRESSES

if TYPE_CHECKING:
    from pathlib import Path

EVERY = 9
DELEGATED = ("create", "say delegate", "run")
RARE = [
    (*DELEGATED, "say hello", "submit", "worker crashes"),
    (*DELEGATED, "say hello", "submit", "worker crashes", "worker crashes", "worker starts"),
    (*DELEGATED, "cancel", "submit", "worker crashes"),
    (*DELEGATED, "say hello", "submit", "approve below", "worker crashes"),
    ("say render", "run", "say hello", "submit", "worker crashes"),
    ("say render", "run", "say hello", "submit", "worker crashes", "worker starts"),
    ("say render", "run", "say hello", "submit", *("worker crashes",) * 4),
    ("say render", "run", "say hello", "submit", *("worker crashes",) * 4, "worker starts"),
    ("say render", "run", "cancel", "submit", "worker crashes"),
    ("say render", "run", "submit", "outcome", "worker crashes"),
    (*DELEGATED, "say hello", "submit", "worker starts", "worker claims", "parked"),
    (*DELEGATED, "submit", "worker starts", "worker claims", "parked"),
    ("submit", "worker starts", "worker claims", "parked", "lease taken"),
    ("create", "say hello", "session opened"),
    ("say refund", "run", "session opened", "approve"),
    ("say hello", "run, killed", "session opened"),
    ("say send", "run", "session opened"),
    ("say fail", "run", "session opened"),
    ("submit", "say hello", "worker crashes", "worker crashes", "session opened"),
    ("submit", "say hello", "worker starts", "session opened"),
    ("submit", "say hello", *("worker crashes",) * 4, "worker starts", "session opened"),
    ("say reject", "run"),
    ("submit", "say reject", "worker starts", "worker claims", "run", "put down as failed"),
    ("submit", "say reject", "worker starts", "worker claims", "run", "parked"),
    ("worker starts", "submit to a slip", "say hello"),
]
"""Ways that lead far from where the search begins: somebody waits for something, and a worker dies of it."""


def test_what_is_said_is_so(tmp_path: Path) -> None:
    found = situations(tmp_path, 2, most=120)
    sample = list(found.values())[::EVERY]
    assert len(sample) > 12
    wrong = [one for snapshot in sample for one in judge(tmp_path, snapshot).wrong]
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("path", RARE, ids=" > ".join)
def test_what_is_said_is_so_behind_long_ways(tmp_path: Path, path: tuple[str, ...]) -> None:
    wrong = judge(tmp_path, lead(tmp_path, FAMILIES["agent"], path)).wrong
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("then", [(), ("commit",), ("commit as failed",), ("post",), ("lease taken",)], ids=str)
@pytest.mark.parametrize("how", PRESSES)
def test_what_is_said_of_a_run_that_a_call_has_ended_is_so(tmp_path: Path, how: str, then: tuple[str, ...]) -> None:
    wrong = judge(tmp_path, lead(tmp_path, FAMILIES["program"], (f"run, ended: {how}", *then))).wrong
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.says)
def test_a_falsified_sentence_is_noticed(tmp_path: Path, mutation: Mutation) -> None:
    assert caught(tmp_path, mutation)
