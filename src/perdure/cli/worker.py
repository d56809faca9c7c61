"""``perdure worker``: a process that runs the sessions of a program's agents until it is told to go."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.which_database import BlobsAt, Made
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from collections.abc import Generator

    from perdure.agent.agent import Agent
    from perdure.fleet.worker import Settings, Worker


def worker(
    app: Annotated[str, typer.Argument(metavar="APP", help="A module or file with agents in it: app, app.py:desk.")],
    store: Made = None,
    blobs: BlobsAt = None,
    concurrency: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="Sessions at once.")] = 20,
    lease: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.2, help="How long others wait when this worker falls silent.")
    ] = 10.0,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long steps may take to end once it is told to go.")
    ] = 25.0,
    per_owner: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Sessions of one owner at once, in the whole fleet.")
    ] = None,
    tries: Annotated[
        int, typer.Option(metavar="N", min=1, help="As often may a session fail at one place before it is parked.")
    ] = 10,
    version: Annotated[
        str, typer.Option(metavar="NAME", help="Names what this worker runs; made from its agents if not said.")
    ] = "",
    schema: Annotated[
        str, typer.Option(metavar="VERSION", help="The version of the state that APP writes, as for migrate.")
    ] = "1.0.0",
    metrics_port: Annotated[
        int | None, typer.Option(metavar="PORT", min=0, max=65535, help="Serve Prometheus metrics on this port.")
    ] = None,
    metrics_host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to serve them.")] = "127.0.0.1",
    log_json: Annotated[bool, typer.Option("--log-json", help="Log one JSON object a line.")] = False,
    direct: Annotated[
        str | None,
        typer.Option(
            "--direct-store",
            envvar="PERDURE_DIRECT_STORE",
            metavar="URL",
            help="PostgreSQL without a pooler in between, for notifications.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run the sessions of all agents in APP. Start as many as you like; stop them with SIGTERM, or any other way."""
    from perdure.agent.app_loader import load_agents
    from perdure.fleet.worker import Settings
    from perdure.telemetry.logs import configure

    configure(as_json=log_json)
    with _told(log_json):
        agents = load_agents(app)
        if metrics_port is not None:
            from perdure.telemetry.prometheus import serve

            serve(metrics_port, metrics_host)
        settings = Settings(concurrency, grace, per_owner, tries, version)
        asyncio.run(_work(agents, store, blobs, lease, settings, schema, direct))


@contextlib.contextmanager
def _told(as_json: bool) -> Generator[None]:
    """Where the log is read by a program, an error that ends the worker is a line of it like any other."""
    log = logging.getLogger("perdure.fleet")
    try:
        yield
    except PerdureError as error:
        if not as_json:
            raise
        from perdure.cli.program import exit_code

        log.error("%s", error, extra={"error": type(error).__name__})
        raise typer.Exit(exit_code(error)) from None
    except Exception:
        if not as_json:
            raise
        log.critical("the worker has ended for a reason that nobody foresaw", exc_info=True)
        raise typer.Exit(1) from None


async def _work(
    agents: list[Agent], store: str | None, blobs: str | None, lease: float, settings: Settings, schema: str,
    direct: str | None,
) -> None:  # fmt: skip
    from perdure.fleet.worker import start_worker

    begun: list[Worker] = []

    def ready(worker: Worker) -> None:
        begun.append(worker)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.stop)
        names = ", ".join(sorted(worker.agents))
        logging.getLogger("perdure.fleet").info("worker %s serves %s on %s", worker.id, names, worker.db.url)

    await start_worker(agents, store, settings, blobs=blobs, lease=lease, schema=schema, direct=direct, ready=ready)
    if any(worker.is_held_up() for worker in begun):
        # Python would wait for it, however long it takes: it was cancelled, and others may be at it already.
        logging.getLogger("perdure.fleet").warning("a tool does not end by itself: it ends with this process")
        logging.shutdown()
        os._exit(0)
