"""What a call of a tool runs: its function, not too deep inside others, and within its time."""

from __future__ import annotations

import contextvars
import inspect
from typing import TYPE_CHECKING, Any

from perdure.errors import LimitExceeded, Misuse
from perdure.system.flow import is_blocking

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.session.tools.declaration import Tool

around: Callable[[Tool], Callable[..., Any]] | None = None
"""Where a test, or the doctor, stands between the journal and all tools: gives what is called in place of a tool's
function, of the same kind (a coroutine function for one)."""


DEEPEST = 32
"""How many calls may be made inside each other."""
_depth: contextvars.ContextVar[int] = contextvars.ContextVar("perdure_calls", default=0)


def check_depth(tool: Tool) -> None:
    """Refuse a call inside a call inside a call: a tool that calls itself without end would only end with the stack."""
    if _depth.get() >= DEEPEST:
        raise LimitExceeded(f"{tool.name} was not called: {DEEPEST} calls are made inside each other already")


def is_awaited_elsewhere(tool: Tool, gate: Any) -> bool:
    """Whether a call needs functions awaited, which only the handle of an event loop can do."""
    return bool(tool.asynchronous) and is_blocking(gate)


def check_awaited(tool: Tool, gate: Any) -> None:
    """Refuse such a call while nothing has happened."""
    if is_awaited_elsewhere(tool, gate):
        raise Misuse(
            f"{tool.name} was not called: {tool.asynchronous} is asynchronous, and this session blocks: use it "
            "through perdure.open_async(...), or an agent"
        )


def runnable(
    tool: Tool, watched: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
) -> Callable[..., Any]:
    """What a call of a tool runs: its function, within its time; ``watched`` sees the end of what cannot be stopped."""
    fn = _deeper(tool.fn if around is None else around(tool))
    if watched is not None and not inspect.iscoroutinefunction(fn):
        fn = watched(fn)
    return in_time(fn, tool.timeout)


def _deeper(fn: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(fn):

        async def awaited(**kwargs: Any) -> Any:
            before = _depth.set(_depth.get() + 1)
            try:
                return await fn(**kwargs)
            finally:
                _depth.reset(before)

        return awaited

    def blocking(**kwargs: Any) -> Any:
        before = _depth.set(_depth.get() + 1)
        try:
            return fn(**kwargs)
        finally:
            _depth.reset(before)

    return blocking


def in_time(fn: Callable[..., Any], limit: float | None) -> Callable[..., Any]:
    """A function that raises ``TimeoutError`` when it takes longer than that many seconds.

    A plain function cannot be stopped: it goes on in a thread of its own, see ``calls.late_returns``.
    """
    if limit is None:
        return fn
    if inspect.iscoroutinefunction(fn):
        import asyncio

        async def awaited(**kwargs: Any) -> Any:
            async with asyncio.timeout(limit):
                return await fn(**kwargs)

        return awaited

    # Few tools have a limit, and whoever only opens a database shall not wait for these.
    import queue
    import threading

    def blocking(**kwargs: Any) -> Any:
        ended: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

        def work() -> None:
            try:
                ended.put((True, fn(**kwargs)))
            except BaseException as e:
                ended.put((False, e))

        threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True).start()
        try:
            fine, result = ended.get(timeout=limit)
        except queue.Empty:
            raise TimeoutError(f"the tool took longer than {limit:g} s") from None
        if not fine:
            raise result
        return result

    return blocking
