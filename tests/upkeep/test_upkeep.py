"""Upkeep through the handle: bulk migration, and the same flows awaited."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Migrations

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.testing.clock import FakeClock


@pytest.fixture
def to_two() -> Migrations:
    """Version 1 to 2."""
    ms = Migrations()

    @ms.add("1.0.0", "2.0.0")
    def rename(state: dict[str, Any]) -> None:
        if "bad" in state["vars"]:
            raise perdure.InvalidState("this one cannot be migrated")
        state["vars"]["new"] = state["vars"].pop("old")

    return ms


def write(db: perdure.Database, session: str, **options: Any) -> None:
    with db.session(session, **{"ttl": None, **options}) as s:
        s.vars["old"] = session
        s.commit()


def test_bulk_migration_brings_every_branch_to_the_new_schema(
    open_db: Callable[..., perdure.Database], to_two: Migrations, clock: FakeClock
):
    old = open_db()
    for n in range(3):
        write(old, f"s{n}")
    with old.session("s1") as s:
        s.fork("b")
        s.tag("t")
    write(old, "closed")
    with old.session("closed") as s:
        s.close()
    write(old, "short", ttl=60)
    write(old, "bad")
    with old.session("bad") as s:
        s.vars["bad"] = True
        s.commit()
    clock.advance(61_000)
    new = open_db(schema="2.0.0", migrations=to_two)
    told: list[str] = []
    done = new.migrate(progress=lambda id, _: told.append(id))
    assert told == ["bad", "closed", "s0", "s1", "s2", "short"]
    assert (done.migrated, done.current) == (4, 0)
    assert done.skipped == (("closed", "it is closed"), ("short", "its time has run out"))
    assert [id for id, _ in done.failed] == ["bad"]
    assert [new.history(f"s{n}", limit=1)[0].schema for n in range(3)] == ["2.0.0"] * 3
    assert new.history("s1", branch="b", limit=1)[0].schema == "2.0.0"
    # The original stays in the history, and other sessions are left as they are.
    assert old.read("s0", 1).vars == {"old": "s0"}
    assert new.read("s0").vars == {"new": "s0"}
    again = new.migrate()
    assert (again.migrated, again.current) == (0, 4)
    assert new.verify().ok


def test_a_session_that_is_being_written_is_migrated_by_the_next_run(
    open_db: Callable[..., perdure.Database], to_two: Migrations
):
    old = open_db()
    write(old, "a")
    new = open_db(schema="2.0.0", migrations=to_two)
    with old.session("a"):
        assert [id for id, _ in new.migrate().failed] == ["a"]
    assert new.migrate().migrated == 1


def test_everything_is_there_awaited_too(tmp_path: Path, clock: FakeClock):
    async def use() -> None:
        async with perdure.open_async(f"sqlite:///{tmp_path}/a.db", clock=clock, witness=tmp_path / "live") as db:
            async with db.session("s", ttl=60) as s:
                for n in range(50):
                    s.vars["n"] = n
                    await s.commit()
            assert (await db.prune("s", keep_last=5)).dropped == 44
            assert (await db.verify(witness=tmp_path / "live")).ok
            assert await db.witness(tmp_path / "once") == 1
            assert (await db.backup(tmp_path / "all.bak")).copied == 1
            assert (await db.collect()).deleted == 0
            assert (await db.migrate()).current == 1
            clock.advance(61_000)
            assert (await db.sweep()).removed == 1
            assert (await db.restore(tmp_path / "all.bak")).copied == 1

    asyncio.run(use())
