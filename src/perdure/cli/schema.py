"""``perdure schema``: what commands print for programs, as JSON Schema."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.which_database import AsJson
from perdure.errors import NotFound


def schema(
    command: Annotated[
        str | None, typer.Argument(metavar="[COMMAND]", help="Which one; without it, all of them.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the JSON Schema of what a command prints with --json: JSON, with that option and without.

    Where a command prints one object a line, it is the schema of a line.
    """
    from perdure.cli.output import print_json
    from perdure.cli.outputs import FOR_PEOPLE, OUTPUTS, schema_of

    del as_json  # It is JSON in any case; every command takes the option.
    if command is None:
        print_json({name: schema_of(name) for name in OUTPUTS})
    elif command in OUTPUTS:
        print_json(schema_of(command))
    else:
        why = FOR_PEOPLE.get(command, "there is no such command")
        raise NotFound(f"{command[:40]!r} prints no JSON: {why}; perdure schema lists all that do")
