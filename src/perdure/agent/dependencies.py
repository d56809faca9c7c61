"""What the tools of an agent need of their program, ``ctx.deps``: opened once per attempt at a run, closed with it.

It is never stored, of the whole only the name of its type is; so whoever goes on with a run opens it anew.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
from collections.abc import Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from typing import TYPE_CHECKING, Any, cast

from perdure.agent.children import AgentTool, reachable, registry
from perdure.agent.limits import Over
from perdure.errors import InvalidInput, Misuse
from perdure.system.flow_async import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from perdure.agent.agent import Agent

Manager = AbstractAsyncContextManager[Any] | AbstractContextManager[Any]
Factory = Callable[..., Manager]
ABOUT = ("owner", "session", "context")
"""What a factory is given, of which it takes what it names."""
_log = logging.getLogger("perdure.agent")
_FORM = "@contextlib.asynccontextmanager above `async def open_deps(owner, session, context)`, which yields them"


class Dependencies:
    """The dependencies of one attempt, of each agent that has the conversation in it."""

    def __init__(self, given: Any, about: Mapping[str, Any], stack: AsyncExitStack) -> None:
        self._given = given
        self._about = about
        self._stack = stack
        self._opened: dict[str, Any] = {}
        self.bounded: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
        """How long it is waited for that they are closed; ``Over`` when that is too long."""

    async def of(self, agent: Agent) -> Any:
        """Those of one agent, opened when first asked for; None where it has none."""
        given = self._given if self._given is not None else agent.deps
        if given is None or not (given is agent.deps or _is_factory(given)):
            return given
        name = agent.name if given is agent.deps else ""
        if name not in self._opened:
            try:
                self._opened[name] = await self._open(given)
            except Exception as e:
                e.add_note(f"while deps= of agent {agent.name!r} were opened for session {self._about['session']!r}")
                raise
        return self._opened[name]

    async def _open(self, factory: Factory) -> Any:
        found: Any = factory(**{name: self._about[name] for name in _taken(factory)})
        if isinstance(found, AbstractAsyncContextManager):
            return await self._stack.enter_async_context(cast("AbstractAsyncContextManager[Any]", found))
        if not isinstance(found, AbstractContextManager):
            if inspect.iscoroutine(found):
                found.close()
            raise Misuse(f"deps= is a function that returns a context manager, not {type(found).__name__}: put {_FORM}")
        # One that blocks is entered in a thread, and left also when nobody waits for that any more.
        blocking = _Blocking(cast("AbstractContextManager[Any]", found))
        entering = asyncio.ensure_future(in_thread(blocking.enter))

        async def leave(*error: Any) -> bool | None:
            try:
                await asyncio.wait({entering})
            except asyncio.CancelledError:
                blocking.abandon()
                raise
            return await in_thread(blocking.leave, *error) if entering.exception() is None else None

        self._stack.push_async_exit(leave)
        return await asyncio.shield(entering)


class _Blocking:
    """A context manager that blocks; whoever cannot wait until it is entered has its own thread leave it."""

    def __init__(self, manager: AbstractContextManager[Any]) -> None:
        self._manager = manager
        self._lock = threading.Lock()
        self._entered = self._abandoned = False

    def enter(self) -> Any:
        value = self._manager.__enter__()
        with self._lock:
            self._entered = True
            abandoned = self._abandoned
        if abandoned:
            self.leave(None, None, None)
        return value

    def leave(self, *error: Any) -> bool | None:
        return self._manager.__exit__(*error)

    def abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            entered = self._entered
        if entered:
            threading.Thread(target=self.leave, args=(None, None, None), daemon=True).start()


@asynccontextmanager
async def provided(given: Any, **about: Any) -> AsyncGenerator[Dependencies]:
    """The dependencies of an attempt at a run; ``given`` are those that whoever runs it passes.

    An error of the run is passed to them, and they cannot take it for their own: nobody would learn of it.
    """
    failed: BaseException | None = None
    stack = AsyncExitStack()
    needed = Dependencies(given, about, stack)
    try:
        yield needed
    except BaseException as e:
        failed = e
    try:
        async with needed.bounded():
            await stack.__aexit__(type(failed) if failed else None, failed, failed.__traceback__ if failed else None)
    except Over:
        _log.warning("what session %r was given as deps= is left open: it took too long to close", about["session"])
    if failed is not None:
        raise failed


def check_factory(agent: str, factory: Any) -> None:
    """Refuse what can open nothing, when the agent is made."""
    if factory is None:
        return
    if not callable(factory):
        raise InvalidInput(
            f"deps= of agent {agent!r} is a function that opens them for each run, not {type(factory).__name__}: put "
            f"{_FORM}; what is open already is passed to run(deps=...)"
        )
    plain = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    if any(is_kind(factory) for is_kind in plain):
        raise InvalidInput(f"deps= of agent {agent!r} returns no context manager: put {_FORM}")
    _ = _taken(factory)


def check_deps(agent: Agent, given: Any = None) -> None:
    """Refuse to run an agent when it, or one that works for it, needs dependencies and has none; nothing is written."""
    for one in [agent, *reachable(agent)]:
        for tool in one.tools.values():
            if isinstance(tool, AgentTool) and tool.opens is None:
                _check(tool.agent)
    if given is not None and _is_factory(given):
        check_factory(agent.name, given)
    if given is None:
        for one in registry(agent).values():
            _check(one)


def _check(agent: Agent) -> None:
    if agent.deps is None:
        refuse_without(agent)


def refuse_without(agent: Agent) -> None:
    """Refuse an agent that needs dependencies: it has none."""
    if agent.needs_deps:
        raise Misuse(
            f"{agent.needs_deps} of agent {agent.name!r} needs what its ctx: Context[...] declares: make it with "
            f"Agent({agent.name!r}, deps=...), a function that opens it, or run it with run(deps=...)"
        )


def _is_factory(given: Any) -> bool:
    """Whether what is passed to a run opens something, and is not what is open already."""
    return inspect.isroutine(given) or inspect.isclass(given) or isinstance(given, functools.partial)


def _taken(factory: Callable[..., object]) -> list[str]:
    """What a factory takes of what it can be given."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        # Some that are not written in Python do not say.
        return []
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return list(ABOUT)
    required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    if more := [p.name for p in required if p.name not in ABOUT or p.kind is p.POSITIONAL_ONLY]:
        raise InvalidInput(
            f"deps= is called with {', '.join(ABOUT)}, by name, and it wants {more[0]!r:.60}: put {_FORM}"
        )
    return [p.name for p in parameters if p.name in ABOUT]
