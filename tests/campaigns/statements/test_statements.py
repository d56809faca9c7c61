"""A sample of the campaign: what is said in some situations is so; every sentence falsified on purpose is noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.campaigns.statements.judging import judge
from tests.campaigns.statements.mutations import MUTATIONS, Mutation, caught
from tests.campaigns.statements.search import situations

if TYPE_CHECKING:
    from pathlib import Path

EVERY = 9


def test_what_is_said_is_so(tmp_path: Path) -> None:
    found = situations(tmp_path, 2, most=120)
    sample = list(found.values())[::EVERY]
    assert len(sample) > 12
    wrong = [one for snapshot in sample for one in judge(tmp_path, snapshot).wrong]
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.says)
def test_a_falsified_sentence_is_noticed(tmp_path: Path, mutation: Mutation) -> None:
    assert caught(tmp_path, mutation)
