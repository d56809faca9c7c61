"""``perdure demo`` and ``perdure bench``: seeing it work, and measuring it."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.options import AsJson
from perdure.cli.output import print_json
from perdure.shapes.machine import Demo


def demo(
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Play it there: sqlite:///night.db, postgresql://... Default: an SQLite file, removed afterwards.",
        ),
    ] = None,
    sessions: Annotated[int, typer.Option(metavar="N", min=1, max=9999, help="Conversations.")] = 847,
    kills: Annotated[int, typer.Option(metavar="N", min=0, max=1000, help="Workers that are killed in mid-step.")] = 40,
    seed: Annotated[int, typer.Option(metavar="N", help="Chooses conversations, moments and victims.")] = 847,
    workers: Annotated[int, typer.Option(metavar="N", min=1, max=64, help="Worker processes.")] = 4,
    factor: Annotated[
        float, typer.Option(metavar="X", min=0.01, max=100, help="The model takes 300 ms and more, times this.")
    ] = 1.0,
    as_json: AsJson = False,
    no_live: Annotated[bool, typer.Option("--no-live", help="Lines on stderr instead of a live picture.")] = False,
) -> None:
    """Black Friday, 2:47 in the morning: kill the workers of 847 conversations; nothing is lost or paid twice."""
    from perdure.demo.run import Wish, play

    report = play(Wish(store, sessions, kills, seed, workers, factor), live=not no_live)
    if as_json:
        print_json(Demo(**report))
    else:
        from rich.console import Console

        from perdure.demo.report import show

        show(report, Console(highlight=False))
    if not report["ok"]:
        raise typer.Exit(1)


def bench(ctx: typer.Context) -> None:
    """Measure this machine: perdure bench kernel --json."""
    from perdure.bench import main

    raise typer.Exit(main(ctx.args))
