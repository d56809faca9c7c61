"""One flow, two drivers: session logic is written once as generators that yield what must be waited for.

A flow yields requests and is sent their answers. The driver below carries them out where it stands;
the asynchronous one lives in ``flow_async``. This module's only job is the waiting, not the logic; what every flow of a
handle asks first, whether the handle may still be used, is here, too.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from perdure.errors import ForkedProcess, HandleClosed, Misuse, Poisoned

if TYPE_CHECKING:
    import queue

    from perdure.model import Append
    from perdure.protocols import Clock, Store

P = ParamSpec("P")
R = TypeVar("R")


class Do(NamedTuple):
    """Call something of ours that may block."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()


class Write(NamedTuple):
    """Append one commit; answered with what the store says of it."""

    item: Append


class Invoke(NamedTuple):
    """Call the user's function, which may be a coroutine function where the driver can wait for one."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}  # noqa: RUF012 - a NamedTuple's default is never mutated here


class Wait(NamedTuple):
    """Let time pass."""

    clock: Clock
    ms: int


class Enter(NamedTuple):
    """Wait for a session's gate that only an event loop can wait for; answered with what gives it back."""

    gate: Any


_Lock = type(threading.RLock())
Request = Do | Write | Invoke | Enter | Wait
Flow = Generator[Request, Any, R]


def entered(gate: Any) -> Flow[Any]:
    """A session's gate, for a ``with`` statement: one commit of a handle at a time.

    A gate for threads is taken by that statement itself, so that no interrupt comes between the two.
    """
    return gate if isinstance(gate, _Lock) else (yield Enter(gate))


def _perform(request: Do | Enter | Invoke | Wait) -> Any:
    if isinstance(request, Do):
        return request.fn(*request.args)
    if isinstance(request, Wait):
        return request.clock.sleep(request.ms)
    if isinstance(request, Enter):
        raise Misuse("this handle belongs to an event loop: await it")
    answer = request.fn(*request.args, **request.kwargs)
    if inspect.iscoroutine(answer):
        answer.close()
        name = getattr(request.fn, "__qualname__", repr(request.fn))
        raise Misuse(f"{name} is asynchronous: use it through perdure.open_async(...)")
    return answer


def drive(store: Store, flow: Flow[R]) -> R:
    """Carry a flow out in this thread."""
    try:
        request = next(flow)
        while True:
            # Not the first thing inside: where a loop begins anew, the outer block would have a gap for an interrupt.
            asked = request
            try:
                answer = store.append([asked.item])[0] if isinstance(asked, Write) else _perform(asked)
            except BaseException as e:
                request = flow.throw(e)
            else:
                request = flow.send(answer)
    except StopIteration as stop:
        return stop.value
    finally:
        # An interrupt in here must not leave the flow where it is: it gives back what it holds.
        flow.close()


def sync(flow: Callable[Concatenate[Any, P], Flow[R]], part: str = "") -> Callable[Concatenate[Any, P], R]:
    """The blocking method of a handle for a flow of its own, or of one of its parts."""

    @functools.wraps(flow)
    def method(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        owner = getattr(self, part) if part else self
        return drive(self.kernel.store, flow(owner, *args, **kwargs))

    return named(method)


def awaited(
    flow: Callable[Concatenate[Any, P], Flow[R]], part: str = ""
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The awaited method of a handle for a flow of its own, or of one of its parts."""

    @functools.wraps(flow)
    async def method(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        owner = getattr(self, part) if part else self
        return await self.driver.drive(flow(owner, *args, **kwargs))

    return named(method)


def named(method: R) -> R:
    """Give a method made from a flow the name people call it by."""
    m: Any = method
    m.__name__ = m.__qualname__ = m.__name__.removesuffix("_flow")
    return method


class Unawaited(Coroutine[Any, Any, R]):
    """A coroutine whose result cannot be mistaken for it: asked for anything of it, it says that it must be awaited."""

    def __init__(self, work: Coroutine[Any, Any, R], instead: str) -> None:
        self._work = work
        self._instead = instead

    def send(self, value: Any, /) -> Any:
        """Part of the protocol of coroutines."""
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """Part of the protocol of coroutines."""
        return self._work.throw(*error)

    def close(self) -> None:
        """Part of the protocol of coroutines."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, R]:
        return self._work.__await__()

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "cr_", "gi_", "ag_")):
            # What event loops and debuggers ask of a coroutine.
            return getattr(self._work, name)
        self._work.close()
        raise Misuse(f"this was not awaited, so it has no {name} yet: {self._instead}")


def wrong_use(what: str) -> Callable[..., Any]:
    """A method that only says what to do instead; hidden from type checkers, which then say so before."""

    def refuse(*_: Any) -> Any:
        raise Misuse(what)

    return refuse


SPAWN = (
    'start processes with multiprocessing.get_context("spawn") and open the database in each, '
    "or close it before forking"
)
"""What helps whoever has forked."""


class HandleGuard:
    """Asked before anything is done through a handle."""

    __slots__ = ("__weakref__", "_again", "_anew", "_pid", "_what", "closed", "part_of", "poisoned")

    def __init__(self, what: str, again: str = "open a new one", anew: str = SPAWN) -> None:
        self._what = what
        self._again = again
        self._anew = anew
        self._pid = os.getpid()
        self.closed = False
        self.part_of: HandleGuard | None = None
        """The guard of the handle that this one came from, and ends with."""
        self.poisoned = ""
        """What went wrong on the disk, when nobody knows any more what is on it."""

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that opened the handle."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Refuse a handle that was closed, opened before a fork, or poisoned."""
        if self.closed:
            raise HandleClosed(f"{self._what} was closed: {self._again}")
        if os.getpid() != self._pid:
            raise ForkedProcess(f"{self._what} was opened before a fork: {self._anew}")
        if self.poisoned:
            raise Poisoned(self.poisoned)
        if self.part_of is not None:
            self.part_of.check()


class Dropped:
    """Whether everybody has let a database go without closing it: asked by its threads, which do not keep it alive.

    Handles, and those of sessions, all have the guard; once it is gone nobody can ask for anything any more. No lock is
    taken at the collector's moment: a thread that waits for its queue finds None there, any other asks by itself.
    """

    def __init__(self, guard: HandleGuard, url: str) -> None:
        self._guard = weakref.ref(guard)
        self._wakes: list[weakref.ref[HandleGuard]] = []
        self._words = [f"database {url} was never closed: use it in a `with` block, or close() it"]

    def __bool__(self) -> bool:
        return self._guard() is None

    def wake(self, waiting: queue.SimpleQueue[Any]) -> None:
        """Put None into a queue when that is so; the only thing that may be done at that moment."""
        if (guard := self._guard()) is not None:
            self._wakes.append(weakref.ref(guard, lambda _: waiting.put(None)))

    def warn(self) -> None:
        """Say so, whichever thread comes first."""
        if self:
            with suppress(IndexError):  # another one was first
                warnings.warn(self._words.pop(), ResourceWarning, stacklevel=2)
