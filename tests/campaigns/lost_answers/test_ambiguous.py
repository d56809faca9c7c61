"""Answers lost at every statement, on every server: the short form of ``make ambiguous``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from perdure.errors import OutcomeUnknown, Unavailable
from perdure.model import Landed
from tests.campaigns.lost_answers import suites
from tests.campaigns.lost_answers.suites import SHORT, SILENCES, STRIDES, cuts, lasting, places, scene, silent, slow
from tests.campaigns.lost_answers.trying import Tally, cut_everywhere
from tests.proxy import AFTER, BEFORE, TORN

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from perdure.model import Append, InboxEntry

FEW = ("commit", "fork", "post", "store: append a batch")


def _clean(tally: Tally) -> None:
    print(tally)
    assert not tally.problems, "\n".join(what for _, what in tally.problems[:5])


@pytest.mark.parametrize("name", places())
def test_an_answer_lost_at_any_statement_loses_nothing_and_doubles_nothing(name: str, tmp_path: Path) -> None:
    # What is cold in a tiered store is PostgreSQL, which gets all of them.
    names = FEW if name == "tiered" else SHORT
    tally = cuts(name, AFTER, tmp_path, names, STRIDES)
    _clean(tally)
    # A store that is not asked anything has shown nothing; a hot store is asked by readers only.
    assert tally.cut > (0 if "hot" in name else len(names))
    # One cut is what retries are for: nobody is told.
    assert tally.ends["done"] == tally.attempts


@pytest.mark.parametrize("how", [BEFORE, TORN])
@pytest.mark.parametrize("name", places())
def test_a_request_that_never_arrived_or_half_an_answer_does_no_harm(name: str, how: str, tmp_path: Path) -> None:
    _clean(cuts(name, how, tmp_path, FEW))


@pytest.mark.parametrize("name", places())
def test_when_nothing_comes_back_any_more_the_program_is_told_so_and_can_settle_it(name: str, tmp_path: Path) -> None:
    tally = lasting(name, AFTER, tmp_path, FEW)
    _clean(tally)
    assert tally.ends["unknown"] >= len(FEW) or "hot" in name


@pytest.mark.parametrize("name", places())
def test_a_slow_server_does_no_harm(name: str, tmp_path: Path) -> None:
    tally = slow(name, tmp_path, FEW)
    _clean(tally)
    assert tally.ends["done"] == len(FEW)


@pytest.mark.parametrize("what", SILENCES)
@pytest.mark.parametrize("name", [name for name in places() if name != "tiered"])
def test_a_server_that_says_nothing_does_no_harm(name: str, what: str, tmp_path: Path) -> None:
    _clean(silent(name, what, tmp_path, ["commit"]))


# -- that the suite can fail -----------------------------------------------------------------------


class Naive:
    """A store that takes a commit it did not hear of for done, and gives a message a new key each time it posts it."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._posts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(self, batch: Sequence[Append]) -> list[Any]:
        try:
            answers = self._store.append(batch)
        except Unavailable as error:
            answers = [error for _ in batch]
        unheard = (OutcomeUnknown, Unavailable)
        return [Landed(i.id) if isinstance(a, unheard) else a for i, a in zip(batch, answers, strict=True)]

    def post(self, entries: Sequence[InboxEntry]) -> Any:
        self._posts += 1
        return self._store.post([e._replace(key=f"{e.key} {self._posts}") for e in entries])


SINGLE = [name for name in places() if "tiered" not in name]


def _naively(name: str, how: str, case: str, folder: Path) -> Tally:
    tally = Tally(name, how)
    with scene(name, folder, "naive", impatient=True) as x:
        store: Any = Naive(x.db.kernel.store)
        x.db.kernel.store = store
        cut_everywhere(x, how, tally, [case], lasting=True)
    return tally


@pytest.mark.parametrize("name", SINGLE)
def test_a_store_that_takes_silence_for_success_is_found_out(name: str, tmp_path: Path) -> None:
    assert _naively(name, BEFORE, "commit", tmp_path).lost > 0


@pytest.mark.parametrize("name", SINGLE)
def test_a_store_that_does_not_know_its_own_message_again_is_found_out(name: str, tmp_path: Path) -> None:
    assert _naively(name, AFTER, "post", tmp_path).duplicated > 0


def test_every_kind_of_server_is_tried() -> None:
    assert {place.store for place in suites.PLACES.values()} == {"postgres", "redis", "tiered"}
