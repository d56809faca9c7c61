"""Server-sent events: how they are written, and streams of them that end when the reader, or the server, goes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from perdure.errors import InvalidInput
from perdure.server.api.routing import SSE, Call, Stream
from perdure.server.problems import Refusal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from perdure.server.app import Ctx
    from perdure.server.request_checks import Receive, Scope, Send

BEAT = 15.0
"""Seconds after which a silent stream says something, so that nobody on the way takes it for dead."""
RETRY = 1000
"""Milliseconds after which a reader whose stream broke comes back."""
MOST = 500
"""Streams at once."""
LONGEST_ID = 8000
"""Characters of an id that a reader can send back in a header."""
NO_ID = "rescan"
"""The id of an event that nobody can go on from."""


class ServerEvent(NamedTuple):
    """One event; ``id`` is where to go on after it, "" when nobody goes on from there."""

    kind: str
    id: str
    data: Any


def written(event: ServerEvent) -> bytes:
    """An event as it is sent. Its data is one line of JSON: nothing in it can end the event.

    >>> written(ServerEvent("step", "0.1.ab", {"text": "a\\nb"}))
    b'id: 0.1.ab\\nevent: step\\ndata: {"text":"a\\\\nb"}\\n\\n'
    """
    fits = len(event.id) <= LONGEST_ID and event.id.isascii() and event.id.isprintable()
    id = b"id: %b\n" % (event.id if fits else NO_ID).encode() if event.id else b""
    return b"%bevent: %b\ndata: %b\n\n" % (id, event.kind.encode(), msgspec.json.encode(event.data))


def last_event_id(call: Call[Any, None], asked: str | None) -> str | None:
    """Where a reader wants to go on: what it sends when it comes back goes before what its address says."""
    told = call.headers.get("last-event-id") or asked
    if told is not None and not (told.isascii() and told.isprintable()):
        raise InvalidInput("Last-Event-ID is not an id of an event of this stream")
    return told


class Streams:
    """The streams that are open; one too many is refused."""

    def __init__(self, most: int = MOST) -> None:
        self._open = 0
        self._most = most

    def answer(self, ctx: Ctx, events: AsyncGenerator[ServerEvent | None]) -> Stream:
        """Send events as they come; None means that there is nothing new."""
        if self._open >= self._most:
            raise Refusal(503, "too-many", f"{self._most} streams are open already: close one", Retry_After="5")

        async def send_all(_: Scope, receive: Receive, send: Send) -> None:
            self._open += 1
            try:
                await _stream(ctx, events, send, receive)
            finally:
                self._open -= 1

        return send_all


async def _stream(ctx: Ctx, events: AsyncGenerator[ServerEvent | None], send: Send, receive: Receive) -> None:
    headers = [(b"content-type", SSE.encode()), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    work = asyncio.ensure_future(_send_events(events, send))
    gone = asyncio.ensure_future(_gone(receive))
    closing = asyncio.ensure_future(ctx.closing.wait())
    try:
        await asyncio.wait({work, gone, closing}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (work, gone, closing):
            if not task.done():
                task.cancel()
        await asyncio.wait({work, gone, closing})
        await events.aclose()
    if work.done() and not work.cancelled() and (error := work.exception()) is not None:
        raise error
    with contextlib.suppress(OSError):
        await send({"type": "http.response.body", "body": b""})


async def _send_events(events: AsyncGenerator[ServerEvent | None], send: Send) -> None:
    loop = asyncio.get_running_loop()
    await send({"type": "http.response.body", "body": b"retry: %d\n\n" % RETRY, "more_body": True})
    spoken = loop.time()
    async for event in events:
        if event is not None:
            body = written(event)
        elif loop.time() - spoken < BEAT:
            continue
        else:
            body = b": still here\n\n"
        await send({"type": "http.response.body", "body": body, "more_body": True})
        spoken = loop.time()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
