"""Agents that work for other agents: as a tool in a session of their own, or by taking a conversation over."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
from typing import TYPE_CHECKING, Any

from perdure.agent import run_result as ended
from perdure.errors import Busy, CallError, InvalidInput, Misuse, NotFound
from perdure.model import Status
from perdure.session.calls.records import OPEN
from perdure.session.handover import kept_back
from perdure.session.tools import Done, Later, NotDone
from perdure.session.tools.context import Context
from perdure.session.tools.declaration import Tool
from perdure.session.tools.typed_values import as_json
from perdure.state.document import plain
from perdure.system.names import check_name

if TYPE_CHECKING:
    from perdure.agent.agent import Agent
    from perdure.agent.loop import Loop
    from perdure.agent.run_result import RunResult
    from perdure.aio import AsyncDatabase

HERE: contextvars.ContextVar[Loop | None] = contextvars.ContextVar("perdure_loop", default=None)
"""The loop that the code at hand runs for."""
WAITS = (ended.WAITING_APPROVAL, ended.WAITING_RESULT, ended.IN_DOUBT, ended.SLEEPING)
"""Ends of a run after which a child will go on."""
HELD = "held"
"""What stands for the status of a child that a person keeps from being worked on."""
_AGAIN = 0.1
"""Seconds between tries to get at a child that somebody else holds, who may be dead."""


def child_id(session: str, effect: str) -> str:
    """The session in which a call of an agent is worked on; the same for every attempt.

    >>> child_id("trip", "ef_1")
    'trip/ef_1'
    """
    if len(session) <= 300:
        return f"{session}/{effect}"
    return f"{hashlib.sha256(session.encode()).hexdigest()[:32]}/{effect}"


class AgentTool(Tool):
    """A tool that is an agent: a call of it is a session of its own, which a kill of either side leaves intact."""

    def __init__(self, agent: Agent, name: str, description: str, options: dict[str, Any]) -> None:
        self.agent = agent
        self._options = options
        self.opens: Any = options.get("deps", agent.deps)
        """What opens the dependencies of that agent, or has them."""

        async def work(task: str, ctx: Context) -> Any:
            return await self._go_on(here(), child_id(ctx.session, ctx.effect_id), ctx.effect_id, task)

        async def poll(handle: Any) -> Any:
            try:
                # Only one that was held before it began has a task left: it is said under a key, so it is said once.
                answer = await self._go_on(here(), handle["session"], handle["effect"], handle.get("task"))
            except NotDone as e:
                return e
            return None if isinstance(answer, Later) else Done(answer)

        work.__doc__ = f"{description}\n\nArgs:\n    task: what is to be done, with all that must be known for it\n"
        super().__init__(work, name=name, if_unsure="retry", poll=poll, version=agent.version)

    async def _go_on(self, loop: Loop, session: str, effect: str, task: str | None) -> Any:
        """Work on the child's session: its answer, or that it comes later."""
        parent = {"session": loop.s.id, "branch": loop.s.branch, "step": loop.s.step, "effect": effect}
        assert loop.db is not None
        if obstacle := await loop.db.driver.call(kept_back, loop.db.kernel.store, session, self.agent.name):
            # What no worker may take is not taken in the hands of its parent, either.
            loop.note(f"{self.name} waits, session {session}: {obstacle.line} {obstacle.next}")
            waits = {"session": session, "effect": effect, "status": HELD, "agent": self.agent.name}
            return Later(waits if task is None else {**waits, "task": task})
        try:
            result = await self._run(loop, session, effect, task, parent)
        except Busy as busy:
            return Later({"session": busy.session, "effect": effect, "status": Status.RUNNING})
        if result.status == ended.SLEEPING and result.text:
            # It had answered already when a process died, and has work of its own to do later.
            return said_by(result)
        if result.status in (*WAITS, ended.STOPPED):
            return Later({"session": session, "effect": effect, "status": result.status})
        if result.status != ended.DONE:
            raise NotDone(f"{self.agent.name} ended with {result.status}: {result.reason or result.text}"[:500])
        return said_by(result)

    async def _run(self, loop: Loop, session: str, effect: str, task: str | None, parent: dict[str, Any]) -> RunResult:
        db = loop.db
        assert db is not None
        # A process that died with the child in its hands holds it for a while.
        for left in range(int(db.lease_ttl * 1.2 / 1000 / _AGAIN), -1, -1):
            try:
                # It lives as long as who waits for it, unless it was told otherwise.
                options: dict[str, Any] = {"ttl": loop.s.journal.settings.ttl, **self._options}
                # A worker that must go does not wait for a child's whole work, only for its step.
                options["stop"] = loop.stopping
                return await self.agent.run(
                    db, session=session, message=task, key=effect, owner=loop.s.owner, parent=parent, **options
                )
            except Busy:
                if not left or task is None:
                    raise
                await asyncio.sleep(_AGAIN)
        raise AssertionError


def said_by(result: RunResult) -> Any:
    """What a parent is told: the structured output where there is one, else the text."""
    return result.text if result.output is None else as_json(result.output)


def here() -> Loop:
    """The loop that a tool of an agent runs for."""
    loop = HERE.get()
    if loop is None or loop.db is None:
        raise Misuse("this tool is called inside the run of an agent: agent.run(...)")
    return loop


class Handoff(Tool):
    """A tool that gives the conversation to another agent."""

    def __init__(self, target: Agent | str, name: str, description: str) -> None:
        self.target = None if isinstance(target, str) else target
        self.to = target if isinstance(target, str) else target.name

        def hand_over(reason: str = "") -> str:
            return f"{self.to} has the conversation from here on."

        hand_over.__doc__ = f"{description}\n\nArgs:\n    reason: why, in a few words\n"
        super().__init__(hand_over, name=name, read=True)


def handoff(agent: Agent | str, *, name: str | None = None, description: str | None = None) -> Tool:
    """A tool by which an agent gives its conversation to another one, which goes on with it from then on.

    An agent that does not exist yet is named: so that two can give it to each other.
    """
    to = check_name(agent, "agent's name") if isinstance(agent, str) else agent.name
    said = description or f"Give the conversation to {to}, who goes on with it."
    return Handoff(agent, name or f"hand_to_{to}", said)


def registry(agent: Agent, others: Any = ()) -> dict[str, Agent]:
    """All agents that may get at the conversation, by name: those given, and whoever they can hand it to."""
    known: dict[str, Agent] = {}
    todo = [agent, *others]
    while todo:
        one = todo.pop()
        if known.setdefault(one.name, one) is one:
            todo += [other for other in _handed_to(one) if other.name not in known]
    return known


def _handed_to(agent: Agent) -> list[Agent]:
    """Whom an agent can hand its conversation to, as far as it holds them itself."""
    return [t.target for t in agent.tools.values() if isinstance(t, Handoff) and t.target is not None]


def reachable(*agents: Agent) -> list[Agent]:
    """Agents, all that work for them, and all that may get their conversations; those given come first."""
    seen: list[Agent] = []
    todo = list(agents)
    while todo:
        one = todo.pop(0)
        if one in seen:
            continue
        seen.append(one)
        todo += _handed_to(one)
        todo += [t.agent for t in one.tools.values() if isinstance(t, AgentTool)]
    return seen


async def release(*agents: Agent) -> None:
    """Close the connections of agents, of all that work for them, and of all that may get their conversations."""
    for one in reachable(*agents):
        for model in one.models:
            await model.close()
        if one.compactor is not None and one.compactor.model is not None:
            await one.compactor.model.close()


def open_children(loop: Loop) -> list[tuple[dict[str, Any], str]]:
    """The records of calls that agents work on, with their sessions."""
    records = loop.s.effects()
    tools = loop.agent.tools
    return [(r, child_id(loop.s.id, r["id"])) for r in records if isinstance(tools.get(r["tool"]), AgentTool)]


async def children_of(loop: Loop) -> tuple[ended.Child, ...]:
    """The agents that work for this one and have not ended, and where they stand."""
    found: list[ended.Child] = []
    for record, session in open_children(loop):
        if record["status"] in ("started", "in_doubt", "waiting") and loop.db is not None:
            status = await _standing(loop.db, session)
            found.append(ended.Child(record["id"], record["tool"], session, status))
    return tuple(found)


async def _standing(db: AsyncDatabase, session: str) -> str:
    try:
        return (await db.look(session)).status
    except NotFound:
        return ""


async def cancel_children(loop: Loop, left: list[dict[str, Any]], why: dict[str, Any]) -> None:
    """Stop the agents that work for one that was stopped, and let each write it down."""
    for record in left:
        tool = loop.agent.tools.get(record["tool"])
        if not isinstance(tool, AgentTool) or loop.db is None:
            continue
        session = child_id(loop.s.id, record["id"])
        # Also one that has not begun: it must not begin when somebody looks at its call again.
        await loop.db.driver.drive(loop.db.posting.stop(session, why.get("by", ""), why.get("reason", "")))
        try:
            await tool.agent.run(loop.db, session=session, owner=loop.s.owner)
        except Busy:
            # Whoever has it in hand notices by itself.
            continue


async def tell_parent(loop: Loop, result: RunResult) -> None:
    """A child that has ended by itself, not in its parent's hands, posts its outcome to the parent that waits."""
    parent = loop.book.get("parent")
    if parent is None or loop.parent is not None or loop.db is None or result.status in WAITS:
        return
    session, effect = parent["session"], parent["effect"]
    if not await _waits_for(loop.db, session, effect):
        return
    try:
        if result.status == ended.DONE:
            await loop.db.post_outcome(session, effect, said_by(result))
        else:
            said = f"{loop.agent.name} ended with {result.status}: {result.reason}"[:500]
            await loop.db.post_outcome(session, effect, failed=said)
    except (InvalidInput, CallError, NotFound):
        # It was told of an earlier end, and has not looked yet; or it has gone on by another way.
        return


async def _waits_for(db: AsyncDatabase, session: str, effect: str) -> bool:
    try:
        reading = await db.read(session)
    except NotFound:
        return False
    effects = plain(reading.book.get("effects", {}))
    return any(r["id"] == effect and r["status"] in OPEN for r in effects.values())
