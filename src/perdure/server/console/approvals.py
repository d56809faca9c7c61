"""What waits for people: calls that need agreement, questions of tools, and calls whose outcome nobody knows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from perdure.errors import InvalidInput
from perdure.fleet.status import settle
from perdure.model import MAIN
from perdure.server.api.approvals import doubts_of, list_approvals, list_in_doubt, session_approvals
from perdure.server.api.inputs import WaitingQuery
from perdure.server.api.routing import Call, Nothing
from perdure.server.console.rendering import Pages, asked, decider, editable, named, short_mark
from perdure.server.problems import Refusal
from perdure.session.handover import Handover, hand_over
from perdure.system.times import parse_timestamp
from perdure.system.wording import json_or_text, once_each

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from perdure.server.app import Ctx
    from perdure.shapes.approvals import Interrupt

PAGE = 50
LONGEST = 700_000
"""Characters of arguments as somebody edits them."""


class Ask(NamedTuple):
    """One request to a person."""

    id: str
    session: str
    branch: str
    tool: str
    args: Any
    args_json: str | None
    """For somebody to edit; None when they are too long for that."""
    args_mark: str
    """Tells whether they were edited."""
    facts: Any
    because: str
    asked: int
    expires: int
    question: str
    choices: list[tuple[str, str]]
    """Answers to choose from, where the tool names them: as JSON, and as people read them."""
    kind: str
    """What an answer is: yes_no, choice, text, or "" for a value that is typed as JSON."""


class Deciding(Pages):
    """The pages of approvals and of calls in doubt."""

    async def approvals(self, request: Request) -> Response:
        """Everything that waits for agreement or an answer."""
        ctx, q = self._ctx, request.query_params
        session, after, aside = asked(q, "id"), asked(q, "after", 600), bool(asked(q, "aside", 10))
        if session:
            found = await session_approvals(Call(ctx, {"session": session}, Nothing(), None, {}))
            waiting, following = found.items, None
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
            call = Call(self._ctx, {}, WaitingQuery(after=following, limit=PAGE, all_branches=aside), None, {})
            page = await list_approvals(call)
            found += page.items
            following = page.next
            if following is None or len(found) >= PAGE:
                break
        return found, following

    async def decide(self, request: Request) -> Response:
        """Agree, agree to something else, refuse, or answer; once."""
        form = await request.form()
        db = self._ctx.db
        session, approval, by = named(form, "session"), asked(form, "approval", 100), decider(form)
        do, reason = asked(form, "do", 10), asked(form, "reason", 2000)
        if do == "reject":
            handed = await db.reject(session, approval, by=by, reason=reason)
        elif do == "answer":
            handed = await db.answer(session, approval, _answer(form), by=by, reason=reason)
        elif do == "approve":
            handed = await db.approve(session, approval, by=by, reason=reason, args=_edited(form))
        else:
            raise InvalidInput("a decision is to approve, to reject or to answer")
        words = {"reject": "Rejected", "answer": "Answered", "approve": "Approved"}[do]
        if (named(form, "branch") or MAIN) == MAIN:
            handed = await go_on(self._ctx, session, handed)
        return self._console.see(request, "/approvals", by=by, told=f"{words}. {handed.words}")

    async def doubts(self, request: Request) -> Response:
        """Calls that were started and whose outcome nobody knows."""
        ctx, q = self._ctx, request.query_params
        session, after, aside = asked(q, "id"), asked(q, "after", 600), bool(asked(q, "aside", 10))
        if session:
            effects, following = await doubts_of(ctx, session), None
        else:
            wanted = WaitingQuery(after=after or None, limit=PAGE, all_branches=aside)
            found = await list_in_doubt(Call(ctx, {}, wanted, None, {}))
            effects, following = found.items, found.next
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
        _, handed = await settle(self._ctx.db, session, effect, branch, by=by, verdict=do, result=result)
        if branch == MAIN:
            handed = await go_on(self._ctx, session, handed)
        words = {"done": "It is recorded as done.", "retry": "It may be made again.", "abort": "It is given up."}[do]
        return self._console.see(request, "/in-doubt", by=by, told=f"{words} {handed.words}")


def ask_of(i: Interrupt) -> Ask:
    """A request as a page shows it."""
    about = i.metadata
    schema: Any = i.response_schema.get("properties", {}).get("answer", {}) if i.reason == "input_required" else {}
    named: dict[str, Any] = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
    listed: list[Any] = cast("list[Any]", named["enum"]) if isinstance(named.get("enum"), list) else []
    choices = [(json.dumps(c), c if isinstance(c, str) else json.dumps(c)) for c in listed]
    kind = {"boolean": "yes_no", "string": "text"}.get(str(named.get("type")), "")
    # What was cut to be shown would be cut in the call as well, once somebody has edited it.
    whole = not any(c.path.startswith("/args") for c in about.truncated)
    return Ask(
        i.id, about.session, about.branch, about.tool, about.args, editable(about.args) if whole else None,
        _mark(about.args), about.facts, about.because, parse_timestamp(str(about.asked_at)),
        parse_timestamp(str(i.expires_at)), i.message if i.reason == "input_required" else "", choices,
        "choice" if choices else kind,
    )  # fmt: skip


async def go_on(ctx: Ctx, session: str, handed: Handover | None = None) -> Handover:
    """Run a session here when it was handed to no worker and this server has its agent; who goes on with it then.

    Not yet ``handed`` to anybody, it is first. What was decided stands when this server has no room for another run.
    """
    row = await ctx.db.look(session)
    handed = handed or await ctx.blocking(hand_over, ctx.db.kernel, row)
    if handed.to == "worker" or row.agent not in ctx.agents:
        return handed
    try:
        ctx.runs.start(ctx.agents[row.agent], session, MAIN)
    except Refusal as e:
        why = f"It is recorded, but the session does not go on by itself: {e}, then send it a message."
        return Handover("nobody", why)
    return Handover("server", "This server runs the session now: its page tells how that goes.")


def _edited(form: Mapping[str, Any]) -> dict[str, Any] | None:
    """Other arguments, when somebody has changed them."""
    told = asked(form, "args", LONGEST).strip()
    if not told:
        return None
    try:
        value = json.loads(told, object_pairs_hook=once_each)
    except (ValueError, RecursionError) as e:
        raise InvalidInput(f"the arguments are not JSON: {e}") from None
    if not isinstance(value, dict):
        raise InvalidInput('the arguments are an object, such as {"amount": 60}')
    return None if _mark(value) == asked(form, "args_before", 100) else cast("dict[str, Any]", value)


def _mark(args: Any) -> str:
    """A short name for arguments: others have another one, also where they are equal to Python, as 1 and true are."""
    return short_mark(json.dumps(args, sort_keys=True))


def _answer(form: Mapping[str, Any]) -> Any:
    told, kind = asked(form, "answer", 200_000), asked(form, "kind", 10)
    if kind == "yes_no":
        return told == "yes"
    # A text stays one, also where it reads like a number.
    return told.replace("\r\n", "\n") if kind == "text" else json_or_text(told)
