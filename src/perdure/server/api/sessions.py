"""Reading sessions over HTTP: which there are, one of them, and its past as far as anybody wants to look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.agent.requests import rebuild
from perdure.fleet.inputs import SHOWN, inputs, waiting_counted
from perdure.fleet.why.reading import why_async
from perdure.model import MAIN
from perdure.server.api.inputs import (
    BranchQuery,
    DiffQuery,
    HistoryQuery,
    Properties,
    RequestQuery,
    SessionsQuery,
    ValueQuery,
)
from perdure.server.api.routing import Call, Nothing, endpoint
from perdure.shapes.basics import Page, page
from perdure.shapes.history import Checkpoint, Diff, Value, checkpoint, diff, value_part
from perdure.shapes.sessions import Session, Why, session_row, why
from perdure.system.times import parse_timestamp

if TYPE_CHECKING:
    from perdure.model import SessionRow


def properties(q: Properties) -> dict[str, Any]:
    """Properties of sessions as the library takes them."""
    since, before = (None if moment is None else parse_timestamp(moment) for moment in (q.since, q.before))
    return {
        "owner": q.owner, "status": q.status, "agent": q.agent, "error": q.error, "label": q.label, "search": q.search,
        "since": since, "before": before,
    }  # fmt: skip


@endpoint("GET", "/sessions", tag="sessions")
async def list_sessions(call: Call[SessionsQuery, None]) -> Page[Session]:
    """Sessions by their properties, in order of id; with newest those that were written last come first."""
    q = call.query
    rows: list[SessionRow] = await call.ctx.db.sessions(
        **properties(q), newest=q.newest, after=q.after, limit=q.limit + 1
    )
    rows = await call.ctx.blocking(waiting_counted, call.ctx.db.kernel, rows)
    return page(rows, q.limit, session_row, lambda row: row.cursor if q.newest else row.id)


@endpoint("GET", "/sessions/{session}", tag="sessions")
async def get_session(call: Call[Nothing, None]) -> Session:
    """One session: owner, agent, status, branches, tags and times."""
    row = await call.ctx.db.look(call.session)
    return session_row((await call.ctx.blocking(waiting_counted, call.ctx.db.kernel, [row]))[0])


@endpoint("GET", "/sessions/{session}/why", tag="sessions")
async def get_why(call: Call[BranchQuery, None]) -> Why:
    """Why a session is where it is, what to do next and how, and what was posted to it and waits."""
    branch, db = call.query.branch, call.ctx.db
    found = await why_async(db, call.session, branch=branch)
    posted = await call.ctx.blocking(db.kernel.store.inbox, call.session, SHOWN) if branch == MAIN else []
    return why(found, call.session, branch, await call.ctx.blocking(inputs, db.kernel, posted))


@endpoint("GET", "/sessions/{session}/history", tag="past")
async def get_history(call: Call[HistoryQuery, None]) -> Page[Checkpoint]:
    """The checkpoints of a branch, newest first."""
    q = call.query
    points = await call.ctx.db.history(call.session, branch=q.branch, limit=q.limit + 1, before=q.before)
    return page(points, q.limit, checkpoint, lambda c: c.step)


@endpoint("GET", "/sessions/{session}/state", tag="past")
async def get_state(call: Call[ValueQuery, None]) -> Value:
    """The state at a step, tag, branch or checkpoint; now if not said. With path, a part of it.

    What is long is cut, and ``truncated`` says where: ask for that path, with offset and limit, to see the rest.
    """
    q = call.query
    reading = await call.ctx.db.read(call.session, q.at, branch=q.branch, migrate=False)
    return await call.ctx.blocking(value_part, reading.checkpoint, reading.state, q.path, q.offset, q.limit)


@endpoint("GET", "/sessions/{session}/request", tag="past")
async def get_request(call: Call[RequestQuery, None]) -> Value:
    """The exact request whose answer a checkpoint holds: model, messages, tools and params, rebuilt and verified."""
    q = call.query
    reading = await call.ctx.db.read(call.session, q.at, branch=q.branch, migrate=False)

    def made() -> Value:
        found = rebuild(call.ctx.db, call.session, q.at, branch=q.branch)
        whole = {"model": found.model, "messages": found.messages, "tools": found.tools, "params": found.params}
        return value_part(reading.checkpoint, whole, q.path, q.offset, q.limit)

    return await call.ctx.blocking(made)


@endpoint("GET", "/sessions/{session}/diff", tag="past")
async def get_diff(call: Call[DiffQuery, None]) -> Diff:
    """Where the states at two places differ: of one session, or of two."""
    q, db = call.query, call.ctx.db
    one = await db.read(call.session, q.a, branch=q.branch, migrate=False)
    two = await db.read(q.other or call.session, q.b, branch=q.branch, migrate=False)
    return await call.ctx.blocking(diff, one, two)
