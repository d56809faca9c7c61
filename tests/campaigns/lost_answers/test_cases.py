"""The cases themselves are right: where no answer gets lost, each goes through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.campaigns.lost_answers.scene import Scene
from tests.campaigns.lost_answers.trying import CASES
from tests.store_urls import url_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", [name for name in CASES if "first time" not in name])
def test_a_case_holds_where_nothing_is_lost(name: str, tmp_path: Path) -> None:
    with Scene(url_of("sqlite", tmp_path), None) as x:
        x.begin()
        play = CASES[name].play(x)
        act = next(play)
        with pytest.raises(StopIteration):
            play.send(act())
