"""A claim to a shared call holds for what may have happened: not for what is known, nor for what was never begun."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import tool
from perdure.errors import NotJson, ResultPending
from perdure.fleet.why.answer import OK
from perdure.fleet.why.reading import why
from perdure.session.calls.read_cache import cache_id
from perdure.session.tools.declaration import Tool
from tests.agent.context.scene import Killed, killed_at

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(name="db")
def _db() -> Iterator[perdure.Database]:
    with perdure.open("memory://") as db:
        yield db


def shared(returns: Any, made: list[str]) -> Tool:
    def charge(order: str) -> Any:
        made.append(order)
        return returns

    return tool(charge, cache="7d", cache_scope="shared")


@pytest.mark.parametrize("returns", ["half \ud800", float("nan"), object()], ids=["surrogate", "nan", "object"])
def test_a_call_whose_result_cannot_be_kept_ends_its_claim(db: perdure.Database, returns: Any):
    made: list[str] = []
    charge = shared(returns, made)
    for session in ("s1", "s2", "s2"):
        with db.session(session, owner="ana") as s, pytest.raises(NotJson, match="was done"):
            s.call(charge, "X")
    assert made == ["X"]
    assert why(db, "s2").severity == OK


def planned_and_left(db: perdure.Database, charge: Tool, how: str) -> None:
    """Session s1 has claimed a call, was killed before it began it, and goes on elsewhere."""
    with db.session("s1", owner="ana") as s:
        s.vars["a"] = 1
        s.commit()
        s.fork("b", at=1)
        with killed_at("call.after_claimed"), pytest.raises(Killed):
            s.call(charge, "X")
    if how == "rewind":
        with db.session("s1") as s:
            s.rewind(1)


@pytest.mark.parametrize("by", ["s1", "s2"])
def test_a_claim_of_a_call_that_was_planned_on_a_line_that_was_left_is_none(db: perdure.Database, by: str):
    made: list[str] = []
    charge = shared("paid", made)
    planned_and_left(db, charge, "rewind")
    with db.session(by, owner="ana") as s:
        assert s.call(charge, "X") == "paid"
    for session in ("s1", "s2"):
        with db.session(session, owner="ana") as s:
            assert s.call(charge, "X") == "paid"
    assert made == ["X"]


def test_a_session_does_not_wait_for_what_it_has_planned_on_another_branch(db: perdure.Database):
    made: list[str] = []
    charge = shared("paid", made)
    planned_and_left(db, charge, "fork")
    with db.session("s2", owner="ana") as s, pytest.raises(ResultPending):
        # It may be made there at any moment.
        s.call(charge, "X")
    for branch in ("b", "main"):
        with db.session("s1", branch=branch) as s:
            assert s.call(charge, "X") == "paid"
    assert made == ["X"]


def test_an_outcome_that_never_came_to_the_shared_entry_is_taken_from_its_session(db: perdure.Database):
    made: list[str] = []
    charge = shared("paid", made)
    with db.session("s1", owner="ana") as s:
        s.call(charge, "X")
        name = s.effects()[0]["cache"]["name"]
    internal = cache_id("ana", name)
    back = db.history(internal)[-1].step
    with db.session(internal, owner="ana") as s:
        s.rewind(back)
    with db.session("s2", owner="ana") as s:
        assert s.call(charge, "X") == "paid"
    assert made == ["X"]
