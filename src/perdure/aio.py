"""The awaited handles: the same flows as the blocking ones, driven by the event loop. No hand-written twins."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from perdure.database import DatabaseHandle
from perdure.errors import Misuse
from perdure.history.blob_streams import AsyncBlobReader, BlobStreams
from perdure.history.reader import Reader
from perdure.session.branches import Branches
from perdure.session.calls.calls import Calls
from perdure.session.calls.effects import Effects
from perdure.session.handle import SessionHandle
from perdure.session.inbox import Inbox
from perdure.session.journal import Journal
from perdure.session.posting import Posting
from perdure.session.runs import Runs
from perdure.session.waiting_messages import WaitingMessages
from perdure.system.flow import Flow, Result, Unawaited, awaited, named, wrong_use
from perdure.system.flow_async import MAX_BATCH, AsyncDriver, in_thread
from perdure.upkeep.flows import Upkeep

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from perdure.kernel import Kernel
    from perdure.model import ChangePage

P = ParamSpec("P")
R = TypeVar("R")


class AsyncSession(SessionHandle):
    """A session being written, awaited; method for method the same as :class:`perdure.Session`."""

    _called = "s"

    def __init__(self, journal: Journal, driver: AsyncDriver) -> None:
        self.driver = driver
        super().__init__(journal, self._carry_here)

    commits_with = "`await s.commit()` keeps them, and without the await nothing is done"

    commit = awaited(Journal.commit, "journal")
    reload = awaited(Journal.reload, "journal")
    call = awaited(Calls.call, "calls")
    resolve = awaited(Effects.resolve, "effect_records")
    take = awaited(Inbox.take, "inbox")
    fork = awaited(Branches.fork, "branches")
    rewind = awaited(Branches.rewind, "branches")
    switch = awaited(Branches.switch, "branches")
    merge = awaited(Branches.merge, "branches")
    tag = awaited(Branches.tag, "branches")
    run = awaited(Runs.run, "runs")
    close = awaited(SessionHandle.close_flow)
    release = awaited(SessionHandle.release_flow)

    def _carry_here(self) -> Callable[[Flow[Any]], Any]:
        loop = asyncio.get_running_loop()

        def carry(flow: Flow[Any]) -> Any:
            work = self.driver.drive(flow)
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
            self.warn_uncommitted()
        await self.release()

    if not TYPE_CHECKING:
        __enter__ = __exit__ = wrong_use("this session is awaited: `async with db.session(...) as s`, not `with`")


_NOT_OPEN = Result(
    "this session is not open yet", "write `async with db.session(...) as s`, or `s = await db.session(...)`"
)


class Opening(Unawaited[AsyncSession]):
    """A session being opened: ``async with`` it, or ``await`` it."""

    __slots__ = ("_session",)

    def __init__(self, opening: Coroutine[Any, Any, AsyncSession]) -> None:
        super().__init__(opening, _NOT_OPEN)

    def _refused(self, lacks: str) -> Misuse:
        return super()._refused(lacks.removesuffix(" yet"))

    async def __aenter__(self) -> AsyncSession:
        self._session = await self
        return self._session

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        await self._session.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:
        # It can still be opened.
        __enter__ = __exit__ = wrong_use(_NOT_OPEN.instead)


def _opening(flow: Callable[Concatenate[Any, P], Flow[Any]]) -> Callable[Concatenate[Any, P], Opening]:
    """The method for the flow that opens a session."""

    @functools.wraps(flow)
    def session(self: Any, *args: P.args, **kwargs: P.kwargs) -> Opening:
        return Opening(self.driver.drive(flow(self, *args, **kwargs)))

    return named(session)


_ASYNC_WITH = "a database that is awaited is opened by `async with perdure.open_async(...) as db`"


class AsyncDatabase(DatabaseHandle):
    """An open store with its sessions, awaited. Get one from :func:`perdure.open_async`."""

    _called = "db"

    def __init__(self, kernel: Kernel, *, max_batch: int = MAX_BATCH, **options: Any) -> None:
        super().__init__(
            kernel,
            new_handle=lambda journal: AsyncSession(journal, self.driver),
            new_gate=asyncio.Lock,
            new_reader=lambda pieces: AsyncBlobReader(pieces, self.driver.call),
            **options,
        )
        self.driver = AsyncDriver(kernel.store, self.dropped, max_batch)

    session = _opening(DatabaseHandle.session_flow)
    update = awaited(DatabaseHandle.update_flow)
    create = awaited(DatabaseHandle.create_flow)
    read = awaited(Reader.read, "reader")
    history = awaited(Reader.history, "reader")
    diff = awaited(Reader.diff, "reader")
    look = awaited(Reader.look, "reader")
    sessions = awaited(Reader.sessions, "reader")
    counts = awaited(Reader.counts, "reader")
    changes = awaited(Reader.changes, "reader")
    post = awaited(Posting.post, "posting")
    post_outcome = awaited(Posting.post_outcome, "posting")
    approve = awaited(Posting.approve, "posting")
    answer = awaited(Posting.answer, "posting")
    reject = awaited(Posting.reject, "posting")
    wake = awaited(Posting.wake, "posting")
    cancel_wake = awaited(Posting.cancel_wake, "posting")
    cancel = awaited(Posting.cancel, "posting")
    inbox = awaited(WaitingMessages.inbox, "waiting_messages")
    withdraw = awaited(WaitingMessages.withdraw, "waiting_messages")
    edit = awaited(WaitingMessages.edit, "waiting_messages")
    compact = awaited(Upkeep.compact, "upkeep")
    prune = awaited(Upkeep.prune, "upkeep")
    sweep = awaited(Upkeep.sweep, "upkeep")
    revive = awaited(Upkeep.revive, "upkeep")
    set_aside = awaited(Upkeep.set_aside, "upkeep")
    migrate = awaited(Upkeep.migrate, "upkeep")
    collect = awaited(Upkeep.collect, "upkeep")
    verify = awaited(Upkeep.verify, "upkeep")
    accept_damage = awaited(Upkeep.accept_damage, "upkeep")
    witness = awaited(Upkeep.witness, "upkeep")
    accept_loss = awaited(Upkeep.accept_loss, "upkeep")
    backup = awaited(Upkeep.backup, "upkeep")
    restore = awaited(Upkeep.restore, "upkeep")
    export_session = awaited(Upkeep.export_session, "upkeep")
    import_sessions = awaited(Upkeep.import_sessions, "upkeep")
    usage = awaited(Upkeep.usage, "upkeep")
    copy_to = awaited(Upkeep.copy_to, "upkeep")
    put_blob = awaited(BlobStreams.put_blob, "blob_streams")
    open_blob = awaited(BlobStreams.open_blob, "blob_streams")

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
        if self.guard.closed:
            return
        self.guard.closed = True

        def shut() -> None:
            self.driver.close()
            self.shut()

        await in_thread(shut)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    if not TYPE_CHECKING:
        __enter__ = __exit__ = wrong_use(f"{_ASYNC_WITH}, not `with`; perdure.open(...) is the one that blocks")
        __await__ = wrong_use(f"{_ASYNC_WITH}: opening is not awaited, what the database does is")
