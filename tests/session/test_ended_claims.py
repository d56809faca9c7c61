"""A claim to a shared call holds for what may have happened: not for what is known, nor for what was never begun."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import tool
from perdure.errors import Corrupted, InvalidInput, NotJson, ResultPending
from perdure.fleet.why.answer import OK
from perdure.fleet.why.reading import why
from perdure.history.hydrate import look
from perdure.model import MAIN, Kind
from perdure.record.codec import Settings
from perdure.session.calls.read_cache import cache_id
from perdure.session.journal import Journal
from perdure.session.tools.declaration import Tool
from perdure.state.document import STATE
from perdure.system.flow import drive
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


@pytest.mark.parametrize("damage", ["back", "cleared"])
def test_a_shared_entry_that_somebody_has_changed_all_the_same(db: perdure.Database, damage: str):
    made: list[str] = []
    charge = shared("paid", made)
    with db.session("s1", owner="ana") as s:
        s.call(charge, "X")
        internal = cache_id("ana", s.effects()[0]["cache"]["name"])
    # Past the door that refuses it.
    with damaged(db, internal) as entry:
        if damage == "cleared":
            entry.document.root[STATE].clear()
        else:
            entry.document.root[STATE]["vars"].pop("result")
            entry.document.root[STATE]["vars"]["claim"] = {
                "effect": db.read("s1").book["effects"].plain().popitem()[1]["id"], "session": "s1",
                "at": db.kernel.clock.wall(), "for": 1000_000,
            }  # fmt: skip
    with db.session("s2", owner="ana") as s:
        if damage == "cleared":
            with pytest.raises(Corrupted, match="delete it"):
                s.call(charge, "X")
        else:
            assert s.call(charge, "X") == "paid"
    assert made == ["X"]


@contextmanager
def damaged(db: perdure.Database, internal: str) -> Iterator[Journal]:
    row = look(db.kernel, internal)
    settings = Settings(row.owner, None, db.kernel.schema, "reuse")
    entry = Journal(db.kernel, internal, MAIN, None, settings, threading.RLock())
    drive(db.kernel.store, entry.load())
    yield entry
    drive(db.kernel.store, entry.write(Kind.COMMIT))


def test_nobody_works_in_a_session_of_ours(db: perdure.Database):
    charge = shared("paid", [])
    with db.session("s1", owner="ana") as s:
        s.call(charge, "X")
        internal = cache_id("ana", s.effects()[0]["cache"]["name"])
    for tried in (
        lambda: db.session(internal).__enter__(),
        lambda: db.post(internal, "hello"),
        lambda: db.post_outcome(internal, "ef_1", 1),
    ):
        with pytest.raises(InvalidInput, match="session of perdure's own"):
            tried()
    assert db.read(internal).vars["result"] == "paid"
