"""Arguments and options that several commands have, each declared once."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.system import commands


def _named(ctx: typer.Context, param: typer.CallbackParam, value: str | None) -> str | None:
    """What was said on the command line is in every command that is suggested."""
    source = ctx.get_parameter_source(param.name) if value and param.name else None
    if value and source is not None and source.name == "COMMANDLINE":
        commands.name(param.opts[0], value)
    return value


Session = Annotated[str, typer.Argument(metavar="SESSION")]
Sessions = Annotated[list[str] | None, typer.Argument(metavar="[SESSION]...", help="Which; or say it by options.")]
Place = Annotated[str, typer.Argument(metavar="SESSION[@PLACE]", help="PLACE: a step, tag, branch or id.")]
App = Annotated[
    str,
    typer.Argument(
        metavar="APP",
        help="A module or file, and a name in it: app, app.py:desk. Without one: the session's own agent, or `agent`.",
    ),
]
Message = Annotated[str, typer.Argument(metavar="[MESSAGE]", help="What is said to the agent.")]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        callback=_named,
        envvar="PERDURE_STORE",
        metavar="URL",
        help="The database: sqlite:///agents.db, file:///folder or a path. "
        "Default: .perdure/agents.db, or the only database in this folder.",
    ),
]
Made = Annotated[
    str | None,
    typer.Option(
        "--store",
        callback=_named,
        envvar="PERDURE_STORE",
        metavar="URL",
        help="The database, made if it is not there: sqlite:///agents.db, file:///folder or a path. "
        "Default: .perdure/agents.db, or the only database in this folder.",
    ),
]
BlobsAt = Annotated[
    str | None,
    typer.Option(
        "--blobs",
        callback=_named,
        envvar="PERDURE_BLOBS",
        metavar="URL",
        help="Where its blobs are, if not beside it or in it: s3://bucket/prefix, gs://, az:// or file:///folder.",
    ),
]
Witness = Annotated[
    str | None,
    typer.Option(
        "--witness",
        callback=_named,
        envvar="PERDURE_WITNESS",
        metavar="FILE",
        help="A file outside the store that is told of every commit: a store that lacks what it saw is not written. "
        "Made if it is not there.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Owner = Annotated[str, typer.Option(metavar="NAME", help="Whose session it is.", show_default=False)]
MessageKey = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="Makes it safe to repeat: the message is put there once.")
]
Again = Annotated[
    bool, typer.Option("--again", help="Say it once more, although the same message is there and not answered yet.")
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait", metavar="SECONDS", min=0, help="While another process has the session: wait for it so long."
    ),
]
Reopen = Annotated[bool, typer.Option("--reopen", help="Go on with it although it was closed.")]
By = Annotated[str | None, typer.Option(metavar="NAME", help="Who decides; your user name if not said.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; it is recorded.", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say which sessions are meant, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking first.")]
