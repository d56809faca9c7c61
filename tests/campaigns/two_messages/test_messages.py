"""Two messages at the same instant: the short form of ``make messages``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import perdure
from tests.campaigns.two_messages.meeting import count, meet
from tests.store_urls import url_of

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = 60


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_two_messages_at_the_same_instant_are_both_answered_once(store: str, tmp_path: Path) -> None:
    outcome = meet(store, url_of(store, tmp_path), ROUNDS)
    assert outcome.ok, outcome
    assert outcome.once == 2 * ROUNDS


@pytest.mark.parametrize(
    ("conversation", "never", "twice"),
    [
        ([("user", "0/0"), ("assistant", "answers 0/0")], 1, 0),
        ([("user", "0/0"), ("user", "0/1"), ("assistant", "answers 0/0 0/1"), ("assistant", "answers 0/1")], 0, 1),
        ([("user", "0/0"), ("user", "0/1"), ("user", "0/1"), ("assistant", "answers 0/0 0/1")], 0, 1),
    ],
)
def test_an_answer_too_few_or_too_many_is_counted(
    conversation: list[tuple[str, str]], never: int, twice: int, tmp_path: Path
) -> None:
    with perdure.open(url_of("sqlite", tmp_path)) as db:
        with db.session("talk-0") as s:
            s.messages.extend([{"role": role, "content": content} for role, content in conversation])
            s.commit()
        outcome = count("sqlite", db, 1)
    assert (outcome.never, outcome.twice) == (never, twice)
    assert not outcome.ok
