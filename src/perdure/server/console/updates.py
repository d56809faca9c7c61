"""Pages that stay up to date: browsers hear by one stream that something they show has changed, and ask for it again.

What is said is only that: whatever is shown comes from the store, as on the first look. One watcher looks at a topic
for all browsers that show it, and only as long as one does.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING
from urllib.parse import unquote

from perdure.errors import PerdureError
from perdure.server.console.rendering import Pages, lasting, sessions_mark, short_mark
from perdure.server.sse import ServerEvent, Streams
from perdure.session.handover import made_board

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request

    from perdure.server.api.routing import Stream
    from perdure.server.console.rendering import Console

POLL = 0.4
"""Seconds between two looks at a topic."""
MOST_TOPICS = 4
SESSION = "session:"


class Live(Pages):
    """The stream of changes."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._streams = Streams()
        self._watched: dict[str, _Topic] = {}

    async def stream(self, request: Request) -> Stream:
        """Tell a browser of changes in the topics it names, until it goes."""
        topics = request.query_params.getlist("topic")[:MOST_TOPICS]
        return self._streams.answer(self._ctx, self._changes(topics))

    async def _changes(self, names: list[str]) -> AsyncGenerator[ServerEvent | None]:
        topics = [(name, self._topic(name)) for name in dict.fromkeys(names)]
        seen: dict[str, str] = {}
        try:
            while True:
                for name, topic in topics:
                    if topic.mark and seen.get(name) != topic.mark:
                        seen[name] = topic.mark
                        yield ServerEvent("change", "", [name, topic.mark])
                yield None
                await asyncio.sleep(POLL)
        finally:
            for name, topic in topics:
                topic.watchers -= 1
                if not topic.watchers:
                    topic.task.cancel()
                    if self._watched.get(name) is topic:
                        del self._watched[name]

    def _topic(self, name: str) -> _Topic:
        topic = self._watched.get(name)
        if topic is None:
            topic = self._watched[name] = _Topic()
            topic.task = asyncio.create_task(self._watch(name, topic))
        topic.watchers += 1
        return topic

    async def _watch(self, name: str, topic: _Topic) -> None:
        while True:
            began = time.monotonic()
            # While the store cannot be asked, whoever loads a page is told; the stream just goes on.
            with contextlib.suppress(PerdureError):
                topic.mark = await self.mark(name)
            # A store that takes long to answer is asked less often: it has other things to do.
            await asyncio.sleep(max(POLL, 10 * (time.monotonic() - began)))

    async def mark(self, name: str) -> str:
        """Something that differs when what a topic shows may have changed."""
        db = self._ctx.db
        if name.startswith(SESSION):
            # As pages name it: percent-encoded, whatever characters the id has.
            return await session_mark(self._console, unquote(name.removeprefix(SESSION)))
        if name == "fleet":
            board = await self._ctx.blocking(made_board, self._kernel.store)
            mark = "" if board is None else await self._ctx.blocking(board.mark)
            return short_mark(mark, self._console.now // 2000)
        return (await sessions_mark(db))[0]


async def session_mark(console: Console, session: str) -> str:
    """Something that differs when a session, or a run of it here, may have changed."""
    row = await console.ctx.blocking(console.ctx.db.kernel.store.look, session)
    return short_mark(row and lasting(row), console.ctx.runs.mark(session))


class _Topic:
    """What is watched for some browsers."""

    def __init__(self) -> None:
        self.mark = ""
        self.watchers = 0
        self.task: asyncio.Task[None]
