"""Doing something to many sessions: first a page that says which they are, then the deed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from perdure.errors import InvalidInput, PerdureError
from perdure.server.api.approvals import doubts_of
from perdure.server.api.inputs import BulkAction, SessionFilter
from perdure.server.api.routing import Call, Nothing
from perdure.server.api.steering import bulk
from perdure.server.console.approvals import go_on
from perdure.server.console.rendering import Pages, asked, decider, named
from perdure.server.console.sessions import Wanted, wanted
from perdure.system.times import timestamp
from perdure.system.wording import count, json_or_text

if TYPE_CHECKING:
    from starlette.datastructures import FormData
    from starlette.requests import Request
    from starlette.responses import Response

    from perdure.shapes.approvals import Effect
    from perdure.shapes.work import Bulk

BATCH = 500
SHOWN = 100
CALLS = 5
"""Calls in doubt of one session that a preview names."""
VERDICTS = {
    "retry": "They did not happen: make them again",
    "abort": "They did not happen: give them up",
    "done": "They happened",
}


DEEDS = {
    "retry": "Workers try them again from where they stand, also those that were parked.",
    "pause": "No worker takes them any more; a step under way ends.",
    "unpause": "Workers take them again.",
    "resolve": "All calls in doubt of these sessions are settled the same way.",
    "cancel": "Their agents stop as soon as they notice, and go on only with a new message.",
}
"""What can be done to many, and what that means."""


class BulkPages(Pages):
    """The preview and the deed."""

    async def preview(self, request: Request) -> Response:
        """Which sessions are meant; nothing is done yet."""
        form = await request.form(max_fields=2000)
        do, which, filter = _read(form, self._console.now)
        verdict: Any = None
        if do == "resolve":
            # Which one it will be is said on the page; what was clicked is chosen there.
            verdict = asked(form, "verdict", 10)
            verdict = verdict if verdict in VERDICTS else "retry"
        found = await self._call(BulkAction(action=do, filter=which, dry_run=True, limit=BATCH, verdict=verdict))
        return self._console.page(
            request, "bulk.html", do=do, about=DEEDS[do], sessions=found.sessions, shown=SHOWN,
            more=found.next is not None, filter=filter, named=which.sessions is not None, verdict=verdict,
            verdicts=VERDICTS, origin=_origin(form), doubts=await self._doubts(found.sessions) if verdict else {},
            calls=CALLS,
        )  # fmt: skip

    async def _doubts(self, sessions: list[str]) -> dict[str, list[Effect]]:
        """What is in doubt in those that the page names."""
        found: dict[str, list[Effect]] = {}
        for session in sessions[:SHOWN]:
            # One that cannot be read keeps nobody from seeing the others; what is done to it will say why.
            with contextlib.suppress(PerdureError):
                found[session] = await doubts_of(self._ctx, session)
        return found

    async def act(self, request: Request) -> Response:
        """Do it, batch by batch."""
        form = await request.form(max_fields=2000)
        do, which, _ = _read(form, self._console.now)
        by, reason = decider(form), asked(form, "reason", 2000)
        verdict: Any = asked(form, "verdict", 10) or None
        if do == "resolve" and verdict not in VERDICTS:
            raise InvalidInput("say what became of the calls in doubt: they happened, are made again, or given up")
        result = json_or_text(asked(form, "result", 200_000)) if verdict == "done" else None
        said: dict[str, Any] = {"by": by, "reason": reason, "verdict": verdict, "result": result}
        changed, meant, failed, after, left_over = 0, 0, list[str](), None, list[str]()
        while True:
            found = await self._call(BulkAction(action=do, filter=which, limit=BATCH, after=after, **said))
            changed, meant = changed + found.changed, meant + len(found.sessions)
            failed += [f"{f.session}: {f.detail}" for f in found.failed]
            if do == "resolve":
                left = {f.session for f in found.failed}
                for session in (s for s in found.sessions if s not in left):
                    handed = await go_on(self._ctx, session)
                    left_over += [handed.words] if handed.to == "nobody" else []
            if found.next is None:
                break
            after = found.next
        told = f"{do.capitalize()}: {changed} of {count(meant, 'session')}."
        if failed:
            told += f" {len(failed)} could not be: {failed[0][:200]}"
        if left_over:
            told += f" {count(len(left_over), 'session')} did not go on: {left_over[0]}"
        return self._console.see(request, f"/{_origin(form)}", by=by, told=told)

    async def _call(self, body: BulkAction) -> Bulk:
        return await bulk(Call(self._ctx, {}, Nothing(), body, {}))


def _origin(form: FormData) -> str:
    """The page that it began on, to go back to; "" is the list of sessions."""
    return "in-doubt" if asked(form, "from", 20) == "in-doubt" else ""


def _read(form: FormData, now: int) -> tuple[Any, SessionFilter, Wanted]:
    do = asked(form, "do", 20)
    if do not in DEEDS:
        raise InvalidInput(f"what is to be done is one of {', '.join(DEEDS)}")
    chosen = [named({"session": s}, "session") for s in form.getlist("session")]
    filter = wanted({name: named(form, name) for name in Wanted._fields})
    if chosen:
        return do, SessionFilter(sessions=chosen), filter
    if not filter.any:
        raise InvalidInput("no session is selected: tick some, or filter the list first")
    return do, SessionFilter(**_properties(filter, now)), filter


def _properties(filter: Wanted, now: int) -> dict[str, Any]:
    options = {k: v for k, v in filter.options(now).items() if v is not None}
    return options | {k: timestamp(options[k]) for k in ("since", "before") if k in options}
