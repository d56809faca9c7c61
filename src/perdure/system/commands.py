"""What people are told to type: commands that go to the database that this process was told to use.

Whoever names a database with ``--store`` gets it in every command that is suggested to him; otherwise it would be done
to another one. What comes from the environment is there again; what was found in the folder every command finds again.
"""

from __future__ import annotations

import re
import shlex
from typing import Any
from weakref import WeakKeyDictionary

from perdure import errors
from perdure.system.urls import TIERED, shown
from perdure.system.wording import visible

_named: dict[str, str] = {}
"""By option: what the command line of this process said."""
WITNESSED = (
    "fork", "rewind", "merge", "tag", "approve", "reject", "answer", "resolve", "post", "outcome", "wake", "chat",
    "run", "resume", "cancel", "worker", "submit", "import", "sweep", "revive", "prune", "migrate", "serve", "console",
)  # fmt: skip
"""Commands that write sessions: they take a witness."""
WITNESS = "--witness"


def name(option: str, value: str) -> None:
    """An option that names where something is was given on the command line."""
    # What is suggested is printed and copied: a password is not.
    _named[option] = shown(value) if "://" in value or value.startswith(TIERED) else value


_commands: list[str] = []
_open: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""By whoever opened one: the databases that are open in this process, or about to be."""


def begin() -> None:
    """This process runs a command: it knows its database as whoever typed it does."""
    _commands.append("")


def forget() -> None:
    """The command has ended: whatever comes in this process has named nothing."""
    _named.clear()
    _commands.clear()


def opened(by: object, url: str) -> None:
    """A program opens a database; one in memory no command can look at."""
    if not url.startswith("memory:"):
        _open[by] = url


def closed(by: object) -> None:
    """And closes it."""
    _open.pop(by, None)


def quoted(word: str) -> str:
    r"""How a word is typed in a shell; what a terminal would not show is spelled out, so that it can be copied.

    >>> quoted("t"), quoted("my trip"), quoted("it's\n")
    ('t', "'my trip'", "$'it\\'s\\012'")
    """
    if visible(word, lambda _: "") == word:
        return shlex.quote(word)
    spelled = visible(re.sub(r"(['\\])", r"\\\1", word), lambda c: "".join(f"\\{b:03o}" for b in c.encode()))
    return f"$'{spelled}'"


def typed(words: str) -> str:
    """How a command is typed.

    >>> typed("why t")
    'perdure why t'
    """
    command = words.partition(" ")[0]
    told = {option: value for option, value in _named.items() if option != WITNESS or command in WITNESSED}
    return " ".join((f"perdure {words}", *(f"{option} {quoted(value)}" for option, value in told.items())))


def typed_by_anybody(words: str) -> str:
    """How a command is typed that an error suggests: who reads it knows nothing of the program's database.

    >>> typed_by_anybody("verify --all")
    'perdure verify --all'
    >>> opened(typed, "sqlite:///x.db")
    >>> typed_by_anybody("verify --all")
    'perdure verify --all --store sqlite:///x.db'
    >>> closed(typed)
    """
    # Of several nobody can say here which one is meant.
    urls = set(_open.values())
    store = urls.pop() if len(urls) == 1 else "URL" if urls else ""
    return typed(words) + ("" if _commands or not store else f" --store {quoted(store)}")


errors.suggested = typed_by_anybody
