"""``perdure demo`` and ``perdure bench``: seeing it work, and measuring it."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.opening import AsJson


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("demo")(demo)
    # What follows `bench` is read by the benchmarks themselves, --help included.
    free = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("bench", context_settings=free, add_help_option=False)(bench)


def demo(
    kills: Annotated[int, typer.Option(metavar="N", min=1, max=100, help="How often the agent is killed.")] = 6,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Chooses the moments; random if not given.", show_default=False)
    ] = None,
    keep: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Leave the databases in this new folder.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Kill an agent with SIGKILL at the worst moments: nothing is lost or paid twice."""
    from perdure.cli.demo.play import play

    if not play(kills=kills, seed=seed, keep=keep, as_json=as_json):
        raise typer.Exit(1)


def bench(ctx: typer.Context) -> None:
    """Measure this machine: perdure bench kernel --json."""
    from perdure.bench import main

    raise typer.Exit(main(ctx.args))
