"""The awaiting driver of flows. One writer thread per store commits whatever waits as one batch: group commit.

A cancelled task's commit still lands when it was already on its way; the handle finds that out at its next commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from perdure.errors import HandleClosed, PerdureError, Unavailable
from perdure.system.flow import Do, Dropped, Enter, Flow, Invoke, Wait, Write, decisive

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from perdure.model import Append, Landed
    from perdure.protocols import Store

P = ParamSpec("P")
R = TypeVar("R")
MAX_BATCH = 256
MAX_WAITING = 100_000
"""Commits that may wait to be written."""
MAX_WAITING_BYTES = 256 << 20
"""Bytes of them; one alone may be larger."""


class Stopped(NamedTuple):
    """What a function has ended with that no future can carry: whoever awaited it would wait for ever."""

    error: StopIteration


def _carried(call: Callable[[], R]) -> R | Stopped:
    try:
        return call()
    except StopIteration as e:
        return Stopped(e)


async def outcome_in_thread(pool: Executor | None, fn: Callable[..., R], *args: Any, **kwargs: Any) -> R | Stopped:
    """Call a function that blocks, in a thread and in the context of whoever asks for it."""
    # In the context: whom an error is said to stands there.
    call = functools.partial(contextvars.copy_context().run, fn, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(pool, _carried, call)


async def in_thread_of(pool: Executor | None, fn: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """The same; a StopIteration is told as Python tells one of a coroutine."""
    outcome = await outcome_in_thread(pool, fn, *args, **kwargs)
    if isinstance(outcome, Stopped):
        raise outcome.error
    return outcome


async def in_thread(fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """The same, in one of the event loop's own threads."""
    return await in_thread_of(None, fn, *args, **kwargs)


_Waiting = tuple["Append", asyncio.AbstractEventLoop, "asyncio.Future[Landed | PerdureError]"]


class GroupCommit:
    """Group commit: a thread that takes every commit that is waiting and appends them as one batch."""

    def __init__(self, store: Store, dropped: Dropped, max_batch: int = MAX_BATCH) -> None:
        self.store = store
        self._dropped = dropped
        self._max = max_batch
        self._queue: queue.SimpleQueue[list[_Waiting] | None] = queue.SimpleQueue()
        self._closed = False
        self._lock = threading.Lock()
        self._bytes = 0
        dropped.wake(self._queue)
        self._thread = threading.Thread(target=self._work, name="perdure-writer", daemon=True)
        self._thread.start()

    def submit(self, *items: Append) -> list[asyncio.Future[Landed | PerdureError]]:
        """Append commits with whatever else is waiting; those that come together go into the store together."""
        if self._closed:
            raise HandleClosed("this database was closed: open it again")
        if self._queue.qsize() >= MAX_WAITING:
            raise Unavailable(f"{MAX_WAITING} commits are waiting already: the store cannot keep up, slow down")
        loop = asyncio.get_running_loop()
        size = sum(map(_size, items))
        with self._lock:
            if self._bytes and self._bytes + size > MAX_WAITING_BYTES:
                raise Unavailable(
                    f"commits of {self._bytes >> 20} MiB are waiting already: the store cannot keep up, slow down"
                )
            self._bytes += size
        waiting: list[_Waiting] = [(item, loop, loop.create_future()) for item in items]
        self._queue.put(waiting)
        return [future for _, _, future in waiting]

    def _work(self) -> None:
        self._write_all()
        self._dropped.warn()

    def _write_all(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = list(first)
            stop = False
            while len(batch) < self._max and not self._queue.empty():
                more = self._queue.get()
                if more is None:
                    stop = True
                    break
                batch += more
            self._write(batch)
            if stop:
                return

    def _write(self, batch: list[_Waiting]) -> None:
        try:
            answers: list[Any] = list(self.store.append([item for item, _, _ in batch]))
        except PerdureError as e:
            answers = [e] * len(batch)
        except BaseException as e:
            answers = [PerdureError(f"the store failed with {type(e).__name__}: {e}")] * len(batch)
        with self._lock:
            self._bytes -= sum(_size(item) for item, _, _ in batch)
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
        for (_, loop, future), answer in zip(batch, answers, strict=True):
            by_loop.setdefault(loop, []).append((future, answer))
        for loop, answered in by_loop.items():
            # A loop that was closed meanwhile wants no answer; whoever commits through another one does.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_answer, answered)

    def close(self) -> None:
        """Finish what is waiting, then stop."""
        self._closed = True
        self._queue.put(None)
        self._thread.join()


def _size(item: Append) -> int:
    return len(item.envelope) + len(item.payload)


def _answer(answered: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, answer in answered:
        if not future.done():
            future.set_result(answer)


class _Held(contextlib.AbstractContextManager[None]):
    """A gate that was waited for, and is given back."""

    def __init__(self, gate: asyncio.Lock) -> None:
        self._gate = gate

    def __exit__(self, *_: object) -> None:
        self._gate.release()


class AsyncDriver:
    """Carries flows out for awaited handles: a writer thread, and a small pool for everything else that blocks."""

    def __init__(self, store: Store, dropped: Dropped, max_batch: int = MAX_BATCH) -> None:
        self.writer = GroupCommit(store, dropped, max_batch)
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="perdure-io")

    async def _perform(self, request: Do | Enter | Invoke | Wait) -> Any:
        if isinstance(request, Enter):
            await request.gate.acquire()
            return _Held(request.gate)
        if isinstance(request, Wait):
            return await request.clock.sleep_async(request.ms)
        if isinstance(request, Do):
            return await outcome_in_thread(self._pool, request.fn, *request.args)
        if inspect.iscoroutinefunction(request.fn):
            return await request.fn(*request.args, **request.kwargs)
        # The user's function may block for long: it does not get one of our own few threads.
        answer = await outcome_in_thread(None, request.fn, *request.args, **request.kwargs)
        return await answer if inspect.isawaitable(answer) else answer

    async def call(self, fn: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        """Call something of ours that blocks, in a thread."""
        return await in_thread_of(self._pool, fn, *args, **kwargs)

    async def drive(self, flow: Flow[R]) -> R:
        """Carry a flow out, awaiting what it waits for."""
        submit = self.writer.submit
        try:
            request = next(flow)
            while True:
                try:
                    if isinstance(request, Write):
                        sent = submit(*request.before, request.item)
                        answer = decisive([await future for future in sent])
                    else:
                        answer = await self._perform(request)
                except BaseException as e:
                    request = flow.throw(e)
                else:
                    request = flow.throw(answer.error) if isinstance(answer, Stopped) else flow.send(answer)
        except StopIteration as stop:
            return stop.value

    def close(self) -> None:
        """Stop the threads."""
        self.writer.close()
        self._pool.shutdown(wait=True)
