"""A handle that was closed or released refuses every operation, and says so; what it has in memory can be looked at."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

import perdure
from perdure.database import Database
from perdure.session.handle import Session

GIVEN: dict[str, Any] = {
    "a": 1, "abort": True, "agent": "desk", "approval": "ap", "at": 1, "b": 1, "blob": b"x", "body": {},
    "branch": "side", "by": "ana", "delay": 1, "effect": "ef", "fn": lambda *_: 1, "key": "k", "message": "m",
    "name": "n", "other": "side", "path": "nowhere", "ref": "0" * 64, "schema": "1.0.0", "session": "s",
    "source": b"x", "status": "reached", "text": "t", "value": 1, "witness": "nowhere",
}  # fmt: skip
"""A value for each parameter that some method needs, by its name."""
QUIET = {
    Session: {"release", "effects", "approvals", "blob", "warn_uncommitted"},
    Database: {"close", "shut"},
}
"""Methods that ask for nothing: those that let go, once more or for the first time, and those that look into memory."""


def methods(kind: type) -> list[str]:
    """The public methods of a handle."""
    return [
        name
        for name, member in inspect.getmembers(kind, callable)
        if not name.startswith("_") and not name.endswith("_flow") and name not in QUIET[kind]
    ]


def asked(handle: Any, name: str) -> Any:
    """Call a method with whatever it needs."""
    method = getattr(handle, name)
    args: list[Any] = []
    more: dict[str, Any] = {}
    for p in list(inspect.signature(method).parameters.values()):
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        needed = p.default is p.empty or (name, p.name) in {("resolve", "abort"), ("wake", "delay")}
        if needed and p.kind is p.KEYWORD_ONLY:
            more[p.name] = GIVEN[p.name]
        elif needed:
            args.append(GIVEN[p.name])
    answer = method(*args, **more)
    if inspect.isgenerator(answer):
        return next(answer)
    if inspect.isasyncgen(answer):
        return anext(answer)
    return answer


WAYS = ["the database was closed", "the session was released"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", methods(Session))
def test_every_method_of_a_session_refuses(name: str, way: str):
    db = perdure.open("memory://")
    s = db.session("s")
    s.vars["a"] = 1
    s.commit()
    (db.close if way == WAYS[0] else s.release)()
    with pytest.raises(perdure.HandleClosed, match="open it again" if way == WAYS[0] else "open the session again"):
        asked(s, name)
    assert s.vars == {"a": 1}
    assert s.effects() == []
    assert s.approvals() == []
    s.release()
    db.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", methods(Session))
def test_every_method_of_an_awaited_session_refuses(name: str, way: str):
    async def main() -> None:
        db = perdure.open_async("memory://")
        s = await db.session("s")
        s.vars["a"] = 1
        await s.commit()
        await (db.close if way == WAYS[0] else s.release)()
        with pytest.raises(perdure.HandleClosed, match="open it again" if way == WAYS[0] else "open the session again"):
            await asked(s, name)
        await s.release()
        await db.close()

    asyncio.run(main())


@pytest.mark.parametrize("name", methods(Database))
def test_every_method_of_a_database_refuses(name: str):
    db = perdure.open("memory://")
    GIVEN["target"] = db
    db.close()
    with pytest.raises(perdure.HandleClosed, match="this database was closed"):
        asked(db, name)
    db.close()


@pytest.mark.parametrize("name", methods(Database))
def test_every_method_of_an_awaited_database_refuses(name: str):
    async def main() -> None:
        db = perdure.open_async("memory://")
        GIVEN["target"] = db
        await db.close()
        with pytest.raises(perdure.HandleClosed, match="this database was closed"):
            await asked(db, name)
        await db.close()

    asyncio.run(main())


def test_leaving_a_session_after_its_database_was_closed_raises_nothing(url: str):
    with perdure.open(url) as db, db.session("s") as s:
        s.commit()
        db.close()

    async def main() -> None:
        async with perdure.open_async(url) as db, db.session("s") as s:
            await s.commit()
            await db.close()

    asyncio.run(main())
