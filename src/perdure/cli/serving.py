"""``perdure serve`` and ``perdure console``: the HTTP API and the pages, on this machine with a token by default."""

from __future__ import annotations

import asyncio
import secrets
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.opening import BlobsAt, Store, find_url
from perdure.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from perdure.agent.agent import Agent

PORT = 8377

App = Annotated[
    str | None,
    typer.Argument(metavar="[APP]", help="A module or file with agents that this server may run: app, app.py:desk."),
]
Host = Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen; only this machine unless said otherwise.")]
Port = Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="0 takes any free one.")]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="PERDURE_TOKEN",
        metavar="TEXT",
        help="What callers must know; made anew at each start if not said.",
        show_default=False,
    ),
]
NoToken = Annotated[bool, typer.Option("--no-token", help="Ask nobody for a token: only for this machine.")]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host", metavar="NAME", help="A further name the server may be called by.", show_default=False
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("serve")(serve)
    app.command("console")(console)


def serve(
    app: App = None,
    store: Store = None,
    blobs: BlobsAt = None,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    token: Token = None,
    no_token: NoToken = False,
    allow_host: AllowHost = None,
) -> None:
    """Serve the HTTP API and the console over a database. APP lets it run agents by itself."""
    _serve(app, store, blobs, host, port, token, no_token, allow_host, browser=False)


def console(
    app: App = None,
    store: Store = None,
    blobs: BlobsAt = None,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    token: Token = None,
    no_token: NoToken = False,
    allow_host: AllowHost = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only say where it is.")] = False,
) -> None:
    """Look at sessions in the browser: the same as serve, and the browser is opened."""
    _serve(app, store, blobs, host, port, token, no_token, allow_host, browser=not no_browser)


def _serve(
    app: str | None, store: str | None, blobs: str | None, host: str, port: int, token: str | None, no_token: bool,
    allow_host: list[str] | None, *, browser: bool,
) -> None:  # fmt: skip
    from perdure.cli.apps import load_agents
    from perdure.server.auth import is_loopback

    if no_token and token:
        raise InvalidInput("--token and --no-token exclude each other")
    if no_token and not is_loopback(host):
        raise InvalidInput(
            f"without a token the server listens to this machine only, not to {host}: leave --no-token out"
        )
    agents = load_agents(app) if app is not None else []
    said = None if no_token else token or secrets.token_urlsafe(24)
    url = find_url(store)
    hosts = [*(allow_host or ()), *([] if _is_wildcard(host) else [host])]
    asyncio.run(_run(url, blobs, agents, host, port, said, hosts, made=not token, browser=browser))


async def _run(
    url: str, blobs: str | None, agents: list[Agent], host: str, port: int, token: str | None, hosts: list[str], *,
    made: bool, browser: bool,
) -> None:  # fmt: skip
    try:
        import uvicorn
    except ImportError:
        raise MissingExtra("uvicorn", "console") from None
    import perdure
    from perdure.server.app import create_app

    options: dict[str, Any] = {"create": False} if "postgresql://" in url or "postgres://" in url else {}
    async with perdure.open_async(url, blobs=blobs or None, maintain=False, **options) as db:
        app = create_app(db, token=token, agents=agents, hosts=hosts)

        class Server(uvicorn.Server):
            async def startup(self, sockets: Any = None) -> None:
                await super().startup(sockets)
                if self.started:
                    _tell(self, host, token, db.url, made=made, browser=browser)

            async def shutdown(self, sockets: Any = None) -> None:
                # Streams would go on for ever: they are told before anybody waits for them.
                app.state.ctx.closing.set()
                await super().shutdown(sockets)

        config = uvicorn.Config(
            app, host=host, port=port, log_level="warning", access_log=False, server_header=False, ws="none",
            timeout_graceful_shutdown=10, lifespan="on",
        )  # fmt: skip
        server = Server(config)
        try:
            await server.serve()
        except SystemExit:
            raise InvalidInput(f"{host} port {port} cannot be listened on: name another one with --port") from None
        if not server.started:
            raise InvalidInput(f"{host} port {port} cannot be listened on: name another one with --port")


def _tell(server: Any, host: str, token: str | None, store: str, *, made: bool, browser: bool) -> None:
    port = server.servers[0].sockets[0].getsockname()[1]
    name = "127.0.0.1" if _is_wildcard(host) else f"[{host}]" if ":" in host else host
    address = f"http://{name}:{port}/"
    # A token that was passed in is known to whoever passed it, and has no place in a log.
    shown = f"{address}?token={token}" if token and made else address
    print(f"serving {store} at {shown}", file=sys.stderr, flush=True)
    if browser:
        import webbrowser

        webbrowser.open(f"{address}?token={token}" if token else address)


def _is_wildcard(host: str) -> bool:
    return host in ("", "0.0.0.0", "::", "[::]")
