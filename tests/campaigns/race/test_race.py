"""Ten writers at once on one session: the short form of ``make race``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from perdure.errors import Conflict
from perdure.model import Landed
from perdure.stores import open_store
from tests.campaigns.race import racers
from tests.campaigns.race.racing import FREELY, LOCKSTEP, race
from tests.store_urls import STORES, url_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from perdure.errors import PerdureError
    from perdure.model import Append


@pytest.mark.parametrize("store", STORES)
def test_of_ten_writers_on_one_head_exactly_one_wins_and_the_others_learn_of_it(store: str, tmp_path: Path) -> None:
    outcome = race(store, url_of(store, tmp_path), LOCKSTEP, 300)
    assert not outcome.problems
    assert (outcome.won, outcome.refused["Conflict"]) == (30, 270)


@pytest.mark.parametrize("store", STORES)
def test_ten_programs_that_replay_their_input_leave_one_line_with_all_of_it(store: str, tmp_path: Path) -> None:
    outcome = race(store, url_of(store, tmp_path), FREELY, 300)
    assert not outcome.problems
    assert outcome.tries == 300
    assert outcome.won >= 30


class Pushy:
    """A store that lets everybody win: who was too late is put on top without being asked."""

    def __init__(self, url: str) -> None:
        self._store = open_store(url)

    def append(self, batch: Sequence[Append]) -> list[Landed | PerdureError]:
        (item,) = batch
        (answer,) = self._store.append([item])
        while isinstance(answer, Conflict):
            later = item._replace(expect=answer.head.id, step=answer.head.step + 1, starts=False)
            (answer,) = self._store.append([later])
        return [answer]

    def close(self) -> None:
        self._store.close()


def test_a_store_with_more_than_one_winner_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make: Any = Pushy
    monkeypatch.setattr(racers, "open_store", make)
    outcome = race("memory", url_of("memory", tmp_path), LOCKSTEP, 20)
    assert any("was won 10 times" in problem for problem in outcome.problems)
