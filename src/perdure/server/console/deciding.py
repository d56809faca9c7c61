"""What waits for people: calls that need agreement, questions of tools, and calls whose outcome nobody knows."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.boards import Boarded, NewWork
from perdure.errors import InvalidInput
from perdure.model import MAIN
from perdure.server.console.rendering import asked, decider, named, see
from perdure.server.console.text import as_json
from perdure.server.people import doubts_of, list_approvals, list_in_doubt, resolve_effect, session_approvals
from perdure.server.routing import Call, Nothing
from perdure.server.shapes import WaitingAsked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from perdure.server.console.rendering import Console
    from perdure.server.context import Ctx
    from perdure.server.shapes import Interrupt

PAGE = 50


class Ask(NamedTuple):
    """One request to a person."""

    id: str
    session: str
    branch: str
    tool: str
    args: Any
    args_json: str
    facts: Any
    because: str
    asked: int
    expires: int
    question: str
    choices: list[str]
    """Answers to choose from, where the tool names them."""
    yes_no: bool


class Deciding:
    """The pages of approvals and of calls in doubt."""

    def __init__(self, console: Console) -> None:
        self._console = console

    async def approvals(self, request: Request) -> Response:
        """Everything that waits for agreement or an answer."""
        ctx, q = self._console.ctx, request.query_params
        session, after, aside = asked(q, "id"), asked(q, "after", 600), bool(asked(q, "aside", 10))
        if session:
            found = await session_approvals(Call(ctx, {"session": session}, Nothing(), None, {}))
            waiting, following = found.interrupts, None
        else:
            waiting, following = await self._waiting(after, aside)
        asks = sorted((ask_of(i) for i in waiting), key=lambda a: a.asked)
        part = request.headers.get("hx-target") == "waiting"
        return self._console.page(
            request, "approvals_list.html" if part else "approvals.html", asks=asks, following=following,
            session=session, after=after, aside=aside,
        )  # fmt: skip

    async def _waiting(self, after: str, aside: bool) -> tuple[list[Interrupt], str | None]:
        """A page of what waits: the sessions looked into may have none, so some more are."""
        found: list[Interrupt] = []
        following: str | None = after or None
        for _ in range(4):
            call = Call(self._console.ctx, {}, WaitingAsked(after=following, limit=PAGE, aside=aside), None, {})
            page = await list_approvals(call)
            found += page.interrupts
            following = page.next
            if following is None or len(found) >= PAGE:
                break
        return found, following

    async def decide(self, request: Request) -> Response:
        """Agree, agree to something else, refuse, or answer; once."""
        form = await request.form()
        db = self._console.ctx.db
        session, approval, by = named(form, "session"), asked(form, "approval", 100), decider(form)
        do, reason = asked(form, "do", 10), asked(form, "reason", 2000)
        if do == "reject":
            await db.reject(session, approval, by=by, reason=reason)
        elif do == "answer":
            await db.answer(session, approval, _answer(form), by=by, reason=reason)
        elif do == "approve":
            await db.approve(session, approval, by=by, reason=reason, args=_edited(form))
        else:
            raise InvalidInput("a decision is to approve, to reject or to answer")
        words = {"reject": "Rejected", "answer": "Answered", "approve": "Approved"}[do]
        if (named(form, "branch") or MAIN) != MAIN:
            # Nobody runs a branch by himself: whether its calls may change anything, a person says.
            return see(request, "/approvals", by=by, told=f"{words}. It is taken up when the branch is run on.")
        await go_on(self._console.ctx, session)
        return see(request, "/approvals", by=by, told=f"{words}. The session goes on as soon as a worker takes it up.")

    async def doubts(self, request: Request) -> Response:
        """Calls that were started and whose outcome nobody knows."""
        ctx, q = self._console.ctx, request.query_params
        session, after, aside = asked(q, "id"), asked(q, "after", 600), bool(asked(q, "aside", 10))
        if session:
            effects, following = await doubts_of(ctx, session), None
        else:
            wanted = WaitingAsked(after=after or None, limit=PAGE, aside=aside)
            found = await list_in_doubt(Call(ctx, {}, wanted, None, {}))
            effects, following = found.effects, found.next
        part = request.headers.get("hx-target") == "waiting"
        return self._console.page(
            request, "doubts_list.html" if part else "doubts.html", effects=sorted(effects, key=lambda e: e.at),
            following=following, session=session, after=after, aside=aside,
        )  # fmt: skip

    async def resolve(self, request: Request) -> Response:
        """Say what became of a call in doubt."""
        form = await request.form()
        session, effect, branch = named(form, "session"), asked(form, "effect", 100), named(form, "branch") or MAIN
        by, do = decider(form), asked(form, "do", 10)
        if do not in ("done", "retry", "abort"):
            raise InvalidInput("a call in doubt was done, may be made again, or is given up")
        result = json_or_text(asked(form, "result", 200_000)) if do == "done" else None
        await resolve_effect(self._console.ctx, session, effect, branch, by, do, result)
        if branch == MAIN:
            await go_on(self._console.ctx, session)
        words = {"done": "It is recorded as done.", "retry": "It is made again.", "abort": "It is given up."}[do]
        return see(request, "/in-doubt", by=by, told=words)


def ask_of(i: Interrupt) -> Ask:
    """A request as a page shows it."""
    about = i.metadata
    schema: Any = i.response_schema.get("properties", {}).get("answer", {}) if about.question else {}
    choices = schema.get("enum") if isinstance(schema, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return Ask(
        i.id, about.session, about.branch, about.tool, about.args, as_json(about.args), about.facts, about.because,
        about.asked, int(datetime.fromisoformat(i.expires_at).timestamp() * 1000), i.message if about.question else "",
        [str(c) for c in choices] if isinstance(choices, list) else [],  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        isinstance(schema, dict) and schema.get("type") == "boolean",  # pyright: ignore[reportUnknownMemberType]
    )  # fmt: skip


async def go_on(ctx: Ctx, session: str) -> None:
    """Have a session looked at again now: by the fleet where a worker has its agent, else here if this server does."""
    row = await ctx.db.look(session)
    if not row.agent:
        return
    store = ctx.db.kernel.store
    served = False
    if isinstance(store, Boarded):
        board = await asyncio.to_thread(store.board)
        served = any(row.agent in w.agents for w in await asyncio.to_thread(board.workers))
        await asyncio.to_thread(board.put, [NewWork(row.id, row.agent, row.owner)])
    if not served and row.agent in ctx.agents:
        ctx.runs.start(ctx.agents[row.agent], session, MAIN)


def _edited(form: Mapping[str, Any]) -> dict[str, Any] | None:
    """Other arguments, when somebody has changed them."""
    told = asked(form, "args", 200_000).strip()
    if not told:
        return None
    try:
        value, before = json.loads(told), json.loads(named(form, "args_before") or "null")
    except ValueError as e:
        raise InvalidInput(f"the arguments are not JSON: {e}") from None
    if not isinstance(value, dict):
        raise InvalidInput('the arguments are an object, such as {"amount": 60}')
    return None if value == before else value  # pyright: ignore[reportUnknownVariableType]


def _answer(form: Mapping[str, Any]) -> Any:
    told = asked(form, "answer", 200_000)
    if asked(form, "kind", 10) == "yes_no":
        return told == "yes"
    return json_or_text(told)


def json_or_text(text: str) -> Any:
    """A value as it is typed: JSON, and anything else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
