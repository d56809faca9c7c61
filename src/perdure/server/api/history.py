"""The past over HTTP: checkpoints, states at any of them, what changed between two, and what was sent to a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.agent.requests import rebuild
from perdure.server.api.opening import place_of, read_at
from perdure.server.api.routing import Call, Endpoint
from perdure.server.shapes import (
    Cut,
    Diff,
    DiffAsked,
    Difference,
    History,
    HistoryAsked,
    PartAsked,
    Request,
    RequestAsked,
    State,
    point_of,
)
from perdure.server.truncation import MAX_ANSWER, at_pointer, pointer_of, shown, window
from perdure.state.merge import differences

if TYPE_CHECKING:
    from perdure.history.checkpoint import Reading

MOST_DIFFERENCES = 500


async def get_history(call: Call[HistoryAsked, None]) -> History:
    """The checkpoints of a branch, newest first."""
    q = call.query
    points = await call.ctx.db.history(call.session, branch=q.branch, limit=q.limit + 1, before=q.before)
    following = points[q.limit - 1].step if len(points) > q.limit else None
    return History(checkpoints=[point_of(c) for c in points[: q.limit]], next=following)


async def get_state(call: Call[PartAsked, None]) -> State:
    """The state at a step, tag, branch or checkpoint; now if not said. With path, a part of it.

    What is long is cut, and ``cut`` says where: ask for that path, with offset and limit, to see the rest.
    """
    q = call.query
    reading = await read_at(call.ctx.db, call.session, q.at, q.branch)
    part = await call.ctx.blocking(lambda: window(at_pointer(reading.state, q.path), q.offset, q.limit))
    return State(checkpoint=point_of(reading.checkpoint), path=q.path, **_fields(part, q.path))


async def get_request(call: Call[RequestAsked, None]) -> Request:
    """The exact request whose answer a checkpoint holds: model, messages, tools and params, rebuilt and verified."""
    q = call.query
    at = place_of(q.at)
    assert at is not None

    def made() -> Any:
        found = rebuild(call.ctx.db, call.session, at, branch=q.branch)
        whole = {"model": found.model, "messages": found.messages, "tools": found.tools, "params": found.params}
        return window(at_pointer(whole, q.path), q.offset, q.limit)

    reading = await read_at(call.ctx.db, call.session, q.at, q.branch)
    part = await call.ctx.blocking(made)
    return Request(step=reading.step, path=q.path, **_fields(part, q.path))


def _fields(part: Any, path: str) -> dict[str, Any]:
    cut = [Cut(path=path + c.path, kind=c.kind, size=c.size) for c in part.cut]
    return {**part._asdict(), "cut": cut}


async def get_diff(call: Call[DiffAsked, None]) -> Diff:
    """Where the states at two places differ: of one session, or of two."""
    q, db = call.query, call.ctx.db
    one = await read_at(db, call.session, q.a, q.branch)
    two = await read_at(db, q.other or call.session, q.b, q.branch)
    found, more, cut = await call.ctx.blocking(_differences, one, two)
    return Diff(a=point_of(one.checkpoint), b=point_of(two.checkpoint), differences=found, more=more, cut=cut)


def _differences(one: Reading, two: Reading) -> tuple[list[Difference], int, list[Cut]]:
    every = differences(one.plain(), two.plain())
    found: list[Difference] = []
    cut: list[Cut] = []
    budget = MAX_ANSWER // 4
    for d in every[:MOST_DIFFERENCES]:
        path = pointer_of(d.path)
        values: list[Any] = []
        for value in (d.before, d.after):
            part, left_out = shown(value, budget)
            values.append(part)
            cut += [Cut(path=path + c.path, kind=c.kind, size=c.size) for c in left_out]
        budget = max(budget - _weight(values), 200)
        found.append(Difference(path=path, kind=d.kind, before=values[0], after=values[1]))  # pyright: ignore
    return found, len(every) - len(found), cut[:1000]


def _weight(values: list[Any]) -> int:
    import msgspec

    return len(msgspec.json.encode(values))


ENDPOINTS = [
    Endpoint("GET", "/sessions/{session}/history", get_history, History, HistoryAsked, errors=(404, 410), tag="past"),
    Endpoint("GET", "/sessions/{session}/state", get_state, State, PartAsked, errors=(404, 410), tag="past"),
    Endpoint("GET", "/sessions/{session}/diff", get_diff, Diff, DiffAsked, errors=(404, 410), tag="past"),
    Endpoint("GET", "/sessions/{session}/request", get_request, Request, RequestAsked, errors=(404, 410), tag="past"),
]
