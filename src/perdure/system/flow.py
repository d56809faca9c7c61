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
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from types import CoroutineType, MethodType
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from perdure.errors import ForkedProcess, HandleClosed, Misuse, PerdureError, Poisoned
from perdure.system.options import refuse_misfit

if TYPE_CHECKING:
    import queue

    from perdure.model import Append, Landed
    from perdure.protocols import Clock, Store

P = ParamSpec("P")
R = TypeVar("R")


class Do(NamedTuple):
    """Call something of ours that may block."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()


class Write(NamedTuple):
    """Append one commit, with those that it builds on and that are not in the store yet, as one batch.

    Answered with what the store says of it, or of the first of the others that it refuses.
    """

    item: Append
    before: tuple[Append, ...] = ()


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
    return gate if is_blocking(gate) else (yield Enter(gate))


def is_blocking(gate: Any) -> bool:
    """Whether a session's gate is one for threads: nothing can be awaited for it."""
    return isinstance(gate, _Lock)


def decisive(answers: Sequence[Landed | PerdureError]) -> Landed | PerdureError:
    """What a store says of a batch of which each commit builds on the one before."""
    return next((answer for answer in answers if isinstance(answer, PerdureError)), answers[-1])


def _perform(request: Do | Enter | Invoke | Wait) -> Any:
    if isinstance(request, Do):
        return request.fn(*request.args)
    if isinstance(request, Wait):
        return request.clock.sleep(request.ms)
    if isinstance(request, Enter):
        raise Misuse(
            "this database is awaited, and what was called blocks: write `await perdure.submit_async(...)` "
            "in the place of perdure.submit(...)"
        )
    answer = request.fn(*request.args, **request.kwargs)
    if inspect.isawaitable(answer):
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
                if isinstance(asked, Write):
                    answer = decisive(store.append([*asked.before, asked.item]))
                else:
                    answer = _perform(asked)
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
        try:
            begun = flow(owner, *args, **kwargs)
        except TypeError:
            refuse_misfit(flow, (owner, *args), kwargs, public_name(flow))
            raise
        try:
            store = self.kernel.store
        except AttributeError:
            check_open(self, f"perdure.{public_name(flow)}")
            raise
        return drive(store, begun)

    return named(method)


def awaited(
    flow: Callable[Concatenate[Any, P], Flow[R]], part: str = ""
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The awaited method of a handle for a flow of its own, or of one of its parts."""

    name = public_name(flow)

    @functools.wraps(flow)
    async def method(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        owner = getattr(self, part) if part else self
        try:
            begun = flow(owner, *args, **kwargs)
        except TypeError:
            refuse_misfit(flow, (owner, *args), kwargs, name)
            raise
        try:
            drive = self.driver.drive
        except AttributeError:
            check_awaited(self, f"perdure.{name}_async")
            raise
        return await drive(begun)

    made: Any = Awaited(named(method), f"perdure.{name}_async")
    return made


def named(method: R) -> R:
    """Give a method made from a flow the name people call it by."""
    m: Any = method
    m.__name__ = m.__qualname__ = public_name(m)
    return method


def public_name(flow: Callable[..., Any]) -> str:
    """The name that people call a flow by."""
    return flow.__name__.removesuffix("_flow")


class Result(NamedTuple):
    """How people speak of what they have not awaited."""

    what: str
    instead: str


class Unawaited(Coroutine[Any, Any, R]):
    """A coroutine that is not mistaken for its result: whoever uses it as that is told that it must be awaited.

    Everything that awaits takes it for one of Python's own.
    """

    __slots__ = ("__weakref__", "_of", "_work")

    def __init__(self, work: Coroutine[Any, Any, R], of: Result | Awaited) -> None:
        self._work = work
        self._of = of

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

    def __repr__(self) -> str:
        return repr(self._work)

    def _refused(self, lacks: str) -> Misuse:
        if inspect.getcoroutinestate(self._work) == inspect.CORO_CREATED:
            # It was told: Python need not say once more that nobody awaited it.
            self._work.close()
        return Misuse(f"{self._of.what}, so {lacks}: {self._of.instead}")

    if not TYPE_CHECKING:
        # As inspect.iscoroutine() asks; some libraries start nothing else.
        __class__ = property(lambda self: CoroutineType)

        def __getattr__(self, name):
            if name.startswith(("_", "cr_", "gi_", "ag_")):
                # What event loops and debuggers ask of a coroutine.
                return getattr(self._work, name)
            raise self._refused(f"it has no {name} yet")

        def __eq__(self, other):
            # Two of them are compared where they are kept in lists; another thing is what the result should be.
            if self is other or type(other) is type(self):
                return self is other
            raise self._refused("there is no result yet")

        __hash__ = object.__hash__


def _refuse_use(self: Unawaited[Any], *_: Any) -> Any:
    raise self._refused("there is no result yet")  # pyright: ignore[reportPrivateUsage]


# Without __next__: it would be taken for send() by what runs tasks.
for _use in (
    "str", "format", "bytes", "bool", "int", "float", "len", "iter", "contains", "getitem", "setitem", "delitem",
    "call", "enter", "exit", "aenter", "aexit", "lt", "le", "gt", "ge", "neg", "abs", "add", "radd", "sub", "rsub",
    "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "pow", "rpow", "and", "rand", "or",
    "ror", "xor", "rxor",
):  # fmt: skip
    setattr(Unawaited, f"__{_use}__", _refuse_use)


_new: Any = object.__new__


async def _a_coroutine() -> None: ...


class Awaited:
    """A coroutine function, or a method, whose result is :class:`Unawaited`; ``call`` is how it is called, in words.

    Made like a function, as Python sees it: :func:`inspect.iscoroutinefunction` is true of it.
    """

    def __init__(self, fn: Callable[..., Coroutine[Any, Any, Any]], call: str, instead: str = "") -> None:
        functools.update_wrapper(self, fn)
        made: Any = fn
        self.__name__: str = made.__name__
        self.__code__, self.__defaults__, self.__kwdefaults__ = _a_coroutine.__code__, None, None
        self._fn = fn
        self._more = instead
        self._speak(call)

    def _speak(self, call: str) -> None:
        self.what = f"{call}(...) was not awaited"
        self.instead = f"write `result = await {call}(...)`{self._more}"

    def __set_name__(self, owner: type, name: str) -> None:
        if called := getattr(owner, "_called", ""):
            self._speak(f"{called}.{name}")

    def __get__(self, handle: Any, kind: type | None = None) -> Any:
        return self if handle is None else MethodType(self, handle)

    def __call__(self, *args: Any, **kwargs: Any) -> Unawaited[Any]:
        # Without the constructor: this is in the way of each commit.
        result = _new(Unawaited)
        result._work = self._fn(*args, **kwargs)
        result._of = self
        return result


def used_awaited(
    call: str, instead: str = ""
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Decorates a coroutine function: who forgets to await it, and uses the result, is told."""

    def decorate(fn: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        made: Any = Awaited(fn, call, instead)
        return made

    return decorate


def check_awaited(db: object, call: str) -> None:
    """Refuse what is no open database that is awaited."""
    if not hasattr(db, "driver"):
        what = "this one blocks" if hasattr(db, "kernel") else f"{type(db).__name__} is none"
        raise Misuse(f"{call} awaits its database, and {what}: open it with `async with perdure.open_async(...) as db`")


def check_open(db: object, call: str) -> None:
    """Refuse what is no open database."""
    if not hasattr(db, "kernel"):
        raise Misuse(
            f"{call} takes an open database, not {type(db).__name__}: open it with `with perdure.open(...) as db`"
        )


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
