"""Sessions as a whole: made for an agent before anybody works on them, listed, chosen, counted, copied."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure.system.flow import drive
from tests.session.test_lost_answers import losing
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from perdure.testing.clock import FakeClock


def test_a_session_is_made_for_an_agent_by_its_first_checkpoint(db: perdure.Database, clock: FakeClock):
    assert db.create("s", agent="support", owner="ana", ttl=60) is True
    row = db.look("s")
    assert (row.agent, row.owner, row.status, row.error) == ("support", "ana", "idle", "")
    assert row.expires == clock.wall() + 60_000
    assert row.lease.holder == ""
    (point,) = db.history("s")
    assert (point.kind, point.step, point.owner) == ("commit", 1, "ana")
    assert db.read("s").plain() == db.read("s", 1).plain()
    with db.session("s", owner="ana") as s:
        assert s.opened == "resumed"
        s.vars["n"] = 1
        s.commit()
    assert db.look("s").agent == "support"
    assert db.verify("s").ok


def test_what_is_there_already_is_left_alone(db: perdure.Database):
    assert db.create("s", agent="support", owner="ana") is True
    head = db.look("s").heads
    assert db.create("s", agent="support", owner="ana") is False
    assert db.create("s", agent="support") is False
    assert (db.look("s").agent, db.look("s").heads) == ("support", head)
    with db.session("t") as s:
        s.commit()
    assert db.create("t", agent="support") is False
    assert db.look("t").agent == ""


def test_a_session_of_another_owner_is_refused(db: perdure.Database):
    db.create("s", agent="support", owner="ana")
    with pytest.raises(perdure.InvalidInput, match="another owner"):
        db.create("s", agent="support", owner="bob")


def test_a_session_of_another_agent_is_refused(db: perdure.Database):
    db.create("s", agent="support")
    with pytest.raises(perdure.InvalidInput, match="one of agent 'support', not 'billing'"):
        db.create("s", agent="billing")
    assert db.look("s").agent == "support"


def test_a_session_that_another_agent_gets_at_the_same_moment_is_refused(
    open_db: Callable[..., perdure.Database], monkeypatch: pytest.MonkeyPatch
):
    db, other = open_db(), open_db()
    look = db.kernel.store.look

    def outrun(session: str) -> Any:
        found = look(session)
        if found is None:
            other.create(session, agent="support")
        return found

    monkeypatch.setattr(db.kernel.store, "look", outrun)
    with pytest.raises(perdure.InvalidInput, match="one of agent 'support', not 'billing'"):
        db.create("s", agent="billing")


@pytest.mark.parametrize(
    "wrong", [{"agent": ""}, {"agent": 5}, {"agent": "a\0"}, {"agent": "a", "owner": 1}, {"agent": "a", "ttl": 0}]
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_made(db: perdure.Database, wrong: dict[str, Any]):
    with pytest.raises(perdure.InvalidInput):
        db.create("s", **wrong)
    assert db.sessions() == []


def test_a_session_that_somebody_is_making_counts_as_there(open_db: Callable[..., perdure.Database]):
    with open_db().session("s") as s:
        assert open_db().create("s", agent="support") is False
        s.commit()
    assert open_db().look("s").agent == ""


def test_inputs_that_wait_for_a_session_do_not_make_it(db: perdure.Database):
    db.post("s", "hello")
    assert db.create("s", agent="support") is True
    assert (db.look("s").agent, db.look("s").pending) == ("support", 1)


def test_an_expired_session_is_made_anew(db: perdure.Database, clock: FakeClock):
    db.create("s", agent="support", ttl=60)
    with db.session("s", ttl=60) as s:
        s.vars["old"] = True
        s.commit()
    clock.advance(61_000)
    assert db.create("s", agent="billing") is True
    assert db.look("s").agent == "billing"
    assert "old" not in db.read("s").plain()["vars"]
    assert db.look("s").lease.holder == ""


def test_one_that_expired_with_an_input_waiting_is_still_there(db: perdure.Database, clock: FakeClock):
    db.create("s", agent="support", ttl=60)
    db.post("s", "hello")
    clock.advance(61_000)
    assert db.create("s", agent="support") is False
    with pytest.raises(perdure.InvalidInput, match="one of agent 'support'"):
        db.create("s", agent="billing")
    assert (db.look("s").agent, db.look("s").pending) == ("support", 1)


def test_a_deleted_session_is_made_anew(db: perdure.Database):
    db.create("s", agent="support")
    db.kernel.store.drop("s", None, "deleted")
    assert db.create("s", agent="billing") is True
    assert db.look("s").agent == "billing"


def test_of_many_at_once_exactly_one_has_made_it(open_db: Callable[..., perdure.Database]):
    handles = [open_db() for _ in range(6)]
    start = Barrier(len(handles))

    def made(n: int) -> int:
        start.wait()
        return sum(handles[n].create(f"s{i}", agent="support") for i in range(5))

    with ThreadPoolExecutor(len(handles)) as threads:
        assert sum(threads.map(made, range(len(handles)))) == 5
    assert [len(handles[0].history(f"s{i}")) for i in range(5)] == [1] * 5


@pytest.mark.parametrize("way", ["answer lost", "answer unknown", "never arrives"])
def test_a_lost_answer_is_asked_for_again(db: perdure.Database, way: str):
    store = losing(db)
    store.how = way
    assert db.create("s", agent="support") is True
    assert len({item.id for item in store.sent}) == 1
    assert len(db.history("s")) == 1


def test_a_commit_that_comes_between_means_that_it_is_there(open_db: Callable[..., perdure.Database]):
    db, other = open_db(), open_db()
    store = losing(db)
    append = store.append

    def late(batch: Any) -> Any:
        assert other.create("s", agent="support")
        return append(batch)

    store.append = late
    assert db.create("s", agent="support") is False
    assert len(other.history("s")) == 1


def test_awaited_it_is_the_same(url: str, clock: FakeClock):
    async def work() -> None:
        async with perdure.open_async(url, clock=clock) as db:
            made = await asyncio.gather(*(db.create("s", agent="support") for _ in range(5)))
            assert sorted(made) == [False] * 4 + [True]
            row = await db.look("s")
            assert await db.sessions(agent=row.agent, search="s", newest=True) == [row]
            assert await db.counts() == [("idle", row.agent, "", 1)]

    asyncio.run(work())


def test_sessions_are_listed_as_they_are_asked_for(db: perdure.Database, clock: FakeClock):
    for n, agent in enumerate(("support", "billing", "support")):
        db.create(f"s{n}", agent=agent, owner=f"o{n}")
        clock.advance(1000)
    assert [row.id for row in db.sessions(agent="support")] == ["s0", "s2"]
    assert [row.id for row in db.sessions(search="o1")] == ["s1"]
    newest = db.sessions(newest=True, limit=2)
    assert [row.id for row in newest] == ["s2", "s1"]
    assert [row.id for row in db.sessions(newest=True, after=newest[-1].cursor)] == ["s0"]
    assert [row.id for row in db.sessions(since=newest[0].updated)] == ["s2"]
    assert [row.id for row in db.sessions(before=newest[-1].updated, error="")] == ["s0"]
    assert db.counts() == [("idle", "billing", "", 1), ("idle", "support", "", 2)]


def test_the_error_of_a_tool_call_shows_until_the_next_checkpoint(db: perdure.Database):
    @perdure.tool(if_unsure="report")
    def fail() -> None:
        raise perdure.NotDone("no")

    db.create("s", agent="support")
    with db.session("s") as s:
        with pytest.raises(perdure.PerdureError):
            s.call(fail)
        shown = db.look("s").error
        assert shown
        assert [row.id for row in db.sessions(error=shown)] == ["s"]
        s.vars["n"] = 1
        s.commit()
    assert db.look("s").error == ""


@pytest.mark.parametrize("target", ["memory", "sqlite", "postgres"])
def test_a_copy_and_a_backup_keep_agent_and_error(db: perdure.Database, clock: FakeClock, tmp_path: Path, target: str):
    db.create("s", agent="support")
    with db.session("s") as s:
        drive(s.kernel.store, s.journal.write("commit", x={"error": "TimeoutError"}))
    assert (db.look("s").agent, db.look("s").error) == ("support", "TimeoutError")
    with perdure.open(url_of(target, tmp_path, "copy"), clock=clock) as copy:
        db.copy_to(copy)
        assert (copy.look("s").agent, copy.look("s").error) == ("support", "TimeoutError")
        with db.session("s") as s:
            s.journal.settings.agent = "billing"
            s.commit("handed over", status="running")
        db.copy_to(copy)
        assert (copy.look("s").agent, copy.look("s").error, copy.look("s").status) == ("billing", "", "running")
    db.backup(tmp_path / "backup")
    with perdure.open(url_of(target, tmp_path, "restored"), clock=clock) as restored:
        restored.restore(tmp_path / "backup")
        assert (restored.look("s").agent, restored.look("s").error) == ("billing", "")
