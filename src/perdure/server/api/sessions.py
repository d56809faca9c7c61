"""Reading sessions over HTTP: which there are, one of them, and its past as far as anybody wants to look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.agent.requests import rebuild
from perdure.errors import NotFound
from perdure.server.api.inputs import DiffQuery, HistoryQuery, Properties, RequestQuery, SessionsQuery, ValueQuery
from perdure.server.api.routing import Call, Endpoint, Nothing
from perdure.shapes.basics import Page, page
from perdure.shapes.history import Checkpoint, Diff, Value, checkpoint, diff, value_part
from perdure.shapes.sessions import Session, session_row
from perdure.system.times import parse_timestamp

if TYPE_CHECKING:
    from perdure.aio import AsyncDatabase
    from perdure.history.checkpoint import Reading
    from perdure.model import SessionRow

SHORTEST_ID = 6


def properties(q: Properties) -> dict[str, Any]:
    """Properties of sessions as the library takes them."""
    since, before = (None if moment is None else parse_timestamp(moment) for moment in (q.since, q.before))
    return {
        "owner": q.owner, "status": q.status, "agent": q.agent, "error": q.error, "search": q.search, "since": since,
        "before": before,
    }  # fmt: skip


async def list_sessions(call: Call[SessionsQuery, None]) -> Page[Session]:
    """Sessions by their properties, in order of id; with newest those that were written last come first."""
    q = call.query
    rows: list[SessionRow] = await call.ctx.db.sessions(
        **properties(q), newest=q.newest, after=q.after, limit=q.limit + 1
    )
    return page(rows, q.limit, session_row, lambda row: row.cursor if q.newest else row.id)


async def get_session(call: Call[Nothing, None]) -> Session:
    """One session: owner, agent, status, branches, tags and times."""
    return session_row(await call.ctx.db.look(call.session))


async def read_at(db: AsyncDatabase, session: str, at: str | None, branch: str) -> Reading:
    """The state at a place, as it was stored: the server does not have the program's migrations."""
    if at is None or not is_number(at):
        return await db.read(session, at, branch=branch, migrate=False)
    try:
        return await db.read(session, int(at[:18]), branch=branch, migrate=False)
    except NotFound:
        if len(at) < SHORTEST_ID:
            raise
    # A number that is no step may be the beginning of an id that happens to have no letters.
    return await db.read(session, at, branch=branch, migrate=False)


def is_number(text: str) -> bool:
    """Whether a place is a step."""
    return text.isascii() and text.isdigit()


def place_of(at: str | None) -> int | str | None:
    """A place as the library takes it."""
    return int(at[:18]) if at is not None and is_number(at) else at


async def get_history(call: Call[HistoryQuery, None]) -> Page[Checkpoint]:
    """The checkpoints of a branch, newest first."""
    q = call.query
    points = await call.ctx.db.history(call.session, branch=q.branch, limit=q.limit + 1, before=q.before)
    return page(points, q.limit, checkpoint, lambda c: c.step)


async def get_state(call: Call[ValueQuery, None]) -> Value:
    """The state at a step, tag, branch or checkpoint; now if not said. With path, a part of it.

    What is long is cut, and ``truncated`` says where: ask for that path, with offset and limit, to see the rest.
    """
    q = call.query
    reading = await read_at(call.ctx.db, call.session, q.at, q.branch)
    return await call.ctx.blocking(value_part, reading.checkpoint, reading.state, q.path, q.offset, q.limit)


async def get_request(call: Call[RequestQuery, None]) -> Value:
    """The exact request whose answer a checkpoint holds: model, messages, tools and params, rebuilt and verified."""
    q = call.query
    at = place_of(q.at)
    assert at is not None
    reading = await read_at(call.ctx.db, call.session, q.at, q.branch)

    def made() -> Value:
        found = rebuild(call.ctx.db, call.session, at, branch=q.branch)
        whole = {"model": found.model, "messages": found.messages, "tools": found.tools, "params": found.params}
        return value_part(reading.checkpoint, whole, q.path, q.offset, q.limit)

    return await call.ctx.blocking(made)


async def get_diff(call: Call[DiffQuery, None]) -> Diff:
    """Where the states at two places differ: of one session, or of two."""
    q, db = call.query, call.ctx.db
    one = await read_at(db, call.session, q.a, q.branch)
    two = await read_at(db, q.other or call.session, q.b, q.branch)
    return await call.ctx.blocking(diff, one, two)


ENDPOINTS = [
    Endpoint("GET", "/sessions", list_sessions, Page[Session], SessionsQuery, tag="sessions"),
    Endpoint("GET", "/sessions/{session}", get_session, Session, tag="sessions"),
    Endpoint("GET", "/sessions/{session}/history", get_history, Page[Checkpoint], HistoryQuery, tag="past"),
    Endpoint("GET", "/sessions/{session}/state", get_state, Value, ValueQuery, tag="past"),
    Endpoint("GET", "/sessions/{session}/diff", get_diff, Diff, DiffQuery, tag="past"),
    Endpoint("GET", "/sessions/{session}/request", get_request, Value, RequestQuery, tag="past"),
]
