"""Migrations: on read, chained, the original kept; a missing path names both versions."""

from __future__ import annotations

from typing import Any

import pytest

import perdure
from perdure import Migrations
from perdure.testing.clock import FakeClock
from tests.session.test_calls import Killed
from tests.session.test_runs import Script


@pytest.fixture
def chain() -> Migrations:
    """Version 1 to 2 to 3."""
    ms = Migrations()

    @ms.add("1.0.0", "2.0.0")
    def rename(state: dict[str, Any]) -> dict[str, Any]:
        state["vars"]["user_profile"] = state["vars"].pop("user_pref", None)
        return state

    @ms.add("2.0.0", "3.0.0")
    def wrap(state: dict[str, Any]) -> None:
        state["vars"]["user_profile"] = {"seat": state["vars"]["user_profile"]}

    return ms


def test_old_sessions_are_opened_in_the_new_schema(open_db: Any, chain: Migrations) -> None:
    with open_db().session("s") as s:
        s.vars["user_pref"] = "window"
        s.commit()
    new = open_db(schema="3.0.0", migrations=chain)
    assert new.read("s").vars == {"user_profile": {"seat": "window"}}
    assert open_db().read("s").vars == {"user_pref": "window"}
    with new.session("s") as s:
        assert s.vars == {"user_profile": {"seat": "window"}}
        assert (s.head.kind, s.head.schema) == ("migrated", "3.0.0")
    assert new.read("s", at=1).vars == {"user_profile": {"seat": "window"}}
    assert [c.schema for c in new.history("s")] == ["3.0.0", "1.0.0"]


def test_a_missing_path_names_both_versions(open_db: Any, chain: Migrations) -> None:
    with open_db().session("s") as s:
        s.vars["a"] = 1
        s.commit()
    with pytest.raises(perdure.Incompatible, match=r"1\.0\.0.*9\.0\.0") as e:
        open_db(schema="9.0.0", migrations=chain).session("s")
    assert (e.value.found, e.value.wanted) == ("1.0.0", "9.0.0")
    assert open_db().read("s").vars == {"a": 1}


def test_a_migration_that_makes_no_state_is_refused(open_db: Any) -> None:
    ms = Migrations()
    ms.add("1.0.0", "2.0.0")(lambda state: {"vars": object()})
    with open_db().session("s") as s:
        s.vars["a"] = 1
        s.commit()
    with pytest.raises(perdure.NotJson, match=r"1\.0\.0->2\.0\.0"):
        open_db(schema="2.0.0", migrations=ms).session("s")


def test_a_run_begun_under_an_older_schema_is_resumed_in_the_new_one(
    open_db: Any, clock: FakeClock, chain: Migrations
) -> None:
    script = Script(3)
    script.left = 11
    s = open_db().session("s")
    with pytest.raises(Killed):
        s.run("r", script)
    clock.advance(60_000)
    script.left = 10**9
    with open_db(schema="2.0.0", migrations=chain).session("s") as s:
        assert s.run("r", script) == "3 turns"
        assert [n for n, _ in script.done] == [0, 1, 2]
        assert len(s.messages) == 6
        assert "user_profile" in s.vars


def test_a_closed_session_of_an_older_schema_can_be_reopened(open_db: Any, chain: Migrations) -> None:
    with open_db().session("s") as s:
        s.vars["user_pref"] = "aisle"
        s.close()
    new = open_db(schema="2.0.0", migrations=chain)
    with new.session("s") as s:
        assert s.status == "closed"
    with new.session("s", reopen=True) as s:
        assert s.vars["user_profile"] == "aisle"
