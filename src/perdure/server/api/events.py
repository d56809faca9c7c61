"""Events over HTTP: the commits of all sessions, or one branch's with the answers on their way; nothing twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from perdure.agent.session_stream import QUIET, RESCAN, SessionReader, read_along
from perdure.errors import CursorExpired, Gone, NotFound, Unavailable
from perdure.history.expiry import living
from perdure.history.reader import NOW
from perdure.model import MAIN
from perdure.server.api.inputs import EventsQuery, SessionEventsQuery
from perdure.server.api.routing import SSE, Call, Stream, endpoint
from perdure.server.sse import NO_ID, ServerEvent, Streams, last_event_id
from perdure.shapes.basics import Page
from perdure.shapes.events import Change, Rescan, changes, run_event
from perdure.shapes.events import Event as SessionEvent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from perdure.agent.session_stream import Event
    from perdure.server.app import Ctx

FROM_START = "beginning"
POLL = 0.25
"""Seconds between two looks at the list of changes."""
PAGE = 200
LONGEST_TEXT = 1 << 20
"""Characters of an answer that are sent with its commit; a longer one is read from the state."""
_streams = Streams()


@endpoint("GET", "/events", tag="events", answer=Page[Change], media=SSE, errors=(503,))
async def all_events(call: Call[EventsQuery, None]) -> Stream:
    """Commits of all sessions as they happen, as server-sent events.

    ``changes`` holds a page of them; its id is the store's cursor: a reader that comes back with it as Last-Event-ID
    misses none. ``rescan`` says that what came after that id was trimmed: list the sessions again.
    """
    after = last_event_id(call, call.query.after)
    cursor, expired = (NOW if after in (None, NO_ID) else None if after == FROM_START else after), after == NO_ID
    try:
        # Whether it is a cursor at all is said at once, not in the stream; and now is now.
        page = await call.ctx.db.changes(cursor, 1)
        cursor = page.cursor if cursor == NOW else cursor
    except CursorExpired:
        expired = True
    return _streams.answer(call.ctx, _changes(call.ctx, cursor, expired))


async def _changes(ctx: Ctx, cursor: str | None, expired: bool) -> AsyncGenerator[ServerEvent | None]:
    while True:
        try:
            if expired:
                cursor, expired = (await ctx.db.changes(NOW)).cursor, False
                reason = "changes were trimmed before they were read: list sessions again"
                yield ServerEvent(RESCAN, cursor, Rescan(reason=reason))
            async for page in ctx.db.watch_pages(cursor, limit=PAGE, poll=POLL):
                cursor = page.cursor
                told = Page(items=changes(page), next=cursor)
                yield ServerEvent("changes", cursor, told) if page.items else None
        except CursorExpired:
            expired = True
        except Unavailable:
            # It will be back, and the cursor still stands.
            yield None
            await asyncio.sleep(QUIET)


@endpoint("GET", "/sessions/{session}/events", tag="events", answer=SessionEvent, media=SSE, errors=(503,))
async def session_events(call: Call[SessionEventsQuery, None]) -> Stream:
    """Commits of one branch as they happen, and the answer that is being made, as server-sent events.

    ``delta`` is a provisional piece of an answer (step, attempt, offset, text); its step is ``committed`` later, with
    the whole text, or the attempt ``retracted``. ``step`` is a commit that holds no answer. Every commit comes once, in
    order, with its status; a reader that comes back with Last-Event-ID gets what it has not had. ``rescan`` says that
    this cannot be told any more: read the session again.
    """
    ctx, branch = call.ctx, call.query.branch
    after = last_event_id(call, call.query.after)
    row = await ctx.blocking(living, ctx.db.kernel, call.session)
    if branch != MAIN and not any(h.branch == branch for h in row.heads):
        raise NotFound(f"session {call.session!r:.80} has no branch {branch!r:.80}")
    reader = SessionReader(ctx.db.kernel, call.session, branch)
    first = await ctx.blocking(reader.begin, 0 if after == FROM_START else after)
    return _streams.answer(ctx, _session(ctx, reader, first))


async def _session(ctx: Ctx, reader: SessionReader, first: list[Event]) -> AsyncGenerator[ServerEvent | None]:
    for event in first:
        yield _sent(event)
    while True:
        try:
            async for event in read_along(reader, ctx.blocking):
                yield _sent(event) if event is not None else None
        except (Unavailable, NotFound, Gone):
            # The position stands: what was not told yet is told when it can be read.
            yield None
            await asyncio.sleep(QUIET)


def _sent(event: Event) -> ServerEvent:
    if event.kind == RESCAN:
        return ServerEvent(RESCAN, event.position, Rescan(reason=event.data["reason"]))
    return ServerEvent(event.kind, event.position, run_event(event, LONGEST_TEXT))
