"""Calls in doubt, on all branches of a session: which there are, and settling one of them or all the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.agent.stored_sessions import book_of, open_as_stored
from perdure.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.aio import AsyncDatabase
    from perdure.model import SessionRow

VERDICTS = ("done", "retry", "abort")
"""What can be said of a call in doubt: it happened; it did not, and may be made again; it did not, and is given up."""


class Doubted(NamedTuple):
    """A call that was started and whose outcome nobody knows."""

    branch: str
    record: dict[str, Any]


async def doubts_in(db: AsyncDatabase, row: SessionRow) -> list[Doubted]:
    """The calls in doubt of a session; on those that a branch has from the line it parted from, main has the word."""
    found: list[Doubted] = []
    seen: set[str] = set()
    for branch in row.branches:
        reading = await db.read(row.id, branch=branch, migrate=False)
        book = await db.driver.call(book_of, reading)
        for record in book.get("effects", {}).values():
            if record["status"] == "in_doubt" and record["id"] not in seen:
                found.append(Doubted(branch, record))
            seen.add(record["id"])
    return found


async def settle(
    db: AsyncDatabase, session: str, effect: str, branch: str, *, by: str, verdict: str, result: Any = None
) -> dict[str, Any]:
    """Say what became of one call, with the session's lease; its record afterwards."""
    if verdict not in VERDICTS:
        raise InvalidInput(f"what became of a call is one of {', '.join(VERDICTS)}, not {verdict!r:.40}")
    said: dict[str, Any] = {"done": result} if verdict == "done" else {verdict: True}
    async with await open_as_stored(db, session, branch) as s:
        await s.resolve(effect, by=by, **said)
        return next(e for e in s.effects() if e["id"] == effect)


async def settle_all(db: AsyncDatabase, session: str, *, by: str, verdict: str, result: Any = None) -> int:
    """Say the same of every call in doubt of a session; how many there were."""
    found = await doubts_in(db, await db.look(session))
    for one in found:
        await settle(db, session, one.record["id"], one.branch, by=by, verdict=verdict, result=result)
    return len(found)
