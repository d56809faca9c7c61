"""What waits for people, over HTTP: approvals in the shape of AG-UI 1.0, calls in doubt, and what is said to them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from msgspec import UNSET

from perdure.agent.run_result import misfits_in
from perdure.errors import ApprovalError, NotFound, PerdureError
from perdure.fleet.status import doubts_in, settle
from perdure.history.expiry import living
from perdure.model import Status
from perdure.server.api.inputs import Answer, Decision, EffectsQuery, Outcome, Resolution, Resume, WaitingQuery
from perdure.server.api.routing import Call, Nothing, endpoint
from perdure.server.problems import Refusal
from perdure.session.actions import Action, Do
from perdure.session.calls.decisions import undecided
from perdure.session.calls.schemas import check_arguments
from perdure.session.tools.answer_schema import misfit
from perdure.shapes.approvals import (
    IN_LIST,
    Decided,
    Effect,
    Effects,
    Interrupt,
    decided,
    effect,
    interrupts,
    raised_calls,
)
from perdure.shapes.basics import Page
from perdure.shapes.work import Posted
from perdure.state.document import plain
from perdure.system.names import check_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.model import SessionRow
    from perdure.server.app import Ctx
    from perdure.session.handover import Handover

T = TypeVar("T")
_Meaning = Literal["approved", "rejected", "answered"]
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
    return await _decide(call.ctx, call.session, call.path["approval"], call.body, _meant(call.body))


async def or_here(ctx: Ctx, session: str, handed: Handover) -> Handover:
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
    if len(said) != len(call.body.resume):
        raise _unclear("an interrupt is named twice: decide on each once")
    row = await call.ctx.db.look(call.session)
    waiting = {i.id: i for i in await _interrupts(call.ctx, row)}
    if unknown := [name for name in said if name not in waiting]:
        raise ApprovalError(
            f"{unknown[0]} is not open in session {call.session!r:.80}: it was decided, has expired, or was never there"
        )
    if left := [name for name in waiting if name not in said]:
        raise ApprovalError(
            f"{left[0]} is open as well: decide on everything that is open, or on one of them by itself"
        )
    # All of them are looked at before the first is decided on: what was said cannot be taken back.
    meant: dict[str, _Meaning] = {
        name: _meant(one, waiting[name].reason == "input_required") for name, one in said.items()
    }
    for name, one in said.items():
        schema = waiting[name].response_schema["properties"].get("answer")
        if meant[name] == "answered" and one.payload and (wrong := misfit(one.payload.answer, schema)):
            raise ApprovalError(f"that does not answer {name}: {wrong}")
    payloads = {name: one.payload for name, one in said.items() if one.payload}
    edited = {name: p.edited_args for name, p in payloads.items() if isinstance(p.edited_args, dict)}
    for branch in row.branches if edited else ():
        reading = await call.ctx.db.read(row.id, branch=branch, migrate=False)
        for name in edited.keys() & reading.book.get("approvals", {}).keys():
            check_arguments(reading.book, reading.book["approvals"][name], edited[name])
    return Page(
        items=[await _decide(call.ctx, call.session, name, said[name], meant[name]) for name in said], next=None
    )


def _meant(said: Decision, question: bool | None = None) -> _Meaning:
    """Which of the three a decision is. What contradicts itself, or what was asked, is none: half of it would be done.

    ``question`` says whether one is decided on, where that is known.
    """
    p = said.payload or Answer()
    if p.approved is not UNSET and p.answer is not UNSET:
        raise _unclear("the payload has approved and answer: an answer goes to a question, approved to a call")
    if p.edited_args not in (UNSET, None) and p.approved is not True:
        raise _unclear("editedArgs are what is agreed to: they go with approved: true")
    if said.status == "cancelled":
        if p.approved is True or p.answer is not UNSET:
            raise _unclear('status is cancelled, and the payload decides otherwise: send "resolved"')
        return "rejected"
    if p.approved is False:
        return "rejected"
    if p.answer is not UNSET and question is not False:
        return "answered"
    if p.approved is True and not question:
        return "approved"
    yes_or_no, told = '{"approved": true or false}', '{"answer": ...}'
    known = {None: f"{yes_or_no}, or {told}", False: yes_or_no, True: f'{told}, or {{"approved": false}}'}
    raise _unclear(f"the payload says {known[question]}")


def _unclear(words: str) -> Refusal:
    return Refusal(422, "invalid-request", words)


async def _decide(ctx: Ctx, session: str, approval: str, said: Decision, meant: _Meaning) -> Decided:
    p = said.payload or Answer()
    reason = said.reason or p.reason or ("cancelled" if said.status == "cancelled" else "")
    how: dict[str, Any] = {"by": said.by, "reason": reason}
    if meant == "rejected":
        handed = await ctx.db.reject(session, approval, **how)
    elif meant == "answered":
        handed = await ctx.db.answer(session, approval, p.answer, **how)
    else:
        handed = await ctx.db.approve(session, approval, args=None if p.edited_args is UNSET else p.edited_args, **how)
    return decided(session, approval, meant, await or_here(ctx, session, handed))


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
async def list_effects(call: Call[EffectsQuery, None]) -> Effects:
    """The calls in a session's journal at a place, oldest first; ``status`` keeps those with that status."""
    q = call.query
    reading = await call.ctx.db.read(call.session, q.at, branch=q.branch, migrate=False)
    book = await call.ctx.blocking(plain, reading.book)
    start = int(q.after) if q.after is not None and q.after.isascii() and q.after.isdigit() else 0
    every = [e for e in book.get("effects", {}).values() if q.status is None or e["status"] == q.status]
    page = every[start : start + q.limit]
    following = str(start + q.limit) if len(every) > start + q.limit else None
    return Effects(
        items=[effect(e, call.session, q.branch, IN_LIST) for e in page], next=following, raised=raised_calls(book),
        misfits=misfits_in(book),
    )  # fmt: skip


@endpoint("POST", "/sessions/{session}/effects/{effect}/resolve", tag="people", errors=(409,))
async def resolve(call: Call[Nothing, Resolution]) -> Effect:
    """Say what became of a call in doubt: it was done with this result, may be made again, or is given up."""
    b = call.body
    if b.result is not None and b.verdict != "done":
        raise _unclear(f"the verdict is {b.verdict}: a result goes with done")
    record, _ = await settle(
        call.ctx.db, call.session, call.path["effect"], b.branch, by=b.by, verdict=b.verdict, result=b.result
    )
    return effect(record, call.session, b.branch, IN_LIST)


@endpoint("POST", "/sessions/{session}/effects/{effect}/outcome", tag="people", status=202, errors=(409,))
async def post_outcome(call: Call[Nothing, Outcome]) -> Posted:
    """Report the outcome of a call that was to come later, or whose worker lost its lease, without the lease."""
    b, db = call.body, call.ctx.db
    if (b.result is UNSET) == (b.failed is None):
        raise _unclear("say what became of it: result, or failed and why")
    await call.ctx.blocking(living, db.kernel, call.session)
    effect = check_name(call.path["effect"], "effect", 100)
    new = await db.post_outcome(call.session, effect, None if b.result is UNSET else b.result, failed=b.failed)
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
