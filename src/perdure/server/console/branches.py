"""Another way: a branch from any step, with other instructions or another state; run on here; two branches compared."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.agent.branching_off import before_answer, branch_off
from perdure.agent.model_versions import VersionChange, between, versions_in
from perdure.errors import InvalidInput
from perdure.history.hydrate import ancestry
from perdure.server.console import session_past
from perdure.server.console.conversation import Said, said_of, text_of_content
from perdure.server.console.rendering import Pages, asked, harmless, named, whole
from perdure.state.document import plain
from perdure.state.merge import differences
from perdure.system.commands import typed
from perdure.system.wording import once_each

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from perdure.kernel import Kernel
    from perdure.server.console.session_past import Spot
    from perdure.state.merge import Difference

LARGEST = 200_000
"""Characters of a state that can be edited in a page."""
SHOWN = 40
"""Messages of each branch that are compared side by side."""
_KNOWN = "Calls the session has made return what they returned"
EFFECTS = {
    "dry": ("Nothing outside changes", f"{_KNOWN}, reads run, others are refused."),
    "reuse": ("New calls are made", f"{_KNOWN}; calls that are new are really made."),
    "live": ("Every call is made", "Also those that another branch has made already, once somebody has agreed."),
}


class Draft(NamedTuple):
    """What a branch would begin with."""

    at: int
    """The step that is named: the branch starts there, or before the answer it holds."""
    instructions: str | None
    said: str | None
    """The last thing the user has said, when that can be edited."""
    state: str | None
    """The state without its messages, as JSON; None when it is too large for a page."""
    name: str


class Branching(Pages):
    """The pages around branches."""

    async def form(self, request: Request) -> Response:
        """What is to be different on the new branch."""
        q = request.query_params
        before = q.get("before") == "1"
        spot = await self._ctx.blocking(
            session_past.find_spot, self._kernel, asked(q, "id"), asked(q, "branch"), whole(q, "step")
        )
        draft = await self._ctx.blocking(draft_of, self._kernel, spot, before)
        known = spot.row.agent in self._ctx.agents
        return self._console.page(
            request, "branch.html", spot=spot, draft=draft, before=before, known=known, effects=EFFECTS
        )

    async def create(self, request: Request) -> Response:
        """Make the branch, and run it on if that is wanted."""
        form = await request.form(max_part_size=2 << 20)
        before = asked(form, "before") == "1"
        session, branch, at = named(form, "id"), named(form, "branch"), whole(form, "step")
        spot = await self._ctx.blocking(session_past.find_spot, self._kernel, session, branch, at)
        draft = await self._ctx.blocking(draft_of, self._kernel, spot, before)
        effects = _effects(form)
        name = asked(form, "name", 200).strip() or draft.name
        options = changed(
            draft, asked(form, "instructions", LARGEST), asked(form, "said", LARGEST), asked(form, "state", LARGEST * 2)
        )
        await branch_off(self._ctx.db, session, name, at=draft.at, branch=branch, before=before, **options)
        agent = self._ctx.agents.get(spot.row.agent)
        if asked(form, "do", 10) == "run" and agent is not None:
            self._ctx.runs.start(agent, session, name, effects=effects)
        return self._console.see(request, "/session", id=session, branch=name)

    async def run(self, request: Request) -> Response:
        """Run a branch on."""
        form = await request.form()
        session, branch, effects = named(form, "id"), named(form, "branch"), _effects(form)
        row = await self._ctx.db.look(session)
        agent = self._ctx.agents.get(row.agent)
        if agent is None:
            raise InvalidInput(f"this server does not have the agent {row.agent!r}: start it with {typed('serve APP')}")
        self._ctx.runs.start(agent, session, branch, effects=effects)
        return self._console.see(request, "/session", id=session, branch=branch)

    async def compare(self, request: Request) -> Response:
        """Two branches side by side, from where they parted."""
        q = request.query_params
        session = asked(q, "id")
        spots = [
            await self._ctx.blocking(session_past.find_spot, self._kernel, session, asked(q, s), None)
            for s in ("a", "b")
        ]
        compared = await self._ctx.blocking(compare, self._kernel, spots[0], spots[1])
        return self._console.page(request, "compare.html", a=spots[0], b=spots[1], compared=compared, session=session)


def _effects(form: Mapping[str, Any]) -> str:
    """What becomes of calls, as a form says."""
    effects = asked(form, "effects", 10) or "dry"
    if effects not in EFFECTS:
        raise InvalidInput(f"effects is one of {', '.join(EFFECTS)}")
    return effects


def draft_of(kernel: Kernel, spot: Spot, before: bool) -> Draft:
    """What a branch from a step, or before the answer that led to it, begins with."""
    at = spot.step
    if before:
        at = session_past.answer_at(kernel, spot) or spot.step
    moment = session_past.open_moment(kernel, spot._replace(step=at))
    start, said = moment, list[str]()
    if before:
        step, taken = before_answer(kernel, spot.id, at, spot.branch)
        start = session_past.open_moment(kernel, spot._replace(step=step))
        said = [text_of_content(m.get("content")) for m in taken]
    messages = start.reading.messages
    if not said and messages and messages[-1].get("role") == "user":
        said = [text_of_content(plain(messages[-1]).get("content"))]
    state = {k: v for k, v in start.reading.plain().items() if k != "messages"}
    try:
        text = json.dumps(state, indent=2)
    except (TypeError, ValueError):
        # It holds bytes, or a number without end: that is nothing to edit in a page.
        text = None
    names = {h.branch for h in spot.row.heads}
    number = 1
    while f"try-{at}-{number}" in names:
        number += 1
    instructions = moment.made.get("instructions")
    fits = text if text is not None and len(text) <= LARGEST else None
    return Draft(at, instructions, said[-1] if said else None, fits, f"try-{at}-{number}")


def changed(draft: Draft, instructions: str, said: str, state: str) -> dict[str, Any]:
    """What somebody has changed in the form; what they left alone stays exactly as it was."""
    found: dict[str, Any] = {}
    if draft.instructions is not None and not _same(instructions, draft.instructions):
        found["instructions"] = instructions.replace("\r\n", "\n")
    if draft.said is not None and not _same(said, draft.said):
        found["said"] = said.replace("\r\n", "\n")
    if draft.state is not None and not _same(state, draft.state):
        try:
            value = json.loads(state, object_pairs_hook=once_each)
        except ValueError as e:
            raise InvalidInput(f"the state is not JSON: {e}") from None
        if not isinstance(value, dict) or "messages" in value:
            raise InvalidInput("the state is an object, without its messages: they stay as they are")
        found["state"] = value
    return found


def _same(told: str, known: str) -> bool:
    """Whether a field came back as the page had shown it: made harmless, and with a browser's line ends."""
    return told.replace("\r\n", "\n").strip("\n") == harmless(known).replace("\r", "").strip("\n")


class Compared(NamedTuple):
    """Two branches."""

    parted: int
    """The last step both stand on."""
    left: list[Said]
    right: list[Said]
    skipped: int
    """Messages that both have."""
    differences: list[Difference]
    versions: list[VersionChange]
    """What the provider has changed between the two behind the names of their models."""


def compare(kernel: Kernel, a: Spot, b: Spot) -> Compared:
    """Where two branches parted, what was said on each since, and how their states differ now."""
    one, two = session_past.open_moment(kernel, a), session_past.open_moment(kernel, b)
    ours = ancestry(kernel, a.id, a.head.line, a.head.step)
    theirs = ancestry(kernel, b.id, b.head.line, b.head.step)
    parted = max((min(ours[line], theirs[line]) for line in ours if line in theirs), default=0)
    left, right = plain(one.reading.messages), plain(two.reading.messages)
    same = 0
    while same < min(len(left), len(right)) and left[same] == right[same]:
        same += 1
    states = [{k: v for k, v in m.reading.plain().items() if k != "messages"} for m in (one, two)]
    names: dict[str, str] = {}
    for message in left[:same]:
        said_of(message, 0, names)
    return Compared(
        parted, _since(left, same, dict(names)), _since(right, same, dict(names)), same,
        differences(states[0], states[1])[:200], between(versions_in(one.reading.book), versions_in(two.reading.book)),
    )  # fmt: skip


def _since(messages: list[Any], same: int, names: dict[str, str]) -> list[Said]:
    return [said_of(m, same + i, names) for i, m in enumerate(messages[same : same + SHOWN])]
