"""One session: where it stands, its branches, and a way to travel through its past."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.responses import Response

from perdure.agent.models.parts import packed
from perdure.agent.requests import AGENT
from perdure.errors import Corrupted, Gone, InvalidInput
from perdure.fleet.inputs import SHOWN, Input, inputs, waiting_counted
from perdure.fleet.why.answer import Why
from perdure.fleet.why.decision import told
from perdure.fleet.why.reading import gather
from perdure.history.hydrate import origins
from perdure.model import MAIN, TAG_PREFIX, Kind
from perdure.server.console import session_past
from perdure.server.console.approvals import go_on
from perdure.server.console.conversation import conversation_of
from perdure.server.console.drawing import Graph, Line, chart_of, graph_of
from perdure.server.console.rendering import HEADERS, Pages, asked, named, whole
from perdure.server.console.state_tree import tree_of
from perdure.server.console.updates import session_mark
from perdure.session.handover import made_board, work_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from perdure.kernel import Kernel
    from perdure.protocols import Work
    from perdure.server.console.session_past import Spot

VIEWS = {"chat": "Conversation", "changes": "Changes", "state": "State", "request": "Request", "effects": "Effects"}


class Top(NamedTuple):
    """What stands above the steps: why the session is where it is, and the picture of its branches."""

    why: Why
    graph: Graph
    problem: int | None
    total: list[Any]
    """Tokens sent, written and found in a cache, and what it cost, over the whole session."""
    agent: str
    pending: int
    inputs: list[Input]
    """What was posted and waits to be taken up, with its words; main's, whichever branch is looked at."""


class SessionPage(Pages):
    """The page of one session and its parts."""

    async def page(self, request: Request) -> Response:
        """The whole page."""
        mark = await session_mark(self._console, asked(request.query_params, "id"))
        spot, view = await self._spot(request)
        values = await self._ctx.blocking(self._all, spot, view)
        return self._console.page(request, "session.html", mark=mark, **values)

    async def top(self, request: Request) -> Response:
        """The upper part again, since something has changed; who looked at the newest step is taken along."""
        mark = await session_mark(self._console, asked(request.query_params, "id"))
        spot, view = await self._spot(request)
        if request.query_params.get("follow") == "1":
            spot = spot._replace(step=spot.head.step)
        values = await self._ctx.blocking(self._all, spot, view)
        return self._console.page(request, "session_news.html", mark=mark, **values)

    async def at(self, request: Request) -> Response:
        """One step; the list of steps comes along when it is on another page of it."""
        spot, view = await self._spot(request)
        told = asked(request.query_params, "page", 10)
        values = await self._ctx.blocking(self._step, spot, view)
        if told != str(spot.page):
            values |= await self._ctx.blocking(self._steps, spot)
        return self._console.page(request, "session_travel.html", **values)

    async def earlier(self, request: Request) -> Response:
        """What was said before the messages that are shown."""
        spot, _ = await self._spot(request)
        until = whole(request.query_params, "until")
        moment = await self._ctx.blocking(session_past.open_moment, self._kernel, spot)
        chat = await self._ctx.blocking(conversation_of, moment.reading.messages, 0, until)
        return self._console.page(request, "session_said.html", chat=chat, spot=spot)

    async def request_json(self, request: Request) -> Response:
        """The exact request of a step as a file."""
        spot, _ = await self._spot(request)
        found, step = await self._ctx.blocking(session_past.request_at, self._kernel, spot)
        if found is None:
            raise InvalidInput("no model has been asked up to this step")
        body = json.dumps(found._asdict(), ensure_ascii=False, indent=2, default=str)
        head = {**HEADERS, "Content-Disposition": f'attachment; filename="request-{step}.json"'}
        return Response(body, media_type="application/json", headers=head)

    async def message(self, request: Request) -> Response:
        """Put a message into the session's inbox; a fleet takes it up, or the session is run here."""
        form = await request.form()
        session, text = named(form, "id"), asked(form, "message", 200_000).strip()
        if not text:
            raise InvalidInput("the message is empty: write something")
        ctx = self._ctx
        await ctx.db.look(session)
        # The same form sent twice, by a second click or a reload, is one message.
        once = asked(form, "once", 40)
        key = hashlib.sha256(f"{once} {text}".encode()).hexdigest()[:32] if once else None
        await ctx.db.post(session, packed(text), key=key)
        handed = await go_on(ctx, session)
        return self._console.see(request, "/session", id=session, told=f"The message is in the inbox. {handed.words}")

    # -- reading ------------------------------------------------------------------------------------------------------

    async def _spot(self, request: Request) -> tuple[Spot, str]:
        q = request.query_params
        session = asked(q, "id")
        if not session:
            raise InvalidInput("no session is named: choose one from the list")
        view = asked(q, "view", 20) or "chat"
        spot = await self._ctx.blocking(
            session_past.find_spot, self._kernel, session, asked(q, "branch"), whole(q, "step")
        )
        return spot, view if view in VIEWS else "chat"

    def _all(self, spot: Spot, view: str) -> dict[str, Any]:
        top = self._top(spot)
        return {**self._step(spot, view), **self._steps(spot), "top": top, "problem": top.problem}

    def _steps(self, spot: Spot) -> dict[str, Any]:
        lines = session_past.steps_of(self._kernel, spot, spot.page)
        return {"steps": lines, "chart": chart_of(lines, session_past.PAGE), "page_size": session_past.PAGE}

    def _step(self, spot: Spot, view: str) -> dict[str, Any]:
        kernel = self._kernel
        try:
            moment = session_past.open_moment(kernel, spot)
        except (Gone, Corrupted) as e:
            # The rest of the session can still be looked at.
            return {"spot": spot, "view": view, "gone": str(e)}
        values: dict[str, Any] = {
            "gone": "",
            "spot": spot, "view": view, "views": VIEWS, "point": moment.point,
            "line": session_past.step_line(moment.point),
            "runs_here": self._ctx.runs.state(spot.id, spot.branch) if spot.branch != MAIN else None,
            "known": spot.row.agent in self._ctx.agents,
        }  # fmt: skip
        if view in ("chat", "changes"):
            changes, added = session_past.changes_of(kernel, moment)
            values |= {"changes": changes, "chat": conversation_of(moment.reading.messages, added)}
        elif view == "state":
            values["tree"] = tree_of(moment.reading.state)
        elif view == "request":
            values["request_sent"], values["request_step"] = session_past.request_at(kernel, spot)
        else:
            calls = session_past.with_calls(kernel, moment)
            values["effects"], values["calls_at"] = (
                session_past.effects_of(kernel, calls, self._console.now),
                calls.spot.step,
            )
            values["where"] = session_past.where_of(moment, self._work(spot))
        return values

    def _top(self, spot: Spot) -> Top:
        kernel = self._kernel
        facts = gather(self._ctx.db, spot.row, spot.branch)
        notes: dict[str, Any] = facts.book.get(AGENT) or {}
        total = list(notes.get("total") or ())
        why, problem = told(facts), session_past.newest_problem(kernel, spot)
        waiting = inputs(kernel, kernel.store.inbox(spot.id, SHOWN)) if spot.row.pending else []
        (row,) = waiting_counted(kernel, [spot.row])
        return Top(why, draw(kernel, spot), problem, total, row.agent, row.pending, waiting)

    def _work(self, spot: Spot) -> Work | None:
        board = made_board(self._kernel.store) if spot.branch == MAIN else None
        return None if board is None else work_of(board, spot.id)


def draw(kernel: Kernel, spot: Spot) -> Graph:
    """The picture of a session's branches."""
    heads = {h.line: h for h in spot.row.heads}
    lines: list[Line] = []
    tags: list[tuple[str, int, int]] = []
    known = origins(kernel, spot.id)
    for number, (first, origin, env) in known.items():
        if env.kind == Kind.TAG:
            if origin is not None:
                tags.append((env.branch.removeprefix(TAG_PREFIX), *origin))
            continue
        head = heads.get(number)
        # One that was left behind by a rewind ends, as far as is known here, where others part from it.
        parted = max((o[1] for _, o, _ in known.values() if o is not None and o[0] == number), default=first)
        lines.append(
            Line(number, head.branch if head else "", first, head.step if head else max(parted, first), origin)
        )
    return graph_of(lines, tags, spot.branch)
