"""What people are told to type: commands that go to the database that this process was told to use.

Whoever names a database with ``--store`` gets it in every command that is suggested to him; otherwise it would be done
to another one. What comes from the environment is there again; what was found in the folder most commands find again.
"""

from __future__ import annotations

import shlex

from perdure.system.urls import TIERED, shown

_named: dict[str, str] = {}
"""By option: what the command line of this process said."""
_found: dict[str, str] = {}
"""The same of what nobody said and was found in the folder."""
WITNESSED = (
    "fork", "rewind", "merge", "tag", "approve", "reject", "answer", "resolve", "post", "outcome", "wake", "chat",
    "run", "resume", "cancel", "worker", "submit", "import", "sweep", "revive", "prune", "migrate", "serve", "console",
)  # fmt: skip
"""Commands that write sessions: they take a witness."""
WITNESS = "--witness"
MAKERS = ("chat", "run", "worker")
"""Commands that make a database where there is none at the default place, and look for no other."""


def name(option: str, value: str) -> None:
    """An option that names where something is was given on the command line."""
    # What is suggested is printed and copied: a password is not.
    _named[option] = shown(value) if "://" in value or value.startswith(TIERED) else value


def found(path: str) -> None:
    """Nobody named a database, and this is the only one in the folder."""
    _found["--store"] = path


def forget() -> None:
    """The command has ended: whatever comes in this process has named nothing."""
    _named.clear()
    _found.clear()


def typed(words: str) -> str:
    """How a command is typed.

    >>> typed("why t")
    'perdure why t'
    """
    command = words.partition(" ")[0]
    options = {**_found, **_named} if command in MAKERS else _named
    told = {option: value for option, value in options.items() if option != WITNESS or command in WITNESSED}
    return " ".join((f"perdure {words}", *(f"{option} {shlex.quote(value)}" for option, value in told.items())))
