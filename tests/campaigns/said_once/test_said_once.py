"""Callers that repeat themselves, compete and are killed: the short form of ``make said-once``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.campaigns.said_once.campaign import summary
from tests.campaigns.said_once.judging import Caller
from tests.campaigns.said_once.life import COMMAND, LIBRARY
from tests.campaigns.said_once.rounds import Campaign, zygotes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.campaigns.crash.zygote import Zygote

ROUNDS = 12
POSTED, ASKING = "sqlite.post.after_commit", "agent.before_model"


@pytest.fixture(scope="module")
def started() -> Iterator[list[Zygote]]:
    with zygotes(2) as some:
        yield some


def test_whoever_says_something_whenever_it_is_killed_is_heard_once_and_told_its_own_answer(
    started: list[Zygote], tmp_path: Path
) -> None:
    campaign = Campaign("sqlite", tmp_path, started, seed=20_262)
    campaign.speak(ROUNDS)
    assert campaign.kills >= ROUNDS // 2
    assert not [v for v in campaign.verdicts if not v.ok], "\n".join(summary(campaign))


def one_after_the_other(session: str, before: list[Caller]) -> list[Caller]:
    """Said by one who is killed, then by another, then once more by the first."""
    match len(before):
        case 0:
            return [Caller(session, "first", LIBRARY, "one", "k1", deaths=[POSTED])]
        case 1:
            return [Caller(session, "second", LIBRARY, "two", "k2", deaths=[])]
        case _:
            late = Caller(session, "late", LIBRARY, "", None, deaths=[])
            late.repeats(before[0])
            return [late]


def typed_twice(session: str, before: list[Caller]) -> list[Caller]:
    """Typed without a key, killed before its answer, typed again."""
    return [Caller(session, "typed", COMMAND, "one", None, deaths=[ASKING])]


@pytest.mark.parametrize(
    ("sabotage", "shows"),
    [("", ""), ("keys", "twice"), ("kept", "stranded"), ("answers", "wrong"), ("command", "twice")],
)
def test_what_is_broken_on_purpose_is_found_out(
    started: list[Zygote], sabotage: str, shows: str, tmp_path: Path
) -> None:
    campaign = Campaign("sqlite", tmp_path, started, seed=3, sabotage=sabotage)
    verdicts = [campaign.hold(typed_twice, 1)] if sabotage in ("", "command") else []
    verdicts += [campaign.hold(one_after_the_other, 3)] if sabotage != "command" else []
    assert campaign.kills or sabotage == "kept"
    if shows:
        assert any(getattr(verdict, shows) for verdict in verdicts), verdicts
    else:
        assert all(verdict.ok for verdict in verdicts), verdicts
