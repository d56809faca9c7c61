"""What people are told to type: commands that go to the database that this process was told to use.

Whoever names a database with ``--store`` gets it in every command that is suggested to him; otherwise it would be done
to another one. What comes from the environment, or is found in the folder, is found again.
"""

from __future__ import annotations

import shlex

from perdure.system.urls import TIERED, shown

_named: dict[str, str] = {}
"""By option: what the command line of this process said."""


def name(option: str, value: str) -> None:
    """An option that names where something is was given on the command line."""
    # What is suggested is printed and copied: a password is not.
    _named[option] = shown(value) if "://" in value or value.startswith(TIERED) else value


def forget() -> None:
    """Another command begins: nothing was named yet."""
    _named.clear()


def typed(words: str) -> str:
    """How a command is typed.

    >>> typed("why t")
    'perdure why t'
    """
    return " ".join((f"perdure {words}", *(f"{option} {shlex.quote(value)}" for option, value in _named.items())))
