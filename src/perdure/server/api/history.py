"""The past over HTTP: checkpoints, states at any of them, what changed between two, and what was sent to a model."""

from __future__ import annotations

from perdure.agent.requests import rebuild
from perdure.server.api.inputs import DiffQuery, HistoryQuery, RequestQuery, ValueQuery
from perdure.server.api.opening import place_of, read_at
from perdure.server.api.routing import Call, Endpoint
from perdure.shapes.basics import Page, page
from perdure.shapes.history import Checkpoint, Diff, Value, checkpoint, diff, value_part


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
    Endpoint(
        "GET", "/sessions/{session}/history", get_history, Page[Checkpoint], HistoryQuery, errors=(404, 410), tag="past"
    ),
    Endpoint("GET", "/sessions/{session}/state", get_state, Value, ValueQuery, errors=(404, 410), tag="past"),
    Endpoint("GET", "/sessions/{session}/diff", get_diff, Diff, DiffQuery, errors=(404, 410), tag="past"),
    Endpoint("GET", "/sessions/{session}/request", get_request, Value, RequestQuery, errors=(404, 410), tag="past"),
]
