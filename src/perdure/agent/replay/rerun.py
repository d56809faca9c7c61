"""A recorded session run on from one of its steps with the real model, on a branch of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.agent.loop import Loop, as_message
from perdure.agent.requests import AGENT, is_answer
from perdure.agent.stopping import Limits
from perdure.errors import Gone
from perdure.history.hydrate import load_at, look
from perdure.history.lineage import change_of
from perdure.kernel import Kernel
from perdure.model import MAIN
from perdure.record.commit import Loaded
from perdure.state.delta import diff
from perdure.state.document import BOOK, STATE, edit, genesis, plain

if TYPE_CHECKING:
    from perdure.agent.agent import Agent
    from perdure.agent.run_result import RunResult
    from perdure.aio import AsyncDatabase, AsyncSession


class Rerun(NamedTuple):
    """On which branch a session was run again, and what came of it."""

    branch: str
    result: RunResult


class _Start(NamedTuple):
    step: int
    """The checkpoint to branch off."""
    undo: bool
    """Whether that checkpoint itself must be undone: there is none before it."""
    said: list[Any]
    """What the answer that is asked for anew had taken from the inbox."""
    context: dict[str, Any] | None


async def rerun(
    db: AsyncDatabase, agent: Agent, session: str, *, at: int, branch: str = MAIN, name: str | None = None,
    effects: str = "reuse", max_turns: int | None = None,
) -> Rerun:  # fmt: skip
    """Run a session again from a step, with the agent's own model, on a new branch.

    A step that holds a model's answer is asked for anew; from any other the agent goes on. Calls that the session has
    made already return what they returned (``effects="reuse"``), are not made (``"dry"``), or are made once somebody
    has agreed (``"live"``). The inbox is left alone: what waits there is meant for the branch that was recorded.
    """
    start = await asyncio.to_thread(start_at, db.kernel, session, at, branch)
    new = name or await _free_name(db, session, at)
    async with db.session(session, branch=branch, effects=effects, create=False) as s:
        await s.fork(new, at=start.step)
        await s.switch(new)
        if start.undo:
            undo_answer(s)
        for body in start.said:
            s.messages.append(as_message(body))
        if start.undo or start.said:
            await s.commit(f"replay of step {at} of branch {branch}")
        most = agent.max_turns if max_turns is None else max_turns
        loop = Loop(agent, s, Limits(db.kernel.clock, max_turns=most), context=start.context, db=db)
        loop.ignores_inbox = True
        return Rerun(new, await loop.go())


def start_at(kernel: Kernel, session: str, at: int, branch: str) -> _Start:
    loaded = load_at(kernel, look(kernel, session), at, branch)
    assert loaded.point is not None
    env = loaded.point.envelope
    context = plain(plain(loaded.doc[BOOK].get(AGENT) or {}).get("context"))
    if not is_answer(env.x):
        return _Start(env.step, False, [], context)
    said = [plain(body) for _, kind, body in _extra(kernel, loaded).get("took", ()) if kind == "message"]
    return _Start(max(env.step - 1, 1), env.step == 1, said, context)


def before_answer(kernel: Kernel, session: str, at: int, branch: str = MAIN) -> tuple[int, list[dict[str, Any]]]:
    """The step that a branch before an answer starts from, and the messages that the answer had taken from the inbox.

    Of a step that holds no answer it is that step itself. Blocks while it reads.
    """
    start = start_at(kernel, session, at, branch)
    return start.step, [as_message(body) for body in start.said]


def _extra(kernel: Kernel, loaded: Loaded) -> dict[str, Any]:
    """What a checkpoint carries beside its change."""
    assert loaded.point is not None
    env = loaded.point.envelope
    change = change_of(kernel, env)
    if change is None:
        msg = f"session {env.session!r}: what was before step {env.step} was dropped by retention: take a later answer"
        raise Gone(msg, "retention")
    return change[1]


def undo_answer(s: AsyncSession) -> None:
    """Go back to before the first checkpoint: the branch begins with an empty state."""
    empty = genesis()
    edit(diff(s.state.plain(), empty[STATE]), s.state)
    edit(diff(plain(s.book), empty[BOOK]), s.book)


async def _free_name(db: AsyncDatabase, session: str, at: int) -> str:
    taken = {h.branch for h in (await db.look(session)).heads}
    n = 1
    while (name := f"replay-{at}-{n}") in taken:
        n += 1
    return name
