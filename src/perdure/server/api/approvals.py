"""What waits for people, over HTTP: approvals in the shape of AG-UI 1.0, calls in doubt, and what is said to them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar, cast

from perdure.errors import ApprovalError, NotFound, PerdureError
from perdure.fleet.status import doubts_in, settle
from perdure.history.expiry import living
from perdure.model import Status
from perdure.server.api.inputs import Decision, EffectsQuery, Outcome, Resolution, Resume, WaitingQuery
from perdure.server.api.routing import Call, Nothing, endpoint
from perdure.server.problems import Refusal
from perdure.session.actions import Action, Do
from perdure.session.decisions import undecided
from perdure.shapes.approvals import IN_LIST, Decided, Effect, Interrupt, decided, effect, interrupts
from perdure.shapes.basics import Page
from perdure.shapes.work import Posted
from perdure.state.document import plain
from perdure.system.names import check_name
from perdure.system.times import parse_timestamp

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.model import SessionRow
    from perdure.server.app import Ctx
    from perdure.session.handover import Handover

T = TypeVar("T")
_OTHERS = "others"
"""Stands in a cursor for sessions that do not wait themselves, as main says, but may on another branch."""
_ROWS = 1000
"""How many sessions are gone through at a time for those that have other branches."""

# -- approvals ------------------------------------------------------------------------------------------------------


@endpoint("GET", "/approvals", tag="people")
async def list_approvals(call: Call[WaitingQuery, None]) -> Page[Interrupt]:
    """What waits for agreement or an answer, in all sessions that wait. A page looks into some and may be empty.

    A session waits when its branch main does; with ``all_branches`` also what waits elsewhere in the others is found.
    """
    found, following = await _waiting(call.ctx, call.query, (Status.WAITING_APPROVAL, Status.IN_DOUBT), _interrupts)
    return Page(items=found, next=following)


@endpoint("GET", "/sessions/{session}/approvals", tag="people")
async def session_approvals(call: Call[Nothing, None]) -> Page[Interrupt]:
    """What waits for agreement or an answer in one session, on all its branches."""
    found = await _interrupts(call.ctx, await call.ctx.db.look(call.session))
    return Page(items=found, next=None)


@endpoint("POST", "/sessions/{session}/approvals/{approval}", tag="people", errors=(409,))
async def decide(call: Call[Nothing, Decision]) -> Decided:
    """Decide on one interrupt, once. One that was decided already, or has expired, is a problem (409)."""
    return await _decide(call.ctx, call.session, call.path["approval"], call.body)


async def _or_here(ctx: Ctx, session: str, handed: Handover) -> Handover:
    """Who goes on with a session; where nobody does, this server can when it is asked to, if it has the agent."""
    if not handed.unserved or (agent := (await ctx.db.look(session)).agent) not in ctx.agents:
        return handed
    return handed._replace(
        words=f"No worker has agent {agent}, but this server does: have it run with {Action(Do.RUN, session).http}."
    )


@endpoint("POST", "/sessions/{session}/resume", tag="people", errors=(409,))
async def resume(call: Call[Nothing, Resume]) -> Page[Decided]:
    """Decide on everything that is open in a session, in the shape of AG-UI: nothing open may be left out."""
    said = {one.interrupt_id: one for one in call.body.resume}
    waiting = {i.id: i for i in await _interrupts(call.ctx, await call.ctx.db.look(call.session))}
    if unknown := [name for name in said if name not in waiting]:
        raise ApprovalError(f"{unknown[0]} is not open in session {call.session!r:.80}: it was decided, or never there")
    if left := [name for name in waiting if name not in said]:
        raise ApprovalError(
            f"{left[0]} is open as well: decide on everything that is open, or on one of them by itself"
        )
    now = call.ctx.clock.wall()
    if late := [i.id for i in waiting.values() if i.expires_at and parse_timestamp(i.expires_at) <= now]:
        raise ApprovalError(f"approval {late[0]} has expired, so the call counts as turned down: ask for it anew")
    return Page(items=[await _decide(call.ctx, call.session, name, one) for name, one in said.items()], next=None)


async def _decide(ctx: Ctx, session: str, approval: str, said: Decision) -> Decided:
    payload: dict[str, Any] = cast("Any", said.payload) if isinstance(said.payload, dict) else {}
    refused = said.status == "cancelled" or payload.get("approved") is False
    if refused:
        reason = said.reason or str(payload.get("reason") or "") or ("cancelled" if said.status == "cancelled" else "")
        handed = await ctx.db.reject(session, approval, by=said.by, reason=reason[:2000])
        return decided(session, approval, "rejected", await _or_here(ctx, session, handed))
    if "answer" in payload:
        handed = await ctx.db.answer(session, approval, payload["answer"], by=said.by, reason=said.reason)
        return decided(session, approval, "answered", await _or_here(ctx, session, handed))
    if payload.get("approved") is True:
        args: Any = payload.get("editedArgs")
        if args is not None and not isinstance(args, dict):
            raise Refusal(422, "invalid-request", "editedArgs are the call's arguments, as an object")
        handed = await ctx.db.approve(session, approval, by=said.by, reason=said.reason, args=cast("Any", args))
        return decided(session, approval, "approved", await _or_here(ctx, session, handed))
    raise Refusal(422, "invalid-request", 'the payload says {"approved": true or false}, or {"answer": ...}')


async def _interrupts(ctx: Ctx, row: SessionRow) -> list[Interrupt]:
    found: list[Interrupt] = []
    for branch in row.branches:
        reading = await ctx.db.read(row.id, branch=branch, migrate=False)
        book = await ctx.blocking(plain, reading.book)
        open_ = await ctx.blocking(undecided, ctx.db.kernel, row, book, reading.checkpoint.line)
        found += interrupts(book, row.id, branch, open_, IN_LIST)
    return found


# -- calls in doubt -------------------------------------------------------------------------------------------------


@endpoint("GET", "/in-doubt", tag="people")
async def list_in_doubt(call: Call[WaitingQuery, None]) -> Page[Effect]:
    """Calls that were started and whose outcome nobody knows, in all sessions that stand still because of one.

    With ``all_branches`` also those on other branches of sessions that do not stand still.
    """
    found, following = await _waiting(call.ctx, call.query, (Status.IN_DOUBT,), _doubts)
    return Page(items=found, next=following)


@endpoint("GET", "/sessions/{session}/effects", tag="people")
async def list_effects(call: Call[EffectsQuery, None]) -> Page[Effect]:
    """The calls in a session's journal at a place, oldest first; ``status`` keeps those with that status."""
    q = call.query
    reading = await call.ctx.db.read(call.session, q.at, branch=q.branch, migrate=False)
    book = await call.ctx.blocking(plain, reading.book)
    start = int(q.after) if q.after is not None and q.after.isascii() and q.after.isdigit() else 0
    every = [e for e in book.get("effects", {}).values() if q.status is None or e["status"] == q.status]
    page = every[start : start + q.limit]
    following = str(start + q.limit) if len(every) > start + q.limit else None
    return Page(items=[effect(e, call.session, q.branch, IN_LIST) for e in page], next=following)


@endpoint("POST", "/sessions/{session}/effects/{effect}/resolve", tag="people", errors=(409,))
async def resolve(call: Call[Nothing, Resolution]) -> Effect:
    """Say what became of a call in doubt: it was done with this result, may be made again, or is given up."""
    b = call.body
    record, _ = await settle(
        call.ctx.db, call.session, call.path["effect"], b.branch, by=b.by, verdict=b.verdict, result=b.result
    )
    return effect(record, call.session, b.branch, IN_LIST)


@endpoint("POST", "/sessions/{session}/effects/{effect}/outcome", tag="people", status=202, errors=(409,))
async def post_outcome(call: Call[Nothing, Outcome]) -> Posted:
    """Report the outcome of a call that was to come later, or whose worker lost its lease, without the lease."""
    b, db = call.body, call.ctx.db
    await call.ctx.blocking(living, db.kernel, call.session)
    effect = check_name(call.path["effect"], "effect", 100)
    new = await db.post_outcome(call.session, effect, b.result, failed=b.failed)
    return Posted(session=call.session, new=new, begins_anew=False, message_key="", kept=True, answer=None)


async def _doubts(ctx: Ctx, row: SessionRow) -> list[Effect]:
    return [effect(record, row.id, branch, IN_LIST) for branch, record in await doubts_in(ctx.db, row)]


async def doubts_of(ctx: Ctx, session: str) -> list[Effect]:
    """The calls of one session of which nobody knows what became of them."""
    found = await doubts_in(ctx.db, await ctx.db.look(session), left=True)
    return [effect(record, session, branch, IN_LIST) for branch, record in found]


# -- both -----------------------------------------------------------------------------------------------------------


async def _waiting(
    ctx: Ctx, q: WaitingQuery, statuses: tuple[str, ...], look: Callable[[Ctx, SessionRow], Awaitable[list[T]]]
) -> tuple[list[T], str | None]:
    """Look into a page of the sessions with these statuses, one status after the other; then of others, if wanted."""
    places = (*statuses, _OTHERS) if q.all_branches else statuses
    place, _, after = (q.after or "").partition(":")
    start = places.index(place) if place in places else 0
    for number, one in enumerate(places[start:], start):
        rows, last = await _page(ctx, q, one, statuses, after)
        if not rows and last is None:
            after = ""
            continue
        found = await asyncio.gather(*(_tried(look, ctx, row) for row in rows))
        following = f"{one}:{last}" if last is not None else None
        for later in places[number + 1 :] if following is None else ():
            if any(await _page(ctx, q, later, statuses, "")):
                following = f"{later}:"
                break
        return [item for items in found for item in items], following
    return [], None


async def _page(
    ctx: Ctx, q: WaitingQuery, place: str, statuses: tuple[str, ...], after: str
) -> tuple[list[SessionRow], str | None]:
    """Sessions to look into, and the id after which there may be more (None: there are none)."""
    rows: list[SessionRow]
    if place != _OTHERS:
        rows = await ctx.db.sessions(status=place, after=after or None, limit=q.limit + 1)
        return rows[: q.limit], rows[q.limit - 1].id if len(rows) > q.limit else None
    every: list[SessionRow] = await ctx.db.sessions(after=after or None, limit=_ROWS)
    rows = [row for row in every if row.status not in statuses and row.branches[1:]]
    if len(rows) > q.limit:
        return rows[: q.limit], rows[q.limit - 1].id
    return rows, every[-1].id if len(every) == _ROWS else None


async def _tried(look: Callable[[Ctx, SessionRow], Awaitable[list[T]]], ctx: Ctx, row: SessionRow) -> list[T]:
    """What one session has; one that is gone by now, or cannot be read, keeps nobody from seeing the others."""
    try:
        return await look(ctx, row)
    except NotFound:
        return []
    except PerdureError as e:
        import logging

        logging.getLogger("perdure.server").warning("session %r cannot be looked into: %s", row.id[:80], e)
        return []
