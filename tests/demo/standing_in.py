"""One process in place of a fleet: runs conversations side by side, so that a reckoning has something to look at."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import perdure
from perdure.demo.crowd import Talk
from perdure.demo.desk import desk
from perdure.demo.shop import Shop
from perdure.model import Change
from perdure.opening import open_async

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.agent.agent import Agent
    from perdure.aio import AsyncDatabase
    from perdure.demo.crowd import Conversation, Night


def open_shop(folder: Path, night: Night) -> Shop:
    """The shop of a night that is about to begin."""
    shop = Shop(str(folder / "shop.db"))
    shop.stock_up([o for c in night.conversations for o in c.orders], night.stock)
    return shop


def talk_through(folder: Path, night: Night, shop: Shop) -> str:
    """Have every conversation from its beginning to its end; the URL of the store."""
    url = f"sqlite:///{folder}/agents.db"

    async def all_of_them() -> None:
        agent = desk(shop, factor=0.001)
        async with open_async(url, maintain=False) as db:
            await asyncio.gather(*(_talk(db, agent, c) for c in night.conversations))

    asyncio.run(all_of_them())
    return url


async def _talk(db: AsyncDatabase, agent: Agent, conversation: Conversation) -> None:
    session, owner = conversation.session, conversation.owner
    for number, line in enumerate(conversation.lines):
        result = await agent.run(db, session=session, owner=owner, message=line, key=f"m{number:02}")
        while result.approvals:
            await db.approve(session, result.approvals[0].id, by="supervisor")
            result = await agent.run(db, session=session)
        assert result.ok, result


def told(night: Night) -> dict[str, Talk]:
    """The conversations as customers see them who have said everything."""
    talks = {c.session: Talk(c) for c in night.conversations}
    for talk in talks.values():
        talk.said = len(talk.conversation.lines)
    return talks


def commit(at: int, step: int, status: str) -> Change:
    """A commit as the list of changes tells of it."""
    return Change("s", "main", 0, step, b"", "step", status, at)


def opened(url: str) -> perdure.Database:
    """A handle to look with."""
    return perdure.open(url, maintain=False)
