"""Events over HTTP: the commits of all sessions, or one branch's with the answers on their way; nothing twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from perdure.errors import CursorExpired, Gone, NotFound, Unavailable
from perdure.model import MAIN
from perdure.server.api.inputs import EventsQuery, SessionEventsQuery
from perdure.server.api.routing import SSE, Answer, Call, Endpoint
from perdure.server.session_stream import BEGINNING, Along, parse
from perdure.server.sse import RESCAN, Event, Streams, last_event_id
from perdure.shapes.basics import Page
from perdure.shapes.events import Change, Rescan, changes
from perdure.shapes.events import Event as SessionEvent
from perdure.stores.latest import latest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from perdure.server.resources import Ctx

FROM_START = "beginning"
POLL = 0.25
"""Seconds between two looks at the list of changes."""
BUSY, QUIET = 0.1, 0.5
"""Seconds between two looks at a session that is being written, and at one that is not."""
PAGE = 200
_streams = Streams()


async def all_events(call: Call[EventsQuery, None]) -> Answer:
    """Commits of all sessions as they happen, as server-sent events.

    ``changes`` holds a page of them; its id is the store's cursor: a reader that comes back with it as Last-Event-ID
    misses none. ``rescan`` says that what came after that id was trimmed: list the sessions again.
    """
    after = last_event_id(call, call.query.after)
    try:
        # Whether it is a cursor at all is said at once, not in the stream.
        cursor, expired = await _first(call.ctx, after)
    except CursorExpired:
        cursor, expired = await call.ctx.blocking(latest, call.ctx.db.kernel.store), True
    return _streams.answer(call.ctx, _changes(call.ctx, cursor, expired))


async def _first(ctx: Ctx, after: str | None) -> tuple[str | None, bool]:
    if after is None or after == RESCAN:
        return await ctx.blocking(latest, ctx.db.kernel.store), after == RESCAN
    if after == FROM_START:
        return None, False
    await ctx.db.changes(after, 1)
    return after, False


async def _changes(ctx: Ctx, cursor: str | None, expired: bool) -> AsyncGenerator[Event | None]:
    store = ctx.db.kernel.store
    while True:
        if expired:
            cursor, expired = cursor or await ctx.blocking(latest, store), False
            yield Event(
                RESCAN, cursor, Rescan(reason="changes were trimmed before they were read: list sessions again")
            )
        try:
            page = await ctx.db.changes(cursor, PAGE)
        except CursorExpired:
            cursor, expired = None, True
            continue
        except Unavailable:
            # It will be back, and the cursor still stands.
            yield None
            await asyncio.sleep(QUIET)
            continue
        cursor = page.cursor
        if page.items:
            yield Event("changes", cursor, Page(items=changes(page), next=cursor))
        else:
            yield None
            await asyncio.sleep(POLL)


async def session_events(call: Call[SessionEventsQuery, None]) -> Answer:
    """Commits of one branch as they happen, and the answer that is being made, as server-sent events.

    ``delta`` is a provisional piece of an answer (step, attempt, offset, text); its step is ``committed`` later, with
    the whole text, or the attempt ``retracted``. ``step`` is a commit that holds no answer. Every commit comes once, in
    order, with its status; a reader that comes back with Last-Event-ID gets what it has not had. ``rescan`` says that
    this cannot be told any more: read the session again.
    """
    ctx, branch = call.ctx, call.query.branch
    after = last_event_id(call, call.query.after)
    row = await ctx.db.look(call.session)
    if branch != MAIN and not any(h.branch == branch for h in row.heads):
        raise NotFound(f"session {call.session!r:.80} has no branch {branch!r:.80}")
    place = None if after is None or after == RESCAN else BEGINNING if after == FROM_START else parse(after)
    along = Along(ctx.db.kernel, call.session, branch)
    first = await ctx.blocking(along.begin, place)
    if after == RESCAN and not first:
        first = [Event(RESCAN, str(along.place), Rescan(reason="read the session again"))]
    return _streams.answer(ctx, _session(ctx, along, first))


async def _session(ctx: Ctx, along: Along, first: list[Event]) -> AsyncGenerator[Event | None]:
    for event in first:
        yield event
    while True:
        looks = along.look()
        try:
            while (found := await ctx.blocking(_next, looks)) is not None:
                yield found
        except (Unavailable, NotFound, Gone):
            # The place stands: what was not told yet is told at the next look.
            along.forget()
        yield None
        await asyncio.sleep(BUSY if along.busy else QUIET)


def _next(looks: Iterator[Event]) -> Event | None:
    return next(looks, None)


ENDPOINTS = [
    Endpoint("GET", "/events", all_events, Page[Change], EventsQuery, media=SSE, errors=(503,), tag="events"),
    Endpoint(
        "GET", "/sessions/{session}/events", session_events, SessionEvent, SessionEventsQuery, media=SSE,
        errors=(404, 410, 503), tag="events",
    ),
]  # fmt: skip
