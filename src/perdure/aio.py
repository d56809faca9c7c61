"""The asynchronous edge: the same flows, awaited. One writer thread per store commits whatever waits as one batch.

A cancelled task's commit still lands when it was already on its way; the handle finds that out at its next commit.
"""

# pyright: reportPrivateUsage=false
# The handle is one thing in several rooms: they share its inner parts.
from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import queue
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from perdure.database import DatabaseFlows
from perdure.errors import HandleClosed, PerdureError, Unavailable
from perdure.history.blob_streams import AsyncBlobReader
from perdure.session.handle import SessionFlows
from perdure.system.flow import Do, Enter, Flow, Request, Write, named

if TYPE_CHECKING:
    from perdure.model import Append, ChangePage, Landed
    from perdure.protocols import Store

P = ParamSpec("P")
R = TypeVar("R")
MAX_BATCH = 256
MAX_WAITING = 100_000

_Waiting = tuple["Append", asyncio.AbstractEventLoop, "asyncio.Future[Landed | PerdureError]"]


class Writer:
    """Group commit: a thread that takes every commit that is waiting and appends them as one batch."""

    def __init__(self, store: Store, max_batch: int = MAX_BATCH) -> None:
        self._store = store
        self._max = max_batch
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="perdure-writer", daemon=True)
        self._thread.start()

    def submit(self, item: Append) -> asyncio.Future[Landed | PerdureError]:
        """Append one commit with whatever else is waiting."""
        if self._closed:
            msg = "this database was closed: open it again"
            raise HandleClosed(msg)
        if self._queue.qsize() >= MAX_WAITING:
            msg = f"{MAX_WAITING} commits are waiting already: the store cannot keep up, slow down"
            raise Unavailable(msg)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Landed | PerdureError] = loop.create_future()
        self._queue.put((item, loop, future))
        return future

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            stop = False
            while len(batch) < self._max and not self._queue.empty():
                more = self._queue.get()
                if more is None:
                    stop = True
                    break
                batch.append(more)
            self._write(batch)
            if stop:
                return

    def _write(self, batch: list[_Waiting]) -> None:
        try:
            answers: list[Any] = list(self._store.append([item for item, _, _ in batch]))
        except PerdureError as e:
            answers = [e] * len(batch)
        except BaseException as e:
            answers = [PerdureError(f"the store failed with {type(e).__name__}: {e}")] * len(batch)
        if len(batch) == 1:
            _, loop, future = batch[0]
            if not loop.is_closed():
                loop.call_soon_threadsafe(_answer, [(future, answers[0])])
            return
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
        for (_, loop, future), answer in zip(batch, answers, strict=True):
            by_loop.setdefault(loop, []).append((future, answer))
        for loop, answered in by_loop.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_answer, answered)

    def close(self) -> None:
        """Finish what is waiting, then stop."""
        self._closed = True
        self._queue.put(None)
        self._thread.join()


def _answer(answered: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, answer in answered:
        if not future.done():
            future.set_result(answer)


class Bridge:
    """What an awaited handle waits with: the writer thread, and a small pool for everything else that blocks."""

    def __init__(self, store: Store, max_batch: int = MAX_BATCH) -> None:
        self.writer = Writer(store, max_batch)
        self.pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="perdure-io")

    async def perform(self, request: Request) -> Any:
        """Carry one request of a flow out."""
        if isinstance(request, Write):
            return await self.writer.submit(request.item)
        if isinstance(request, Enter):
            return await request.gate.acquire()
        loop = asyncio.get_running_loop()
        if isinstance(request, Do):
            return await loop.run_in_executor(self.pool, functools.partial(request.fn, *request.args))
        if inspect.iscoroutinefunction(request.fn):
            return await request.fn(*request.args, **request.kwargs)
        call = functools.partial(contextvars.copy_context().run, request.fn, *request.args, **request.kwargs)
        # The user's function may block for long: it does not get one of our own few threads.
        answer = await loop.run_in_executor(None, call)
        return await answer if inspect.isawaitable(answer) else answer

    def close(self) -> None:
        """Stop the threads."""
        self.writer.close()
        self.pool.shutdown(wait=True)


async def drive(bridge: Bridge, flow: Flow[R]) -> R:
    """Carry a flow out, awaiting what it waits for."""
    submit = bridge.writer.submit
    try:
        request = next(flow)
        while True:
            try:
                if type(request) is Write:
                    answer = await submit(request.item)
                else:
                    answer = await bridge.perform(request)
            except BaseException as e:
                request = flow.throw(e)
            else:
                request = flow.send(answer)
    except StopIteration as stop:
        return stop.value


def awaited(flow: Callable[Concatenate[Any, P], Flow[R]]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The awaited method for a flow."""

    @functools.wraps(flow)
    async def method(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        return await drive(self.bridge, flow(self, *args, **kwargs))

    return named(method)


class AsyncSession(SessionFlows):
    """A session being written, awaited; method for method the same as :class:`perdure.Session`."""

    bridge: Bridge

    commit = awaited(SessionFlows._commit_flow)
    call = awaited(SessionFlows._call_flow)
    run = awaited(SessionFlows._run_flow)
    resolve = awaited(SessionFlows._resolve_flow)
    take = awaited(SessionFlows._take_flow)
    fork = awaited(SessionFlows._fork_flow)
    rewind = awaited(SessionFlows._rewind_flow)
    switch = awaited(SessionFlows._switch_flow)
    merge = awaited(SessionFlows._merge_flow)
    tag = awaited(SessionFlows._tag_flow)
    reload = awaited(SessionFlows._reload_flow)
    close = awaited(SessionFlows._close_flow)
    release = awaited(SessionFlows._release_flow)

    def _courier(self) -> Callable[[Flow[Any]], Any]:
        loop = asyncio.get_running_loop()

        def carry(flow: Flow[Any]) -> Any:
            work = drive(self.bridge, flow)
            try:
                here = asyncio.get_running_loop() is loop
            except RuntimeError:
                here = False
            # A plain tool runs in a thread and waits there; a coroutine of this loop awaits what it is given.
            return asyncio.ensure_future(work) if here else asyncio.run_coroutine_threadsafe(work, loop).result()

        return carry

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self._warn_uncommitted()
        await self.release()


class Opening:
    """A session being opened: ``async with`` it, or ``await`` it."""

    def __init__(self, opening: Coroutine[Any, Any, AsyncSession]) -> None:
        self._opening = opening
        self._session: AsyncSession | None = None

    def __await__(self) -> Generator[Any, Any, AsyncSession]:
        return self._opening.__await__()

    async def __aenter__(self) -> AsyncSession:
        self._session = await self._opening
        return self._session

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        assert self._session is not None
        await self._session.__aexit__(kind, error, trace)


def opening(flow: Callable[Concatenate[Any, P], Flow[Any]]) -> Callable[Concatenate[Any, P], Opening]:
    """The method for the flow that opens a session."""

    @functools.wraps(flow)
    def session(self: Any, *args: P.args, **kwargs: P.kwargs) -> Opening:
        return Opening(drive(self.bridge, flow(self, *args, **kwargs)))

    session.__name__ = session.__qualname__ = "session"
    return session


class AsyncDatabase(DatabaseFlows):
    """An open store with its sessions, awaited. Get one from :func:`perdure.open_async`."""

    def __init__(self, *args: Any, max_batch: int = MAX_BATCH, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.bridge = Bridge(self.kernel.store, max_batch)

    def _new_gate(self) -> Any:
        return asyncio.Lock()

    def _new_reader(self, pieces: Iterator[bytes]) -> Any:
        return AsyncBlobReader(pieces, self.bridge.perform)

    session = opening(DatabaseFlows._open)

    def _new_handle(self, *args: Any) -> SessionFlows:
        s = AsyncSession(*args)
        s.bridge = self.bridge
        return s

    update = awaited(DatabaseFlows._update_flow)
    read = awaited(DatabaseFlows._read_flow)
    history = awaited(DatabaseFlows._history_flow)
    diff = awaited(DatabaseFlows._diff_flow)
    look = awaited(DatabaseFlows._look_flow)
    sessions = awaited(DatabaseFlows._sessions_flow)
    counts = awaited(DatabaseFlows._counts_flow)
    create = awaited(DatabaseFlows._create_flow)
    changes = awaited(DatabaseFlows._changes_flow)
    post = awaited(DatabaseFlows._post_flow)
    post_outcome = awaited(DatabaseFlows._post_outcome_flow)
    approve = awaited(DatabaseFlows._approve_flow)
    answer = awaited(DatabaseFlows._answer_flow)
    reject = awaited(DatabaseFlows._reject_flow)
    wake = awaited(DatabaseFlows._wake_flow)
    cancel_wake = awaited(DatabaseFlows._cancel_wake_flow)
    cancel = awaited(DatabaseFlows._cancel_flow)
    compact = awaited(DatabaseFlows._compact_flow)
    prune = awaited(DatabaseFlows._prune_flow)
    sweep = awaited(DatabaseFlows._sweep_flow)
    migrate = awaited(DatabaseFlows._migrate_flow)
    collect = awaited(DatabaseFlows._collect_flow)
    verify = awaited(DatabaseFlows._verify_flow)
    witness = awaited(DatabaseFlows._witness_flow)
    backup = awaited(DatabaseFlows._backup_flow)
    restore = awaited(DatabaseFlows._restore_flow)
    export_session = awaited(DatabaseFlows._export_session_flow)
    import_sessions = awaited(DatabaseFlows._import_sessions_flow)
    usage = awaited(DatabaseFlows._usage_flow)
    put_blob = awaited(DatabaseFlows._put_blob_flow)
    open_blob = awaited(DatabaseFlows._open_blob_flow)
    copy_to = awaited(DatabaseFlows._copy_to_flow)

    async def watch(self, after: str | None = None, *, poll: float = 0.2) -> AsyncIterator[Any]:
        """Changes as they happen, until the iteration is left."""
        async for page in self.watch_pages(after, poll=poll):
            for item in page.items:
                yield item

    async def watch_pages(
        self, after: str | None = None, *, limit: int = 1000, poll: float = 0.2
    ) -> AsyncIterator[ChangePage]:
        """Changes as they happen, in pages with the cursor behind them; an empty page when there is nothing new."""
        while True:
            page = await self.changes(after, limit)
            yield page
            after = page.cursor
            if not page.items:
                await asyncio.sleep(poll)

    async def close(self) -> None:
        """Finish what is waiting, then close the store."""
        if self._closed:
            return
        self._closed = True

        def shut() -> None:
            self.bridge.close()
            self._shut()

        await asyncio.get_running_loop().run_in_executor(None, shut)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
