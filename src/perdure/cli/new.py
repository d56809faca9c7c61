"""``perdure new`` and ``perdure chat``: a first agent, and talking to one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from perdure.cli.which_database import AsJson, BlobsAt, Made
from perdure.errors import InvalidInput

FILES = {"app.py": "app.py", "README.md": "README.md", "gitignore": ".gitignore"}
"""What is written, and under which name."""
PLACEHOLDER = "myagent"


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name; a folder of this name is made.")],
    as_json: AsJson = False,
) -> None:
    """Write a first agent into a new folder; it runs at once, without a key."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,63}", name):
        raise InvalidInput(f"{name!r:.80} is no name: begin with a letter, then letters, digits, - and _")
    folder = Path(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"{name} exists already and is not empty: choose another name")
    folder.mkdir(exist_ok=True)
    source = Path(__file__).parent / "first_agent"
    for of, to in FILES.items():
        (folder / to).write_text((source / of).read_text("utf-8").replace(PLACEHOLDER, name), "utf-8")
    if as_json:
        from perdure.cli.output import print_json
        from perdure.shapes.machine import NewAgent

        print_json(NewAgent(folder=str(folder.resolve()), files=list(FILES.values()), agent="app"))
        return
    typer.echo(f"{name}/ has a first agent in it. Talk to it:\n\n    cd {name}\n    perdure chat app")


def chat(
    app: Annotated[str, typer.Argument(metavar="APP", help="A module or file, and a name in it: app, app.py:desk.")],
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="Which conversation; the agent's name if not said.")
    ] = None,
    store: Made = None,
    blobs: BlobsAt = None,
    owner: Annotated[str, typer.Option(metavar="NAME", help="Whose session it is.", show_default=False)] = "",
) -> None:
    """Talk to an agent. Stop or kill it at any moment: the same command goes on where it was."""
    from perdure.agent.app_loader import load_agent
    from perdure.cli.chat import Chat

    agent = load_agent(app)
    raise typer.Exit(Chat(agent, session or agent.name, owner).hold(store, blobs))
