"""Another way a session could have gone: a branch that parts from a step, or before an answer, and is run on.

A branch remembers its instructions, so that whoever runs it on later runs it with those. What is run on a branch leaves
the session's inbox alone, and by default changes nothing outside: see ``effects``. Tools of people have none of the
program's migrations or state types, and open sessions as they were stored.
"""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from perdure.agent.conversation import as_message, check_message, misfit
from perdure.agent.dependencies import check_deps, provided
from perdure.agent.limits import Limits, check_limits
from perdure.agent.loop import Loop
from perdure.agent.requests import AGENT, is_answer
from perdure.errors import Gone, InvalidInput, Misuse
from perdure.history.hydrate import load_at, look
from perdure.history.reader import change_of, history
from perdure.kernel import Kernel
from perdure.model import MAIN, Kind, Status
from perdure.state.delta import diff
from perdure.state.document import BOOK, STATE, edit, genesis, plain
from perdure.state.values import Wire
from perdure.system.flow import check_awaited, used_awaited
from perdure.system.flow_async import in_thread
from perdure.system.lease_holders import running_agent
from perdure.system.names import check_branch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.agent.agent import Agent
    from perdure.agent.run_result import RunResult
    from perdure.agent.session_stream import Event
    from perdure.aio import AsyncDatabase, AsyncSession, Opening
    from perdure.history.checkpoint import Checkpoint

PARTS: dict[str, type] = {name: type(value) for name, value in genesis()[STATE].items()}
"""What the library itself keeps in a state, and of which type it is."""
_WORDS: dict[type, str] = {
    list: "a list", dict: "an object", str: "text", int: "a whole number", float: "a number", bool: "true or false",
    bytes: "bytes",
}  # fmt: skip

_SEARCHED = 1000
"""How many checkpoints are looked through for the answer to what was said last."""


async def open_as_stored(db: AsyncDatabase, session: str, branch: str, **options: Any) -> Opening:
    """Open a session for writing in the schema that it has, and leave it in that schema."""
    reading = await db.read(session, branch=branch, migrate=False)
    return db.in_schema(reading.checkpoint.schema).session(session, branch=branch, create=False, **options)


def check_state(state: dict[str, Any], *, agent: bool = True) -> None:
    """Whether a state that somebody has edited can be committed, and its agent can go on with it; or ``InvalidInput``.

    Where no ``agent`` has worked, messages may be whatever the program keeps there.

    >>> check_state({"messages": [{"role": "user", "content": "x"}], "mine": 7})
    >>> check_state({"messages": 7})
    Traceback (most recent call last):
    perdure.errors.InvalidInput: state.messages must be a list, not a whole number
    """
    for name, kind in PARTS.items():
        value: object = state.get(name, kind())
        if not isinstance(value, kind):
            raise InvalidInput(f"state.{name} must be {_WORDS[kind]}, not {_WORDS.get(type(value), 'null')}")
    for number, message in enumerate(state.get("messages", ())):
        if agent and (wrong := misfit(message)):
            raise InvalidInput(f"state.messages[{number}] must be an object with a role and a content: {wrong}")
    # What cannot be stored is refused here rather than by the commit, when there is a branch already.
    Wire(lambda form, data: "").value(state, ())


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
    effects: str = "reuse", max_turns: int | None = None, deps: Any = None,
) -> Rerun:  # fmt: skip
    """Run a session again from a step, with the agent's own model, on a new branch.

    A step that holds a model's answer is asked for anew; from any other the agent goes on. Calls that the session has
    made already return what they returned (``effects="reuse"``), are not made (``"dry"``), or are made once somebody
    has agreed (``"live"``). The inbox is left alone: what waits there is meant for the branch that was recorded.
    ``deps`` are as for ``Agent.run``.
    """
    check_deps(agent, deps)
    check_limits(max_turns=max_turns)
    start = await in_thread(start_at, db.kernel, session, at, branch)
    new = name or await _free_name(db, session, at)
    with running_agent():
        opened = await db.session(session, branch=branch, effects=effects, create=False)
    async with (
        opened as s,
        provided(deps, owner=s.owner, session=s.id, context=start.context) as needed,
    ):
        await _part(s, new, start.step, start)
        if start.undo or start.said:
            await s.commit(f"replay of step {at} of branch {branch}")
        most = agent.max_turns if max_turns is None else max_turns
        loop = Loop(agent, s, Limits(db.kernel.clock, max_turns=most), context=start.context, db=db, deps=needed)
        loop.ignores_inbox = True
        return Rerun(new, await loop.go())


def start_at(kernel: Kernel, session: str, at: int, branch: str, *, before: bool = False) -> _Start:
    """Where a branch starts that does not have the answer of a step; nor, with ``before``, anything else it holds."""
    loaded = load_at(kernel, look(kernel, session), at, branch)
    assert loaded.point is not None
    env = loaded.point.envelope
    context = plain(plain(loaded.doc[BOOK].get(AGENT) or {}).get("context"))
    if not is_answer(env.x):
        return _Start(max(env.step - before, 1), before and env.step == 1, [], context)
    change = change_of(kernel, env)
    if change is None:
        msg = f"session {env.session!r}: what was before step {env.step} was dropped by retention: take a later answer"
        raise Gone(msg, "retention")
    said = [plain(body) for _, kind, body in change[1].get("took", ()) if kind == "message"]
    return _Start(max(env.step - 1, 1), env.step == 1, said, context)


def before_answer(kernel: Kernel, session: str, at: int, branch: str = MAIN) -> tuple[int, list[dict[str, Any]]]:
    """The step that a branch before a step starts from, and the messages that its answer had taken from the inbox.

    Blocks while it reads.
    """
    start = start_at(kernel, session, at, branch, before=True)
    return start.step, [as_message(body) for body in start.said]


def answered_at(kernel: Kernel, session: str, at: int | str | None, branch: str, *, before: bool = False) -> int | None:
    """Where a branch from a place has an answer to what was said last, be it only a call: the step of the first one.

    Something else said in its place there would be heard by nobody. None where the branch is asked something, or where
    no agent has worked; 0 where that step cannot be told any more. Blocks while it reads.
    """
    row = look(kernel, session)
    if before:
        assert isinstance(at, int)
        start = start_at(kernel, session, at, branch, before=True)
        if start.undo or start.said:
            return None
        at = start.step
    loaded = load_at(kernel, row, at, branch)
    assert loaded.point is not None
    notes: dict[str, Any] = plain(loaded.doc[BOOK].get(AGENT)) or {}
    messages: Any = plain(loaded.doc[STATE]).get("messages")
    if "setup" not in notes or not isinstance(messages, list):
        return None
    roles: list[Any] = [
        cast("Any", m).get("role") if isinstance(m, dict) else None for m in cast("list[Any]", messages)
    ]
    if "user" not in roles:
        return None
    last = len(roles) - 1 - roles[::-1].index("user")
    left = roles[last:].count("assistant")
    if not left:
        return None
    past = history(kernel, row.id, branch, _SEARCHED, loaded.point.envelope.step + 1)
    if not past or past[0].envelope.id != loaded.point.envelope.id:
        # A place that the branch has not come by: its steps are others.
        return 0
    for point in past:
        left -= is_answer(point.envelope.x)
        if not left:
            return point.envelope.step
    return 0


async def _part(s: AsyncSession, name: str, at: int | str, start: _Start | None) -> None:
    """Start a branch and go there; before an answer, what it was given to is there again."""
    await s.fork(name, at=at)
    await s.switch(name)
    if start is None:
        return
    if start.undo:
        # Back to before the first checkpoint: the branch begins with an empty state.
        empty = genesis()
        edit(diff(s.state.plain(), empty[STATE]), s.state)
        edit(diff(plain(s.book), empty[BOOK]), s.book)
    for body in start.said:
        s.messages.append(as_message(body))


async def _free_name(db: AsyncDatabase, session: str, at: int) -> str:
    taken = {h.branch for h in (await db.look(session)).heads}
    n = 1
    while (name := f"replay-{at}-{n}") in taken:
        n += 1
    return name


@used_awaited("perdure.branch_off")
async def branch_off(
    db: AsyncDatabase, session: str, name: str, *, at: int | str, branch: str = MAIN, before: bool = False,
    instructions: str | None = None, said: str | None = None, state: dict[str, Any] | None = None,
) -> Checkpoint:  # fmt: skip
    """Start a branch at a step, or before it, without what it holds; its head.

    Before an answer, what that answer was given to is there again, and is asked anew once the branch is run on; before
    the outcome of a call the branch does not have that outcome. Such a place is named by its step, others also by a
    tag, branch or checkpoint id.
    ``instructions`` are the agent's on this branch, ``said`` takes the place of the last message of the user, ``state``
    sets whole parts of the state (such as ``vars``). Raises ``Busy`` while somebody writes the session.
    """
    check_awaited(db, "perdure.branch_off")
    if before and not isinstance(at, int):
        raise InvalidInput(f"to branch before a step, name it by its number, not {at!r:.80}")
    if state is not None:
        check_state(state, agent=bool((await db.look(session)).agent))
    start = (
        await in_thread(start_at, db.kernel, session, at, branch, before=True)
        if isinstance(at, int) and before
        else None
    )
    if said is not None:
        step = await in_thread(answered_at, db.kernel, session, at, branch, before=before)
        if step is not None:
            known = f" (at step {step})" if step else ""
            there = f"before that, with at={step} and before=True" if step else "before its answer, with before=True"
            raise InvalidInput(
                f"what was said last has its answer{known} on the branch already, so nobody would hear `said`: branch "
                f"off {there}, or use say_on"
            )
    # Looked for first: what cannot be changed must not leave a branch behind.
    notes = await in_thread(_notes, db, session, at, branch) if instructions is not None else {}
    async with await open_as_stored(db, session, branch) as s:
        await _part(s, name, start.step if start is not None else at, start)
        if instructions is not None:
            _instruct(s, instructions, notes)
        _change(s, said, state)
        return await _commit(s, f"{'before' if before else 'from'} step {at} of {branch}")


async def say_on(db: AsyncDatabase, session: str, branch: str, message: Any) -> Checkpoint:
    """Say something on a branch other than main, durably; whoever runs the branch on has it answered.

    It does not go through the inbox, which is main's. ``Misuse`` while a call of the branch's last answer is open.
    """
    if branch == MAIN:
        raise InvalidInput("what is said on main goes through the inbox: post it")
    check_branch(branch)
    check_message(message)
    said = as_message(message)
    check_state({"messages": [said]})
    async with await open_as_stored(db, session, branch) as s:
        notes: dict[str, Any] = plain(s.book.get(AGENT)) or {}
        if notes.get("calls"):
            raise Misuse(f"a call on branch {branch!r:.80} of session {session!r:.80} is open: run it on, or settle it")
        s.messages.append(said)
        return await _commit(s, f"said on {branch}"[:500])


def is_said_on(kernel: Kernel, session: str, branch: str, message: Any) -> bool:
    """Whether that was said last on a branch and has no answer yet, for a person who types it once more. Blocks."""
    loaded = load_at(kernel, look(kernel, session), None, branch)
    notes: dict[str, Any] = plain(loaded.doc[BOOK].get(AGENT)) or {}
    messages: Any = plain(loaded.doc[STATE]).get("messages")
    every: list[Any] = cast("list[Any]", messages) if isinstance(messages, list) else []
    users: list[Any] = [m for m in every if isinstance(m, dict) and cast("Any", m).get("role") == "user"]
    last: Any = users[-1] if users else None
    return last is not None and last == as_message(message) and (every[-1] is last or notes.get("run") is not None)


async def _commit(s: AsyncSession, note: str) -> Checkpoint:
    """Commit to a branch that nobody runs: whatever was going on, or was stopped, where it parted, here nothing is."""
    standing = s.effect_records.session_status()
    status = Status.IDLE if standing in (Status.RUNNING, Status.CANCELLED) else standing
    return await s.driver.drive(s.journal.write(Kind.COMMIT, x={"note": note}, status=status))


def _notes(db: AsyncDatabase, session: str, at: int | str, branch: str) -> dict[str, Any]:
    """What the agent of a session has noted of itself up to a place."""
    loaded = load_at(db.kernel, look(db.kernel, session), at, branch)
    known: dict[str, Any] = plain(loaded.doc[BOOK]).get(AGENT) or {}
    if "setup" not in known:
        raise InvalidInput(f"no agent has worked on session {session!r} up to {at}: it has no instructions to change")
    return known


def _instruct(s: AsyncSession, instructions: str, known: dict[str, Any]) -> None:
    """Note other instructions on the branch; before its first answer the session's own notes are not there yet."""
    notes = s.book.setdefault(AGENT, {"turn": 0, "calls": [], "run": None})
    notes["setup"] = {**known["setup"], "instructions": instructions}
    if "context" not in notes:
        notes["context"] = known.get("context")


def _change(s: AsyncSession, said: str | None, state: dict[str, Any] | None) -> None:
    if said is not None:
        last = next((i for i in reversed(range(len(s.messages))) if s.messages[i].get("role") == "user"), None)
        if last is None:
            s.messages.append({"role": "user", "content": said})
        else:
            s.messages[last] = {"role": "user", "content": said}
    if state is not None:
        old = s.state.plain()
        edit(diff(old, {**{k: v for k, v in old.items() if k == "messages"}, **state}), s.state)


def usual_effects(branch: str) -> str:
    """What becomes of calls of a run on a branch where nobody has said so: off main it changes nothing outside."""
    return "reuse" if branch == MAIN else "dry"


@used_awaited("perdure.run_on")
async def run_on(
    db: AsyncDatabase, agent: Agent, session: str, branch: str, *, effects: str = "dry", max_turns: int | None = None,
    instructions: str | None = None, agents: Sequence[Agent] = (), stop: asyncio.Event | None = None,
    on_event: Callable[[Event], None] | None = None, live: bool = False, deps: Any = None,
) -> RunResult:  # fmt: skip
    """Run a branch on with its own instructions, or with others that it then remembers.

    ``effects``: "dry" reuses what the session has done already, lets reads run, and makes no other call, nor asks what
    became of one that is open: the run ends there; "reuse" also makes calls that were made nowhere yet; "live" makes
    all of them, after asking where another branch has made them.
    ``agents`` are others that may have the conversation, and ``deps`` are as for ``Agent.run``. Once ``stop``
    is set, the run is put down after its step.
    ``on_event`` is told what happens as it happens, and with ``live`` whoever reads along from another process is, too.
    """
    check_awaited(db, "perdure.run_on")
    check_deps(agent, deps)
    async with (
        await open_as_stored(db, session, branch, effects=effects) as s,
        provided(deps, owner=s.owner, session=s.id, context=_context(s)) as needed,
    ):
        notes: dict[str, Any] = plain(s.book.get(AGENT)) or {}
        setup: dict[str, Any] = notes.get("setup") or {}
        own = with_instructions(agent, setup.get("instructions") if instructions is None else instructions)
        most = agent.max_turns if max_turns is None else max_turns
        loop = Loop(
            own,
            s,
            Limits(db.kernel.clock, max_turns=most),
            context=notes.get("context"),
            db=db,
            agents=agents,
            stop=stop,
            tell=on_event,
            live=live,
            deps=needed,
        )
        # What waits in the inbox is meant for the main branch.
        loop.ignores_inbox = branch != MAIN
        return await loop.go()


def _context(s: AsyncSession) -> dict[str, Any] | None:
    """What the last run of the branch was told."""
    notes: dict[str, Any] = plain(s.book.get(AGENT)) or {}
    return notes.get("context")


def with_instructions(agent: Agent, instructions: str | None) -> Agent:
    """The same agent, told something else; the original stays as it is."""
    if instructions is None or (instructions == agent.instructions and agent.instruct is None):
        return agent
    other = copy.copy(agent)
    other.instructions, other.instruct = instructions, None
    return other
