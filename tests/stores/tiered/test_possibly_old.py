"""Reading while the cold store cannot be reached: only when asked for, marked as possibly old, never for writing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure.history.hydrate import load_remembered
from perdure.testing.clock import FakeClock
from tests.proxy import POSTGRES, Proxy
from tests.servers import postgres, valkey
from tests.stores.tiered.tiers import Tiers, eventually, said, say, tiered

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def wire() -> Iterator[Proxy]:
    """The way to the cold store, which can be cut."""
    with Proxy(postgres().port, POSTGRES) as proxy:
        yield proxy


@pytest.fixture
def behind(tmp_path: Path, wire: Proxy) -> Iterator[Tiers]:
    """Both tiers, the cold one behind the wire."""
    with Tiers(valkey().port, tmp_path, "postgres", patience=0.2, timeout=2.0) as tiers:
        for name in ("url", "cold"):
            setattr(tiers, name, getattr(tiers, name).replace(f":{postgres().port}/", f":{wire.port}/"))
        yield tiers


def told(db: perdure.Database, session: str = "s", branch: str = "main") -> None:
    """Wait until the hot tier knows all there is of a branch."""
    head = next(head for head in db.look(session).heads if head.branch == branch)

    def knows() -> bool:
        known = load_remembered(db.kernel, session, branch)
        return known is not None and known.point is not None and known.point.envelope.id == head.id

    eventually(knows, "the hot tier knows the newest step")


def test_the_hot_tier_answers_when_asked_to_while_the_cold_store_cannot(behind: Tiers, wire: Proxy):
    db = behind.db()
    for n in range(3):
        say(db, f"message {n}")
    told(db)
    fresh = db.read("s", stale_ok=True)
    assert (fresh.possibly_old, fresh.step) == (False, 3)
    wire.refuse()
    with pytest.raises(perdure.Unavailable):
        db.read("s")
    reading = db.read("s", stale_ok=True)
    assert reading.possibly_old
    assert "possibly old" in repr(reading)
    assert reading.checkpoint == fresh.checkpoint
    assert reading.plain() == fresh.plain()
    with pytest.raises(perdure.ReadOnly):
        reading.vars["x"] = 1
    wire.heal()
    eventually(lambda: not db.read("s", stale_ok=True).possibly_old, "the cold store answers again")


def test_a_possibly_old_reading_may_really_be_old(behind: Tiers, wire: Proxy):
    db = behind.db()
    say(db, "one")
    told(db)
    # Not through the tiers, and not through the wire either.
    with perdure.open(behind.cold.replace(f":{wire.port}/", f":{postgres().port}/")) as truth:
        say(truth, "two")
        wire.refuse()
        assert said(db, stale_ok=True) == ["one"]
        assert said(truth) == ["one", "two"]
    wire.heal()
    eventually(lambda: not db.read("s", stale_ok=True).possibly_old, "the cold store answers again")
    assert said(db, stale_ok=True) == ["one", "two"]


def test_nothing_is_written_on_the_word_of_the_hot_tier(behind: Tiers, wire: Proxy):
    db = behind.db()
    say(db, "one")
    told(db)
    wire.refuse()
    with pytest.raises(perdure.Unavailable):
        db.session("s")
    with pytest.raises(perdure.Unavailable):
        db.session("s", lease=False)
    with pytest.raises(perdure.Unavailable):
        db.update("s", lambda s: s.messages.append({"role": "user", "content": "no"}))
    wire.heal()
    eventually(lambda: not db.read("s", stale_ok=True).possibly_old, "the cold store answers again")
    assert said(db) == ["one"]


def test_branches_are_known_by_their_names(behind: Tiers, wire: Proxy):
    db = behind.db()
    with db.session("s") as s:
        for n in range(4):
            s.vars["n"] = n
            s.commit()
        s.rewind(2)
        s.vars["after"] = "rewind"
        s.commit()
    with db.session("s", branch="main") as s:
        s.fork("other")
        s.vars["on"] = "other"
        s.commit()
    for branch in ("main", "other"):
        wanted = db.read("s", branch=branch)
        told(db, branch=branch)
        wire.refuse()
        found = db.read("s", branch=branch, stale_ok=True)
        assert (found.possibly_old, found.checkpoint, found.plain()) == (True, wanted.checkpoint, wanted.plain())
        with pytest.raises(perdure.Unavailable):
            db.read("s", branch="none", stale_ok=True)
        wire.heal()
        eventually(lambda: not db.read("s", stale_ok=True).possibly_old, "the cold store answers again")


def test_what_the_hot_tier_does_not_know_is_not_made_up(behind: Tiers, wire: Proxy):
    clock = FakeClock()
    db = behind.db(clock)
    say(db, "one", ttl=60)
    say(db, "secret", "gone")
    told(db)
    told(db, "gone")
    tiered(db).drop("gone", None, "deleted")
    eventually(lambda: tiered(db).remembered("gone", "main") is None, "it is forgotten")
    wire.refuse()
    assert said(db, stale_ok=True) == ["one"]
    for session, at in (("never", None), ("gone", None), ("s", 1), ("s", "main")):
        with pytest.raises(perdure.Unavailable):
            db.read(session, at, stale_ok=True)
    clock.advance(61_000)
    with pytest.raises(perdure.Unavailable):
        db.read("s", stale_ok=True)


def test_what_is_wrong_in_the_hot_tier_is_not_shown(behind: Tiers, wire: Proxy):
    db = behind.db()
    say(db, "one")
    told(db)
    behind.client.delete(*behind.held(":rows"))
    db.read("s")
    eventually(lambda: behind.held(":state"), "the state is hot")
    (key,) = behind.held(":state")
    value = behind.client.get(key)
    behind.client.set(key, value[:-1] + bytes([value[-1] ^ 1]))
    wire.refuse()
    with pytest.raises(perdure.Unavailable):
        db.read("s", stale_ok=True)


def test_with_both_tiers_gone_the_error_is_the_cold_stores(behind: Tiers, wire: Proxy):
    db = behind.db()
    say(db, "one")
    told(db)
    wire.refuse()
    behind.client.delete(*behind.held())
    with pytest.raises(perdure.Unavailable):
        db.read("s", stale_ok=True)


def test_without_tiers_the_question_changes_nothing(tmp_path: Path):
    with perdure.open(f"sqlite:///{tmp_path}/a.db") as db:
        say(db, "one")
        assert not db.read("s", stale_ok=True).possibly_old
        with pytest.raises(perdure.NotFound):
            db.read("other", stale_ok=True)


def test_awaited_it_is_the_same(behind: Tiers, wire: Proxy):
    async def work() -> None:
        async with perdure.open_async(behind.url, patience=0.2, timeout=2.0) as db:
            async with db.session("s") as s:
                s.messages.append({"role": "user", "content": "one"})
                await s.commit()
            for _ in range(400):
                store = db.kernel.store
                if store.remembered("s", "main") is not None:  # pyright: ignore[reportAttributeAccessIssue]
                    break
                await asyncio.sleep(0.01)
            wire.refuse()
            with pytest.raises(perdure.Unavailable):
                await db.read("s")
            reading = await db.read("s", stale_ok=True)
            assert (reading.possibly_old, [m["content"] for m in reading.messages]) == (True, ["one"])
            wire.heal()

    asyncio.run(work())
