"""Sessions over HTTP: which there are, and one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.server.api.inputs import Properties, SessionsQuery
from perdure.server.api.routing import Call, Endpoint, Nothing
from perdure.shapes.basics import Page, page
from perdure.shapes.sessions import Session, session_row
from perdure.system.wording import parse_timestamp

if TYPE_CHECKING:
    from perdure.model import SessionRow


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


ENDPOINTS = [
    Endpoint("GET", "/sessions", list_sessions, Page[Session], SessionsQuery, tag="sessions"),
    Endpoint("GET", "/sessions/{session}", get_session, Session, errors=(404, 410), tag="sessions"),
]
