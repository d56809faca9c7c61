"""What tells a worker that it should look at the board: polling alone, or jobs that arrive by notification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable


class Engine(Protocol):
    """Brings hints. A hint that is lost costs time, never work: the worker also looks by itself."""

    async def run(self, on_hint: Callable[[str], Awaitable[None]], stop: asyncio.Event) -> None:
        """Call ``on_hint`` with a session's id (or "") whenever something may be to do, until ``stop`` is set."""
        ...

    async def tidy(self) -> None:
        """Remove what killed workers left."""
        ...

    async def close(self) -> None:
        """Release everything."""
        ...
