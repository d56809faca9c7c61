"""Opening a session that is missing, was there, has expired or was deleted: the handle says which, when and why."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Origin

if TYPE_CHECKING:
    from perdure.testing.clock import FakeClock


def commit(db: perdure.Database, session: str = "s", **options: Any) -> None:
    with db.session(session, **options) as s:
        s.vars["n"] = 1
        s.commit()


def test_a_new_session_is_created_and_an_old_one_resumed(db: perdure.Database) -> None:
    with db.session("s") as s:
        assert s.origin == Origin("created", "", None, None)
        s.commit()
    with db.session("s") as s:
        assert s.origin == Origin("resumed")
        assert (s.opened, s.because) == ("resumed", "")


def test_an_expired_session_is_restarted_and_says_when_it_began_and_ended(
    db: perdure.Database, clock: FakeClock
) -> None:
    began = clock.wall()
    commit(db, ttl=60)
    clock.advance(61_000)
    ended = clock.wall()
    with db.session("s") as s:
        assert s.origin == Origin("restarted", "expired", began, ended)
        assert (s.opened, s.because, s.step, s.vars.plain()) == ("restarted", "expired", 0, {})
    # Nothing was committed: whoever opens it next is told the same.
    clock.advance(5_000)
    with db.session("s") as s:
        assert s.origin == Origin("restarted", "expired", began, ended)
        s.commit()
    with db.session("s") as s:
        assert s.origin == Origin("resumed")


@pytest.mark.parametrize("lease", [True, False])
def test_a_deleted_session_is_restarted_with_the_reason_it_was_given(
    db: perdure.Database, clock: FakeClock, lease: bool
) -> None:
    began = clock.wall()
    commit(db)
    clock.advance(1000)
    db.kernel.store.drop("s", None, "asked to forget")
    with db.session("s", lease=lease) as s:
        assert s.origin == Origin("restarted", "asked to forget", began, began + 1000)


def test_a_session_that_was_only_posted_to_is_new(db: perdure.Database) -> None:
    db.post("s", "hello")
    with db.session("s") as s:
        assert s.origin == Origin("created")


@pytest.mark.parametrize("lease", [True, False])
def test_who_wants_no_new_session_is_told_why_there_is_none(
    db: perdure.Database, clock: FakeClock, lease: bool
) -> None:
    with pytest.raises(perdure.NotFound) as missing:
        db.session("s", create=False, lease=lease)
    assert not isinstance(missing.value, perdure.Gone)
    assert db.kernel.store.look("s") is None, "asking made nothing"
    commit(db, ttl=60)
    with db.session("s", create=False, lease=lease) as s:
        assert s.origin == Origin("resumed")
    clock.advance(61_000)
    for _ in range(2):
        with pytest.raises(perdure.Gone) as gone:
            db.session("s", create=False, lease=lease)
        assert gone.value.reason == "expired"
    db.sweep()
    with pytest.raises(perdure.Gone) as gone:
        db.session("s", create=False, lease=lease)
    assert gone.value.reason == "expired"
    with pytest.raises(perdure.Gone):
        db.update("s", lambda s: None, create=False)
    with db.session("s") as s:
        assert s.origin.reason == "expired"


def test_one_that_ends_between_the_look_and_the_lease_is_gone_and_the_lease_given_back(
    db: perdure.Database, open_db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(db)
    store = db.kernel.store
    acquire = store.acquire

    def late(*args: Any) -> Any:
        store.drop("s", None, "deleted")
        return acquire(*args)

    monkeypatch.setattr(store, "acquire", late)
    with pytest.raises(perdure.Gone) as gone:
        db.session("s", create=False)
    assert gone.value.reason == "deleted"
    with open_db().session("s") as s:
        assert s.opened == "restarted"


def test_the_awaited_handle_says_the_same(url: str, clock: FakeClock) -> None:
    async def ask() -> list[Any]:
        async with perdure.open_async(url, clock=clock) as db:
            found: list[Any] = []
            for _ in range(2):
                async with db.session("s", ttl=60) as s:
                    found.append(s.origin.kind)
                    await s.commit("noted")
            clock.advance(61_000)
            with pytest.raises(perdure.Gone):
                await db.session("s", create=False)
            async with db.session("s") as s:
                return [*found, s.origin.kind, s.origin.reason]

    assert asyncio.run(ask()) == ["created", "resumed", "restarted", "expired"]
