"""The server put together: the API, the console's pages if they are there, health, metrics, and the gate before all."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from perdure.errors import MissingExtra, PerdureError

try:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import BaseRoute, Match, NoMatchFound, Route
except ImportError:
    raise MissingExtra("starlette", "console") from None

from perdure.server.api.routes import TABLE
from perdure.server.api.routing import PREFIX, Api
from perdure.server.auth import Guard
from perdure.server.local_runs import Runs
from perdure.server.problems import Refusal
from perdure.server.request_checks import Gate
from perdure.server.resources import Ctx

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from starlette.requests import Request

    from perdure.agent.agent import Agent
    from perdure.aio import AsyncDatabase


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
) -> Starlette:
    """The application, for any ASGI server.

    ``token`` is what callers must know (None: nobody is asked, which is for a machine of your own only); ``agents`` can
    be run by this server; ``hosts`` are further names it may be called by ("*": any). The database stays yours.
    """
    by_name = {agent.name: agent for agent in agents}
    ctx = Ctx(db, by_name, Guard(token, hosts), Runs(db, by_name))

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
        routes=routes, lifespan=lifespan, middleware=[Middleware(Gate, guard=ctx.guard)],  # pyright: ignore
        exception_handlers={404: _no_such_path, 405: _wrong_method},
    )  # fmt: skip
    app.state.ctx = ctx
    return app


async def _no_such_path(request: Request, error: Exception) -> Response:
    raise Refusal(404, "no-such-path", f"there is nothing at this path: {PREFIX}/openapi.json lists what there is")


async def _wrong_method(request: Request, error: Exception) -> Response:
    headers: dict[str, str] = getattr(error, "headers", None) or {}
    allowed = headers.get("Allow", "GET")
    raise Refusal(405, "wrong-method", f"this path has {allowed}", Allow=allowed)


async def healthz(_: Request) -> Response:
    """Whether this process answers at all."""
    return PlainTextResponse("ok\n")


async def readyz(request: Request) -> Response:
    """Whether the store can be reached."""
    try:
        await request.app.state.ctx.db.sessions(limit=1)
    except PerdureError as e:
        return PlainTextResponse(f"the store cannot be reached ({type(e).__name__})\n", 503)
    return PlainTextResponse("ok\n")


async def metrics(request: Request) -> Response:
    """Measurements for Prometheus."""
    from perdure.telemetry import prometheus

    return Response(await request.app.state.ctx.blocking(prometheus.render), media_type=prometheus.CONTENT_TYPE)
