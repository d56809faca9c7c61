"""Places for calls of a tool that only so many may be made of at once: in this process, and over all workers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from perdure.errors import StoreError
from perdure.protocols import Boarded
from perdure.system.flow_async import AsyncDriver

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from perdure.aio import AsyncSession
    from perdure.protocols import Board
    from perdure.session.tools import Tool

TTL = 15_000
"""Milliseconds a place is held without a word: one that a killed worker had is free again after that."""
FIRST, LONGEST = 0.02, 0.5
"""Seconds between two looks for a place, at first and at most."""

_HERE: WeakKeyDictionary[AsyncDriver, dict[str, asyncio.Semaphore]] = WeakKeyDictionary()


@asynccontextmanager
async def place_for(s: AsyncSession, tool: Tool, effect: str) -> AsyncGenerator[None]:
    """Hold one of the places of a tool while it is called; wait until there is one."""
    if tool.limit is None:
        yield
        return
    async with _here(s, tool):
        # The calls of this process wait for each other here, so that few of them ask the board.
        store = s.kernel.store
        if not isinstance(store, Boarded):
            yield
            return
        driver = s.driver
        board = await driver.call(store.board)
        await _wait(driver, board, tool, effect)
        keeping = asyncio.create_task(_keep(driver, board, tool, effect))
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await _give_back(driver, board, tool, effect)


def _here(s: AsyncSession, tool: Tool) -> asyncio.Semaphore:
    assert tool.limit is not None
    return _HERE.setdefault(s.driver, {}).setdefault(tool.name, asyncio.Semaphore(tool.limit))


async def _wait(driver: AsyncDriver, board: Board, tool: Tool, effect: str) -> None:
    wait = FIRST
    while not await driver.call(board.slot, tool.name, effect, tool.limit, TTL):
        await asyncio.sleep(wait)
        wait = min(LONGEST, wait * 1.5)


async def _keep(driver: AsyncDriver, board: Board, tool: Tool, effect: str) -> None:
    while True:
        await asyncio.sleep(TTL / 3000)
        try:
            await driver.call(board.slot, tool.name, effect, tool.limit, TTL)
        except StoreError:
            # The store cannot be reached: the place may go, and the call under way goes on.
            continue


async def _give_back(driver: AsyncDriver, board: Board, tool: Tool, effect: str) -> None:
    try:
        await driver.call(board.unslot, tool.name, effect)
    except StoreError:
        # It is free by itself after a while.
        return
