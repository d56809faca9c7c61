"""Sessions over HTTP: which there are, one of them, a new one, a message to one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.server.api.routing import Call, Endpoint, Nothing
from perdure.server.shapes import Listing, Session, SessionPage, session_of

if TYPE_CHECKING:
    from perdure.model import SessionRow


async def list_sessions(call: Call[Listing, None]) -> SessionPage:
    """Sessions by their properties, in order of id; with newest those that were written last come first.

    ``next`` is what to pass as ``after`` for those that follow.
    """
    q = call.query
    rows: list[SessionRow] = await call.ctx.db.sessions(
        owner=q.owner, status=q.status, agent=q.agent, error=q.error, search=q.search, since=q.since, before=q.before,
        newest=q.newest, after=q.after, limit=q.limit + 1,
    )  # fmt: skip
    more = len(rows) > q.limit
    rows = rows[: q.limit]
    following = (rows[-1].cursor if q.newest else rows[-1].id) if more else None
    return SessionPage(sessions=[session_of(row) for row in rows], next=following)


async def get_session(call: Call[Nothing, None]) -> Session:
    """One session: owner, agent, status, branches, tags and times."""
    return session_of(await call.ctx.db.look(call.session))


ENDPOINTS = [
    Endpoint("GET", "/sessions", list_sessions, SessionPage, Listing, tag="sessions"),
    Endpoint("GET", "/sessions/{session}", get_session, Session, errors=(404, 410), tag="sessions"),
]
