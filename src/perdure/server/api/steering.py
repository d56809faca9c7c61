"""Steering over HTTP: new work, messages, runs here, cancel, retry, pause, and the same for many sessions at once."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from perdure.agent.branching_off import say_on, usual_effects, with_instructions
from perdure.agent.conversation import check_message
from perdure.agent.dependencies import check_deps
from perdure.agent.models.parts import packed
from perdure.agent.said_once import answer_of
from perdure.errors import Busy, InvalidInput, NotFound, PerdureError
from perdure.fleet.board import ANSWERED, Submission, board_of, given_anew_async, submit_async, was_worked_on
from perdure.fleet.status import change, drain_workers, settle_all, steer, to_resolve, to_retry, to_stop
from perdure.history.expiry import ended
from perdure.history.hydrate import find, known
from perdure.model import MAIN
from perdure.protocols import Boarded, Filter
from perdure.server.api.approvals import or_here
from perdure.server.api.inputs import (
    BulkAction,
    Cancellation,
    Drain,
    EditedMessage,
    Hold,
    InboxQuery,
    Name,
    NewMessage,
    NewRun,
    NewSession,
    QueueQuery,
    SessionFilter,
    Withdrawal,
)
from perdure.server.api.routing import Call, Nothing, endpoint
from perdure.server.api.sessions import properties
from perdure.server.problems import Refusal
from perdure.session.actions import Action, Do
from perdure.session.handle import check_objective
from perdure.session.handover import Handover, close_to, made_board, served_by, workers_of
from perdure.session.inbox import seal_entry
from perdure.session.journal import check_not_closed
from perdure.shapes.basics import Failure, Page, failure, page, readable
from perdure.shapes.store import Store, store
from perdure.shapes.work import (
    Amended,
    Bulk,
    Drained,
    Fleet,
    InboxMessage,
    Posted,
    QueuedSession,
    Run,
    Started,
    Submitted,
    amended,
    fleet,
    inbox_message,
    queued_session,
    run,
    submitted,
)
from perdure.system.commands import quoted
from perdure.system.names import check_session

if TYPE_CHECKING:
    from perdure.model import SessionRow
    from perdure.protocols import Work
    from perdure.server.app import Ctx
    from perdure.session import waiting_messages as library

USER = "user"


def _key_of(call: Call[Nothing, Any]) -> str | None:
    """The key that makes a request safe to repeat, from its header or its body."""
    header, body = call.headers.get("idempotency-key"), call.body.key
    if header is not None and body is not None and header != body:
        raise Refusal(422, "invalid-request", "the header Idempotency-Key and the key in the body differ: send one")
    if header is None:
        return body
    try:
        return msgspec.convert(header, Name)
    except msgspec.ValidationError as e:
        raise Refusal(422, "invalid-request", readable(f"in the header Idempotency-Key: {e}")) from None


async def _answer(ctx: Ctx, session: str, key: str) -> Run | None:
    found = await ctx.blocking(answer_of, ctx.db.kernel, session, key, MAIN)
    return None if found is None else run(found.result, found.branch)


# -- giving work ----------------------------------------------------------------------------------------------------


@endpoint("POST", "/sessions", tag="sessions", status=201, errors=(409,))
async def create_session(call: Call[Nothing, NewSession]) -> Submitted:
    """Make a session that an agent works on, with a message in its inbox, durably; a fleet takes it up.

    On a store that has no board for a fleet nobody takes it up by itself: run it with POST /sessions/{session}/runs.
    """
    b, db, named = call.body, call.ctx.db, _key_of(call)
    check_said(call.ctx, b.message, to_agent=True)
    session = b.id or (os.urandom(12).hex() if named is None else _session_of(b, named))
    key = "" if b.message is None else named or os.urandom(12).hex()
    ttl: Any = "default" if b.ttl_seconds is None else b.ttl_seconds
    boarded = isinstance(db.kernel.store, Boarded)
    if boarded:
        given = await submit_async(
            db, session, b.message, agent=b.agent, owner=b.owner, key=key or None, priority=b.priority, ttl=ttl
        )
        given = given._replace(handover=await or_here(call.ctx, session, given.handover))
    else:
        given = await _without_fleet(call, session, key, ttl)
    answer = None if given or not key else await _answer(call.ctx, session, key)
    given = given._replace(
        handover=ANSWERED
        if answer is not None
        else await call.ctx.blocking(_or_meant, call.ctx, session, given.handover)
    )
    return submitted(session, b.agent, given, key, answer, queued=boarded)


async def _without_fleet(call: Call[Nothing, NewSession], session: str, key: str, ttl: Any) -> Submission:
    """The same on a store that has no board."""
    b, db = call.body, call.ctx.db
    said = packed(b.message)
    if said is not None:
        # What cannot be kept makes no session either.
        seal_entry(db.kernel, session, key, "message", said)
    before = await given_anew_async(db, session, b.agent, b.owner, says=said is not None)
    new = await db.create(session, agent=b.agent, owner=b.owner, ttl=ttl)
    if said is not None:
        new = await db.post(session, said, key=key)
    runs = Action(Do.RUN, session).http
    alone = Handover("nobody", f"No fleet works on this store: {runs} has this server run it.", True)
    return Submission(new, alone, before)


def _or_meant(ctx: Ctx, session: str, handed: Handover) -> Handover:
    """The same, with the agent of this server that may have been meant by a name that nobody has."""
    kernel = ctx.db.kernel
    row = find(kernel, session)
    if not handed.unserved or row is None or not row.agent or row.agent in ctx.agents:
        return handed
    # Those that workers have were told already.
    likely = close_to(row.agent, ctx.agents.keys() - served_by(workers_of(kernel)))
    if not likely or was_worked_on(kernel, row):
        return handed
    gives = Action(Do.SUBMIT, session, likely[0]).http
    meant = f"This server has no agent {row.agent:.80}; did you mean {likely[0]}?"
    return handed._replace(words=f"{handed.words} {meant} Give it to that one, without a message: {gives}.")


def _session_of(b: NewSession, key: str) -> str:
    """The same for whoever asks once more, having got no answer."""
    return hashlib.sha256(json.dumps([b.owner, b.agent, key]).encode()).hexdigest()[:24]


@endpoint("POST", "/sessions/{session}/messages", tag="sessions", status=202)
async def post_message(call: Call[Nothing, NewMessage]) -> Posted:
    """Put a message into a session's inbox, durably, whoever writes the session; with a key only once.

    Repeated with its key it is answered with the answer that it got, once there is one. A session that has expired or
    was deleted begins anew with it.
    """
    key = _key_of(call) or os.urandom(12).hex()
    if call.body.message is None:
        raise Refusal(422, "invalid-request", "the message is empty")
    check_said(call.ctx, call.body.message, to_agent=await _has_agent(call))
    gone = await call.ctx.blocking(ended, call.ctx.db.kernel, call.session)
    new = await call.ctx.db.post(call.session, packed(call.body.message), key=key)
    answer = None if new else await _answer(call.ctx, call.session, key)
    return Posted(
        session=call.session, new=new, begins_anew=bool(gone), message_key=key, kept=True, answer=answer
    )  # fmt: skip


@endpoint("POST", "/sessions/{session}/runs", tag="sessions", status=202, errors=(409, 429))
async def start_run(call: Call[Nothing, NewRun]) -> Started:
    """Run an agent of this server on a session, in the background; its events tell how it goes.

    It is how a branch is run on; what a fleet has on its board runs by itself. A message is durable before this
    answers: it goes through the inbox of main, where it waits while somebody else has the session; on another branch it
    is said there, and the inbox is left alone.
    """
    b, runs, key = call.body, call.ctx.runs, _key_of(call)
    check_said(call.ctx, b.message, to_agent=True)
    row: SessionRow | None = await call.ctx.blocking(find, call.ctx.db.kernel, call.session)
    begins = Action(Do.START, call.session).http
    if row is None:
        raise NotFound(f"there is no session {call.session!r:.80}: {begins} begins one, with its agent and owner")
    gone = await call.ctx.blocking(ended, call.ctx.db.kernel, call.session)
    if not row.heads and not gone:
        raise NotFound(
            f"session {call.session!r:.80} has no checkpoint yet: {begins} begins it, with its agent and owner"
        )
    if b.branch not in row.branches and not (gone and b.branch == MAIN):
        raise InvalidInput(f"session {call.session!r:.80} has no branch {b.branch!r:.80}: fork it first")
    if (b.reopen or b.objective is not None) and b.branch != MAIN:
        raise Refusal(422, "invalid-request", f"{'reopen' if b.reopen else 'objective'} goes with main")
    if b.branch == MAIN and not b.reopen:
        await call.ctx.blocking(check_not_closed, call.ctx.db.kernel, row)
    agent = runs.agent(b.agent or row.agent)
    check_deps(agent)
    if b.objective is not None:
        check_objective(b.objective)
    options: dict[str, Any] = {"effects": b.effects or usual_effects(b.branch), "max_turns": b.max_turns}
    if b.branch != MAIN and key is not None:
        raise Refusal(422, "invalid-request", "a key names a message of the inbox, which is main's")
    said = b.message is not None and b.branch == MAIN
    running = runs.is_running(call.session, b.branch)
    others = [] if running else runs.branches(call.session)
    if others and not (said and key is not None):
        # The run would find that out by itself, and nobody would be told.
        raise Busy(call.session, f"this server, on branch {others[0]!r:.80}", call.ctx.clock.wall())
    if not running and not others:
        runs.check_room()
    about = Started(session=call.session, branch=b.branch, started=False, message_key="", kept=False, answer=None)
    if said:
        key = key or os.urandom(12).hex()
        new = await call.ctx.db.post(call.session, packed(b.message), key=key)
        answer = None if new else await _answer(call.ctx, call.session, key)
        about = msgspec.structs.replace(about, message_key=key, kept=True, answer=answer)
        if answer is not None or others:
            return about
    if b.branch == MAIN:
        agent = with_instructions(agent, b.instructions)
        options |= {"objective": b.objective, "reopen": b.reopen, "by": b.by}
    elif not running:
        if b.message is not None:
            await say_on(call.ctx.db, call.session, b.branch, b.message)
        options["instructions"] = b.instructions
    try:
        started = runs.start(agent, call.session, b.branch, again=said, **options)
    except Refusal:
        # Others were faster since this looked for room.
        if not said:
            raise
        started = False
    return msgspec.structs.replace(about, started=started)


# -- what was posted and is not answered ----------------------------------------------------------------------------


async def _has_agent(call: Call[Any, Any]) -> bool:
    """Whether the session is one of an agent; others may be told anything."""
    row: SessionRow | None = await call.ctx.blocking(find, call.ctx.db.kernel, call.session)
    return row is not None and bool(row.agent)


def check_said(ctx: Ctx, message: Any, *, to_agent: bool) -> None:
    """Who posts is a user: only where whoever runs this server allows it may he speak as anybody else."""
    role: object = message.get("role", USER) if isinstance(message, dict) else USER  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(role, str):
        raise Refusal(422, "invalid-request", "the role of a message must be text, such as user")
    if role == USER or role in ctx.roles:
        if to_agent and message is not None:
            check_message(message)
        return
    said = f"a message over HTTP has the role user, and this one says {role[:40]!r}: leave its role out"
    raise Refusal(403, "forbidden-role", f"{said}, or have the server started with --allow-role {quoted(role[:40])}")


@endpoint("GET", "/sessions/{session}/inbox", tag="sessions")
async def list_inbox(call: Call[InboxQuery, None]) -> Page[InboxMessage]:
    """What was posted to a session and is not answered: what an unfinished run has taken, and what waits."""
    found = await call.ctx.db.inbox(call.session, limit=call.query.limit)
    return Page(items=[inbox_message(m) for m in found], next=None)


@endpoint("POST", "/sessions/{session}/inbox/{key}/withdraw", tag="sessions", errors=(409,))
async def withdraw(call: Call[Nothing, Withdrawal]) -> Amended:
    """Take a message back that was not answered yet: no agent is told it any more, and the session goes on."""
    key = call.path["key"]
    done = await call.ctx.db.withdraw(call.session, key, by=call.body.by, reason=call.body.reason)
    return await _amended(call, "withdrawn", done)


@endpoint("POST", "/sessions/{session}/inbox/{key}/edit", tag="sessions", errors=(409,))
async def edit(call: Call[Nothing, EditedMessage]) -> Amended:
    """Have a message that was not answered yet say something else; it keeps its key and its place."""
    b = call.body
    check_said(call.ctx, b.message, to_agent=await _has_agent(call))
    done = await call.ctx.db.edit(call.session, call.path["key"], packed(b.message), by=b.by, reason=b.reason)
    return await _amended(call, "edited", done)


async def _amended(call: Call[Nothing, Any], did: Literal["withdrawn", "edited"], done: library.Amended) -> Amended:
    handed = await or_here(call.ctx, call.session, done.handover)
    return amended(call.session, call.path["key"], did, done._replace(handover=handed))


# -- one session ----------------------------------------------------------------------------------------------------


@endpoint("POST", "/sessions/{session}/cancel", tag="steering")
async def cancel(call: Call[Nothing, Cancellation]) -> Bulk:
    """Stop a session's agent: it ends as soon as it notices, and goes on only with a new message.

    ``changed`` is 0 where there is nothing to stop: then nothing was written.
    """
    done = await call.ctx.db.cancel(call.session, by=call.body.by, reason=call.body.reason)
    return Bulk(action="cancel", dry_run=False, sessions=[call.session], changed=int(done), failed=[], next=None)


@endpoint("POST", "/sessions/{session}/retry", tag="steering", errors=(409,))
async def retry(call: Call[Nothing, None]) -> Bulk:
    """Have the fleet try a session again that has failed or was parked."""
    return await _change(call, "retry")


@endpoint("POST", "/sessions/{session}/pause", tag="steering", errors=(409,))
async def pause(call: Call[Nothing, None]) -> Bulk:
    """Let no worker take a session any more; a step under way ends."""
    return await _change(call, "pause")


@endpoint("POST", "/sessions/{session}/unpause", tag="steering", errors=(409,))
async def unpause(call: Call[Nothing, None]) -> Bulk:
    """Let workers take a paused session again."""
    return await _change(call, "unpause")


async def _change(call: Call[Nothing, None], do: Literal["retry", "pause", "unpause"]) -> Bulk:
    _need_board(call.ctx)
    changed = await call.ctx.blocking(steer, call.ctx.db, [call.session], do)
    return Bulk(action=do, dry_run=False, sessions=[call.session], changed=changed, failed=[], next=None)


def _need_board(ctx: Ctx) -> None:
    if not isinstance(ctx.db.kernel.store, Boarded):
        raise Refusal(409, "no-fleet", "a fleet works on SQLite and PostgreSQL: this store has no board for one")


# -- many sessions --------------------------------------------------------------------------------------------------


@endpoint("POST", "/bulk", tag="steering", errors=(404, 409, 410))
async def bulk(call: Call[Nothing, BulkAction]) -> Bulk:
    """Cancel, retry, pause, unpause or resolve many sessions, chosen by their properties; with dry_run only say which.

    One call does at most ``limit`` of them; ``next`` goes on with those that follow. Of several that are named, one
    that is not there is in ``failed``, and keeps nobody from the others.
    """
    b, ctx = call.body, call.ctx
    if b.action == "resolve" and b.verdict is None:
        raise Refusal(422, "invalid-request", "say what became of the calls in doubt: verdict is done, retry or abort")
    if b.action != "resolve" and b.verdict is not None:
        raise Refusal(422, "invalid-request", f"a verdict goes with resolve, and the action is {b.action}")
    if b.result is not None and b.verdict != "done":
        raise Refusal(422, "invalid-request", "a result goes with the verdict done")
    if b.action in ("retry", "pause", "unpause"):
        _need_board(ctx)
    changed, failed = 0, list[Failure]()
    rows, following = await _picked(ctx, b, failed)
    if b.dry_run and b.action == "resolve":
        rows = await to_resolve(ctx.db, rows)
    if b.dry_run and b.action == "retry":
        rows = await ctx.blocking(to_retry, ctx.db, rows)
    if b.dry_run and b.action == "cancel":
        rows = await ctx.blocking(to_stop, ctx.db, rows)
    names = [row.id for row in rows]
    if b.dry_run:
        return Bulk(action=b.action, dry_run=True, sessions=names, changed=0, failed=failed, next=following)
    if b.action in ("retry", "pause", "unpause"):
        changed = await ctx.blocking(change, ctx.db, rows, b.action)
    else:
        for row in rows:
            try:
                changed += await _one(ctx, row.id, b)
            except PerdureError as error:
                failed.append(failure(row.id, error))
    return Bulk(action=b.action, dry_run=False, sessions=names, changed=changed, failed=failed, next=following)


async def _one(ctx: Ctx, session: str, b: BulkAction) -> int:
    if b.action == "cancel":
        return await ctx.db.cancel(session, by=b.by, reason=b.reason)
    assert b.verdict is not None
    return bool(await settle_all(ctx.db, session, by=b.by, verdict=b.verdict, result=b.result))


async def _picked(ctx: Ctx, b: BulkAction, missing: list[Failure]) -> tuple[list[SessionRow], str | None]:
    """The sessions that are meant, and where to go on; of several that are named those that are not there are told."""
    f = b.filter
    if f.sessions is not None:
        return await _named(ctx, list(dict.fromkeys(f.sessions)), missing), None
    if f == SessionFilter():
        raise Refusal(422, "invalid-request", "say which sessions are meant: an empty filter would mean all of them")
    rows: list[SessionRow] = await ctx.db.sessions(**properties(f), after=b.after, limit=b.limit + 1)
    following = rows[b.limit - 1].id if len(rows) > b.limit else None
    return rows[: b.limit], following


async def _named(ctx: Ctx, sessions: list[str], missing: list[Failure]) -> list[SessionRow]:
    rows: list[SessionRow] = []
    for session in sessions:
        try:
            rows.append(await ctx.blocking(known, ctx.db.kernel, check_session(session)))
        except NotFound as error:
            if len(sessions) == 1:
                raise
            missing.append(failure(session, error))
    return rows


# -- the fleet and the store ----------------------------------------------------------------------------------------


@endpoint("GET", "/fleet", tag="fleet")
async def get_fleet(call: Call[Nothing, None]) -> Fleet:
    """The workers, how many sessions are in which state by agent, and which agents nobody serves."""
    return await call.ctx.blocking(fleet, call.ctx.db)


@endpoint("GET", "/fleet/queue", tag="fleet", errors=(409,))
async def get_queue(call: Call[QueueQuery, None]) -> Page[QueuedSession]:
    """Sessions on the fleet's board, in order of id."""
    _need_board(call.ctx)
    q = call.query
    board = await call.ctx.blocking(made_board, call.ctx.db.kernel.store)
    which = Filter(q.agent, q.owner, q.state)
    works: list[Work] = []
    if board is not None:
        works = await call.ctx.blocking(board.works, which, after=q.after, limit=q.limit + 1)
    return page(works, q.limit, queued_session, lambda w: w.session)


@endpoint("POST", "/fleet/drain", tag="fleet", errors=(404, 409))
async def drain(call: Call[Nothing, Drain]) -> Drained:
    """Tell workers to finish their steps and go; what they had is taken up by others."""
    _need_board(call.ctx)
    told, left = await call.ctx.blocking(drain_workers, call.ctx.db, call.body.worker, wait=0, here=False)
    return Drained(told=told, left=left)


@endpoint("POST", "/fleet/hold", tag="fleet", errors=(409,))
async def hold(call: Call[Nothing, Hold]) -> Fleet:
    """Let no worker take sessions of an agent any more, new ones included; or let them again."""
    _need_board(call.ctx)
    board = await call.ctx.blocking(board_of, call.ctx.db)
    await call.ctx.blocking(board.hold, call.body.agent, call.body.on)
    return await call.ctx.blocking(fleet, call.ctx.db)


@endpoint("GET", "/store", tag="store")
async def get_store(call: Call[Nothing, None]) -> Store:
    """How much the store holds, what it promises, and how many sessions there are by status, agent and error."""
    return await call.ctx.blocking(store, call.ctx.db, await call.ctx.db.counts())
