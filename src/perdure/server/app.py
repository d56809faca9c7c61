"""The server put together: the API, the console's pages if they are there, health, metrics, and the gate before all."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.errors import MissingExtra, PerdureError, Poisoned
from perdure.system.flow import check_awaited

try:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import BaseRoute, Match, NoMatchFound, Route
except ImportError as error:
    raise MissingExtra("starlette", "console", error) from None

from perdure.fleet.why.lists import stuck
from perdure.server.api.openapi import TABLE
from perdure.server.api.routing import PREFIX, Api
from perdure.server.auth import Guard
from perdure.server.local_runs import Runs
from perdure.server.problems import Refusal
from perdure.server.request_checks import Gate, Hosts
from perdure.system.flow_async import in_thread, in_thread_of
from perdure.telemetry.sampling import Sampler

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from starlette.requests import Request

    from perdure.agent.agent import Agent
    from perdure.aio import AsyncDatabase
    from perdure.protocols import Clock

R = TypeVar("R")
THREADS = 16


def _threads() -> ThreadPoolExecutor:
    # Its own: the usual one is where agents' tools run, which may take as long as they like.
    return ThreadPoolExecutor(THREADS, "perdure-http")


@dataclass(frozen=True)
class Ctx:
    """One server's parts, for the API and for the console's pages."""

    db: AsyncDatabase
    agents: dict[str, Agent]
    """The agents this server was started with, by name; it runs them when it is asked to."""
    guard: Guard
    runs: Runs
    roles: frozenset[str] = frozenset()
    """Roles that messages from outside may have beside user."""
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server is about to go: whatever streams must end."""
    _pool: ThreadPoolExecutor = field(default_factory=_threads)

    @property
    def clock(self) -> Clock:
        """The database's clock."""
        return self.db.kernel.clock

    async def blocking(self, fn: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        """Call something of the library that blocks, in a thread."""
        # In the context of the request: what is said there is said to whoever has sent it.
        return await in_thread_of(self._pool, fn, *args, **kwargs)

    async def close(self) -> None:
        """End what this server has under way; the database stays open."""
        self.closing.set()
        await self.runs.close()
        await in_thread(self._pool.shutdown)


class Below(BaseRoute):
    """Everything below a path goes to one application, also what has a line break in its name."""

    def __init__(self, prefix: str, app: Any) -> None:
        self._prefix = prefix + "/"
        self._app = app

    def matches(self, scope: Any) -> tuple[Match, Any]:
        """Whether a request is meant for it."""
        fits = scope["type"] == "http" and scope["path"].startswith(self._prefix)
        return (Match.FULL if fits else Match.NONE), {}

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        """It has no names of its own."""
        raise NoMatchFound(name, path_params)

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on."""
        await self._app(scope, receive, send)


def create_app(
    db: AsyncDatabase,
    *,
    token: str | None,
    agents: Sequence[Agent] = (),
    hosts: Sequence[str] = (),
    console: bool = True,
    roles: Sequence[str] = (),
) -> Starlette:
    """The application, for any ASGI server.

    ``token`` is what callers must know (None: nobody is asked, which is for a machine of your own only); ``agents`` can
    be run by this server; ``hosts`` are further names it may be called by ("*": any). Messages that are posted have the
    role user; ``roles`` are others that callers may give them, such as system. The database stays yours.
    """
    check_awaited(db, "create_app")
    by_name = {agent.name: agent for agent in agents}
    ctx = Ctx(db, by_name, Guard(token), Runs(db, by_name), frozenset(roles))

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        yield
        await ctx.close()

    pages: list[BaseRoute] = []
    if console:
        from perdure.server.console import routes as console_routes

        pages = console_routes(ctx)
    routes: list[BaseRoute] = [
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        Route("/metrics", metrics),
        Below(PREFIX, Api(ctx, TABLE)),
        *pages,
    ]
    app = Starlette(
        routes=routes, lifespan=lifespan, middleware=[Middleware(Gate, guard=ctx.guard, hosts=Hosts(hosts))],  # pyright: ignore
        exception_handlers={404: _no_such_path, 405: _wrong_method},
    )  # fmt: skip
    app.state.ctx = ctx
    app.state.poisoned = False
    app.state.sampler = Sampler(db.kernel.store, stuck=partial(stuck, db))
    return app


async def _no_such_path(request: Request, error: Exception) -> Response:
    raise Refusal(404, "no-such-path", f"there is nothing at this path: {PREFIX}/openapi.json lists what there is")


async def _wrong_method(request: Request, error: Exception) -> Response:
    headers: dict[str, str] = getattr(error, "headers", None) or {}
    allowed = headers.get("Allow", "GET")
    raise Refusal(405, "wrong-method", f"this path has {allowed}", Allow=allowed)


async def healthz(request: Request) -> Response:
    """Whether this process answers at all, and can ever reach its store again."""
    if request.app.state.poisoned:
        return PlainTextResponse("this process can no longer use its store: restart it\n", 503)
    return PlainTextResponse("ok\n")


async def readyz(request: Request) -> Response:
    """Whether the store can be reached."""
    try:
        await request.app.state.ctx.db.sessions(limit=1)
    except PerdureError as e:
        request.app.state.poisoned = isinstance(e, Poisoned)
        return PlainTextResponse(f"the store cannot be reached ({type(e).__name__})\n", 503)
    return PlainTextResponse("ok\n")


async def metrics(request: Request) -> Response:
    """Measurements for Prometheus."""
    from perdure.telemetry import prometheus

    def render() -> bytes:
        listening = prometheus.listening()
        # Where the store cannot be asked there is no answer: numbers of before would pass for those of now.
        request.app.state.sampler.sample_now_and_then()
        return listening.render()

    return Response(await request.app.state.ctx.blocking(render), media_type=prometheus.CONTENT_TYPE)
