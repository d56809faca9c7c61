"""The proxy: passes messages on one by one, and cuts, delays, freezes or swallows where it is told to.

Statements are counted over all connections from the moment a cut is asked for. A cut *after* a statement means that
the server has executed it and answered, and nothing of the answer reaches the client; *before*, that it never reached
the server; *torn*, that half of the answer arrives. What the client had sent behind it never reaches the server.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import Callable, Coroutine

    from tests.proxy.wires import Wire

AFTER, BEFORE, TORN = "after", "before", "torn"
FOREVER = 1 << 60
_ENDED = (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError)


class Cutting(NamedTuple):
    """Which statements are cut, and how."""

    how: str = AFTER
    first: int = 0
    last: int = 0


class Proxy:
    """Listens on a port of its own, in a thread of its own; use it as a context manager."""

    def __init__(self, upstream: int, wire: Callable[[], Wire]) -> None:
        self._upstream = upstream
        self._wire = wire
        self._cutting = Cutting()
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self.count = 0
        """Statements since the last :meth:`cut` or :meth:`heal`."""
        self.cuts = 0
        """Connections cut since then."""
        self.delayed = 0.0
        self.swallowing = False
        self.refusing = False
        self.moving = asyncio.Event()
        self.moving.set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._do(self._listen())
        self.port: int = self._server.sockets[0].getsockname()[1]

    # -- what tests say ----------------------------------------------------------------------------

    def cut(self, how: str, at: int = 1, times: int = 1) -> None:
        """Cut the connection at the ``at``-th statement from now on, and at each of the ``times - 1`` after it."""
        self._set(cutting=Cutting(how, at, at + times - 1))

    def cut_on(self, how: str, at: int = 1) -> None:
        """Cut at the ``at``-th statement from now on and at every one after it, until healed."""
        self.cut(how, at, FOREVER)

    def delay(self, seconds: float) -> None:
        """Every answer comes that much later."""
        self._set(delayed=seconds)

    def freeze(self) -> None:
        """Nothing moves in either direction, and no connection ends, until healed."""
        self._set(moving=False)

    def swallow(self) -> None:
        """A black hole: connections are accepted, whatever is sent disappears, and no answer comes."""
        self._set(swallowing=True)

    def refuse(self) -> None:
        """End all connections, and each new one as soon as it is made."""
        self._set(refusing=True)

    def heal(self) -> None:
        """Be a plain wire again, and count from 0."""
        self._set()

    def _set(
        self,
        cutting: Cutting | None = None,
        delayed: float = 0.0,
        *,
        moving: bool = True,
        swallowing: bool = False,
        refusing: bool = False,
    ) -> None:
        async def change() -> None:
            self.count = self.cuts = 0
            self._cutting = cutting or Cutting()
            self.delayed = delayed
            # What was swallowed never comes: a connection that lost something is of no more use.
            lossy = self.swallowing and not swallowing
            self.swallowing, self.refusing = swallowing, refusing
            if moving:
                self.moving.set()
            else:
                self.moving.clear()
            if refusing or lossy:
                for link in tuple(self._links):
                    link.end()

        self._do(change())

    def close(self) -> None:
        """End everything."""

        async def end() -> None:
            self._server.close()
            for link in tuple(self._links):
                link.end()
            self.moving.set()
            if self._tasks:
                await asyncio.wait(self._tasks)
            await self._server.wait_closed()

        self._do(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(30)

    # -- connections -------------------------------------------------------------------------------

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.refusing:
            writer.transport.abort()
            return
        try:
            server = await asyncio.open_connection("127.0.0.1", self._upstream)
        except OSError:
            writer.transport.abort()
            return
        link = Link(self, self._wire(), (reader, writer), server)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)

    def fate(self) -> str:
        """Another statement: what is to become of it ("" when nothing special)."""
        self.count += 1
        if not self._cutting.first <= self.count <= self._cutting.last:
            return ""
        self.cuts += 1
        return self._cutting.how


class Link:
    """One connection through the proxy."""

    def __init__(
        self,
        proxy: Proxy,
        wire: Wire,
        client: tuple[StreamReader, StreamWriter],
        server: tuple[StreamReader, StreamWriter],
    ) -> None:
        self._proxy = proxy
        self._wire = wire
        self._client, self._to_client = client
        self._server, self._to_server = server
        self._unanswered = 0
        self._ahead = -1
        """Statements to be answered before the one whose answer is kept back; -1 when none is."""
        self._kept = b""
        self._answered = asyncio.Event()

    async def run(self) -> None:
        """Pass messages on until one side ends."""
        both = [asyncio.ensure_future(self._forward()), asyncio.ensure_future(self._backward())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # A frozen link ends only with its proxy.
            await self._proxy.moving.wait()
            self.end()
            for one in both:
                one.cancel()
                with suppress(*_ENDED):
                    await one

    def end(self) -> None:
        """End both connections at once, whatever is under way."""
        self._to_client.transport.abort()
        self._to_server.transport.abort()

    async def _forward(self) -> None:
        greeting = b""
        while not greeting:
            reply, greeting = await self._wire.hello(self._client)
            if reply:
                await self._pass(self._to_client, reply)
            elif not greeting:
                break
        await self._pass(self._to_server, greeting)
        while True:
            request = await self._wire.request(self._client)
            how = self._proxy.fate() if request.statement else ""
            if how == BEFORE:
                return
            answerable = bool(request.statement) and self._wire.sent(request)
            if not how:
                self._unanswered += answerable
                await self._pass(self._to_server, request.data)
                continue
            if answerable:
                self._ahead = self._unanswered
                await self._pass(self._to_server, request.data + request.nudge)
                await self._answered.wait()
            if how == TORN:
                self._to_client.write(self._kept[: len(self._kept) // 2])
                await self._to_client.drain()
            return

    async def _backward(self) -> None:
        while True:
            answer = await self._wire.answer(self._server)
            if answer.belongs and self._ahead == 0:
                self._kept += answer.data
                if answer.ends:
                    self._answered.set()
                continue
            self._unanswered -= min(answer.ends, self._unanswered)
            if self._ahead > 0:
                self._ahead -= answer.ends
                if self._ahead < 0:
                    self._answered.set()
            if self._proxy.delayed:
                await asyncio.sleep(self._proxy.delayed)
            await self._pass(self._to_client, answer.data)

    async def _pass(self, to: StreamWriter, data: bytes) -> None:
        await self._proxy.moving.wait()
        if not self._proxy.swallowing:
            to.write(data)
            await to.drain()
