"""``perdure serve``, ``console`` and ``schema``: the HTTP API and the pages, and what commands print for programs."""

from __future__ import annotations

import logging
import secrets
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.agent.app_loader import load_agents
from perdure.cli.options import AsJson, BlobsAt, Store
from perdure.cli.output import print_json, print_line
from perdure.cli.which_database import find_or_new, find_url, witness
from perdure.errors import InvalidInput, MissingExtra, NotFound
from perdure.shapes.machine import Serving
from perdure.system.urls import only_existing

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.agent.agent import Agent

PORT = 8377

MaybeApp = Annotated[
    str | None,
    typer.Argument(metavar="[APP]", help="A module or file with agents that this server may run: app, app.py:desk."),
]
Host = Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen; only this machine unless said otherwise.")]
Port = Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="0 takes any free one.")]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="PERDURE_TOKEN", metavar="TEXT", help="What callers must know; made anew at each start if not said."
    ),
]
NoToken = Annotated[bool, typer.Option("--no-token", help="Ask nobody for a token: only for this machine.")]
AllowHost = Annotated[
    list[str] | None, typer.Option("--allow-host", metavar="NAME", help="A further name the server may be called by.")
]
AllowRole = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-role", metavar="ROLE", help="A role beside user that callers may give their messages, such as system."
    ),
]
Browser = Annotated[bool, typer.Option("--browser/--no-browser", help="Open it in the browser, or only say where.")]
AsJsonLine = Annotated[bool, typer.Option("--json", help="Say where it listens in one line of JSON, on stdout.")]


def _serving(name: str, about: str, *, opens: bool) -> Callable[..., None]:
    """The command that serves a database; the two differ only in whether the browser is opened."""

    def command(
        app: MaybeApp = None,
        store: Store = None,
        blobs: BlobsAt = None,
        host: Host = "127.0.0.1",
        port: Port = PORT,
        token: Token = None,
        no_token: NoToken = False,
        allow_host: AllowHost = None,
        allow_role: AllowRole = None,
        browser: Browser = opens,
        as_json: AsJsonLine = False,
    ) -> None:
        import asyncio

        _check_token(host, token, no_token)
        agents = load_agents(app) if app is not None else []
        said = None if no_token else token or secrets.token_urlsafe(24)
        # A server is started with its workers: whoever is first makes the database. Who merely looks makes none.
        url = find_url(store) if opens else find_or_new(store)
        exists = only_existing(url) if opens else {}
        hosts = [*(allow_host or ()), *([] if _is_wildcard(host) else [host])]
        told: dict[str, Any] = {"made": not token, "browser": browser, "as_json": as_json}
        asyncio.run(_run(url, blobs, exists, agents, host, port, said, hosts, allow_role or [], **told))

    command.__name__ = name
    command.__doc__ = about
    return command


serve = _serving(
    "serve",
    "Serve the HTTP API and the console over a database, made if it is not there. APP lets it run agents by itself.",
    opens=False,
)
console = _serving(
    "console", "Look at sessions in the browser: the same as serve, and the browser is opened.", opens=True
)


def _check_token(host: str, token: str | None, no_token: bool) -> None:
    from perdure.server.auth import is_loopback

    if no_token and token:
        raise InvalidInput("--token and --no-token exclude each other")
    if no_token and not is_loopback(host):
        raise InvalidInput(
            f"without a token the server listens to this machine only, not to {host}: leave --no-token out"
        )


async def _run(
    url: str, blobs: str | None, exists: dict[str, Any], agents: list[Agent], host: str, port: int, token: str | None,
    hosts: list[str], roles: list[str], *, made: bool, browser: bool, as_json: bool,
) -> None:  # fmt: skip
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtra("uvicorn", "console", error) from None
    import perdure
    from perdure.server.app import create_app

    async with perdure.open_async(url, blobs=blobs or None, maintain=False, witness=witness(), **exists) as db:
        app = create_app(db, token=token, agents=agents, hosts=hosts, roles=roles)

        class Server(uvicorn.Server):
            async def startup(self, sockets: Any = None) -> None:
                await super().startup(sockets)
                if self.started:
                    _tell(self, host, token, db.url, made=made, browser=browser, as_json=as_json)

            async def shutdown(self, sockets: Any = None) -> None:
                # Streams would go on for ever: they are told before anybody waits for them.
                app.state.ctx.closing.set()
                await super().shutdown(sockets)

        config = uvicorn.Config(
            app, host=host, port=port, log_level="warning", access_log=False, server_header=False, ws="none",
            timeout_graceful_shutdown=10, lifespan="on",
        )  # fmt: skip
        server = Server(config)
        why = _Why()
        logging.getLogger("uvicorn.error").addFilter(why)
        # It is raised again once the server has ended: the database is still to be closed, and all went well.
        before = signal.signal(signal.SIGTERM, lambda number, frame: None)
        try:
            await server.serve()
        except SystemExit:
            raise _not_there(host, port, why) from None
        finally:
            signal.signal(signal.SIGTERM, before)
            logging.getLogger("uvicorn.error").removeFilter(why)
        if not server.started:
            raise _not_there(host, port, why)


class _Why(logging.Filter):
    """Takes what the server would log about a port that it cannot have: it is told once, by us."""

    said = ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is logged."""
        if isinstance(record.msg, OSError):
            self.said = record.msg.strerror or str(record.msg)
            return False
        return True


def _not_there(host: str, port: int, why: _Why) -> InvalidInput:
    said = f" ({why.said})" if why.said else ""
    return InvalidInput(f"{host} port {port} cannot be listened on{said}: name another one with --host or --port")


def _tell(server: Any, host: str, token: str | None, store: str, *, made: bool, browser: bool, as_json: bool) -> None:
    port = server.servers[0].sockets[0].getsockname()[1]
    name = "127.0.0.1" if _is_wildcard(host) else f"[{host}]" if ":" in host else host
    address = f"http://{name}:{port}/"
    # A token that was passed in is known to whoever passed it, and has no place in a log.
    shown = f"{address}?token={token}" if token and made else address
    if as_json:
        print_line(Serving(url=address, token=token if made else None, store=store))
    else:
        print(f"serving {store} at {shown}", file=sys.stderr, flush=True)
    if browser:
        import webbrowser

        webbrowser.open(f"{address}?token={token}" if token else address)


def _is_wildcard(host: str) -> bool:
    return host in ("", "0.0.0.0", "::", "[::]")


def schema(
    command: Annotated[
        str | None, typer.Argument(metavar="[COMMAND]", help="Which one; without it, all of them.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the JSON Schema of what a command prints with --json: JSON, with that option and without.

    Where a command prints one object a line, it is the schema of a line.
    """
    from perdure.cli.output import FOR_PEOPLE, OUTPUTS, schema_of

    del as_json  # It is JSON in any case; every command takes the option.
    if command is None:
        print_json({name: schema_of(name) for name in OUTPUTS})
    elif command in OUTPUTS:
        print_json(schema_of(command))
    else:
        why = FOR_PEOPLE.get(command, "there is no such command")
        raise NotFound(f"{command[:40]!r} prints no JSON: {why}; perdure schema lists all that do")
