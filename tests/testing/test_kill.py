"""Kill and resume: killed at each moment there is, a function goes on, and how often its tools were called is known."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.errors import InvalidInput
from perdure.testing import KillTestFailed, kill_and_resume, kill_moments
from tests.testing import kill_apps

MOMENTS = [
    "after commit 1", "after commit 2", "after commit 3", "before tool charge 1", "inside tool charge 1",
    "after commit 4", "after commit 5",
]  # fmt: skip


def test_every_moment_is_listed_in_order():
    moments = kill_moments(kill_apps.trip)
    assert [m for m in moments if "price" not in m][: len(MOMENTS)] == MOMENTS
    assert [m for m in moments if "price" in m] == ["before tool price 1", "inside tool price 1"]


def test_killed_at_each_moment_it_ends_in_the_same_place():
    for at in kill_moments(kill_apps.trip):
        with kill_and_resume(kill_apps.trip, at=at) as outcome:
            state: dict[str, Any] = outcome.state()
            assert (outcome.at, outcome.waits, outcome.status()) == (at, "", "idle")
            assert state["vars"] == {"stage": "paid", "price": 5, "paid": "5 under ef_"}, at
            # Whatever is asked under one id again may be called again; nothing else is.
            assert outcome.calls["charge"] == (2 if at.startswith("inside tool charge") else 1), at


def test_a_function_that_is_awaited():
    with kill_and_resume(kill_apps.trip_async, at="inside tool charge") as outcome:
        assert outcome.state("trip")["vars"]["stage"] == "asked"
        assert (outcome.first, outcome.second) == ({"charge": 1}, {"charge": 1})
    with kill_and_resume(kill_apps.trip_async, at="before tool charge") as outcome:
        assert (outcome.first, outcome.second) == ({}, {"charge": 1})


def test_an_agent_by_name():
    app = f"{kill_apps.__name__}:agent"
    for at in ("inside answer 2", "inside tool price", "after commit 3"):
        with kill_and_resume(app, at=at, say=["Book it"]) as outcome:
            assert outcome.state()["messages"][-1]["content"] == "Done."
            assert outcome.calls["charge"] == 1
    moments = kill_moments(f"{kill_apps.__file__}:agent", say=["Book it"])
    assert {"inside answer 1", "inside answer 3", "inside tool charge 1"} <= set(moments)


def test_what_waits_for_a_person_is_told():
    with kill_and_resume(kill_apps.mails, at="inside tool mail") as outcome:
        assert (outcome.waits, outcome.status(), outcome.calls) == ("InDoubt", "in_doubt", {"mail": 1})
        assert "InDoubt" in repr(outcome)


def test_what_an_agent_waits_for_is_told_although_its_run_raises_nothing():
    with kill_and_resume(f"{kill_apps.__name__}:asker", at="inside tool mail", say=["Write to ana"]) as outcome:
        assert (outcome.waits, outcome.status(), outcome.calls) == ("InDoubt", "in_doubt", {"mail": 1})


def test_a_call_that_is_made_twice_shows():
    with kill_and_resume(kill_apps.careless, at="after commit 2") as outcome:
        assert outcome.calls["charge"] == 2


def test_a_seed_draws_a_moment_and_always_the_same():
    drawn: list[str] = []
    for seed in (1, 1, 2):
        with kill_and_resume(kill_apps.trip, at=seed) as outcome:
            drawn.append(outcome.at)
            assert outcome.state()["vars"]["stage"] == "paid"
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1


def test_a_moment_that_never_comes_is_told_with_those_that_came():
    with (
        pytest.raises(KillTestFailed, match=r"never came to 'inside tool refund': its moments were after commit 1, "),
        kill_and_resume(kill_apps.trip, at="inside tool refund"),
    ):
        pass


def test_a_function_that_does_not_go_on_is_told_with_its_error():
    with (
        pytest.raises(KillTestFailed, match=r"killed after commit 1.*ValueError: it cannot go on at .*kill_apps\.py:"),
        kill_and_resume(kill_apps.fails, at="after commit 1"),
    ):
        pass


def test_a_function_without_a_moment():
    with pytest.raises(KillTestFailed, match="no moments"):
        kill_moments(kill_apps.nothing)


def test_one_of_several_sessions_must_be_named():
    with kill_and_resume(kill_apps.two_sessions, at="after commit 2") as outcome:
        with pytest.raises(InvalidInput, match="there are a, b"):
            outcome.state()
        assert outcome.state("b")["vars"] == {"n": "b"}


@pytest.mark.parametrize("at", ["", "commit 2", "after commit", "after commit x", "inside tool", "during lunch"])
def test_what_is_no_moment_is_refused(at: str):
    with pytest.raises(InvalidInput, match="is no moment"), kill_and_resume(kill_apps.trip, at=at):
        pass


def test_a_function_that_no_other_process_can_find_is_refused():
    def inner(db: Any) -> None: ...

    for app in (inner, lambda db: None, kill_apps.trip.__call__):
        with pytest.raises(InvalidInput, match="at the top of a module"):
            kill_moments(app)
