"""What a type checker must know of the public surface; read by the checker in `make check`, never run."""

from __future__ import annotations

from typing import assert_type

import perdure
from perdure import AsyncDatabase, AsyncSession, Checkpoint, Database, Message, Reading, Session


def blocking(db: Database, s: Session) -> None:
    """The blocking handles."""
    assert_type(s.commit("note", status="idle"), Checkpoint)
    assert_type(s.fork("b", at=3), Checkpoint)
    assert_type(s.take(limit=3), list[Message])
    assert_type(db.read("s", at=14), Reading)
    assert_type(db.history("s", limit=3), list[Checkpoint])
    assert_type(db.post("s", {"a": 1}, key="k"), bool)
    with perdure.open("memory://") as other, other.session("s", owner="ana") as handle:
        assert_type(other, Database)
        assert_type(handle, Session)


async def awaited(db: AsyncDatabase, s: AsyncSession) -> None:
    """The awaited ones."""
    assert_type(await s.commit("note"), Checkpoint)
    assert_type(await db.read("s"), Reading)
    async with perdure.open_async("memory://") as other, other.session("s", owner="ana") as handle:
        assert_type(other, AsyncDatabase)
        assert_type(handle, AsyncSession)
    assert_type(await db.session("s"), AsyncSession)
