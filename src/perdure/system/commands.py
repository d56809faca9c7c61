"""What people are told to type: commands that go to the database that this process was told to use.

Whoever names a database with ``--store`` gets it in every command that is suggested to him, and so does whoever asks
in a program that has opened one; otherwise it would be done to another one. What comes from the environment is there
again; what was found in the folder every command finds again.
"""

from __future__ import annotations

import os
import re
import shlex
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote
from weakref import WeakKeyDictionary

from perdure import errors
from perdure.system.urls import TIERED, is_one_place, shown
from perdure.system.wording import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_named: dict[str, str] = {}
"""By option: what the command line of this process said."""
WITNESSED = (
    "fork", "rewind", "merge", "tag", "approve", "reject", "answer", "resolve", "post", "outcome", "wake", "inbox",
    "chat", "run", "resume", "cancel", "worker", "submit", "import", "sweep", "revive", "prune", "migrate", "serve",
    "console",
)  # fmt: skip
"""Commands that write sessions: they take a witness."""
WITNESS = "--witness"
DEFAULT_PATH = os.path.join(".perdure", "agents.db")
"""Where agents live when nothing is said."""


def name(option: str, value: str) -> None:
    """An option that names where something is was given on the command line."""
    # What is suggested is printed and copied: a password is not.
    _named[option] = _safe(value)


def _safe(place: str) -> str:
    """A URL without its secrets; a path as it is."""
    return shown(place) if "://" in place or place.startswith(TIERED) else place


_commands: list[str] = []
_open: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""By whoever opened one: the databases that are open in this process, or about to be."""


_about: ContextVar[str] = ContextVar("perdure_about", default="")
_http: ContextVar[bool] = ContextVar("perdure_http", default=False)
Door = Literal["shell", "http", "program"]


def begin() -> None:
    """This process runs a command: it knows its database as whoever typed it does."""
    _commands.append("")


def asked_by_http() -> None:
    """What this task does is asked for by a request of the HTTP API, and whoever sent it reads its errors."""
    _http.set(True)


def door() -> Door:
    """Who reads what is said now, and so in which words he is told what to do."""
    return "http" if _http.get() else "shell" if _commands else "program"


def forget() -> None:
    """The command has ended: whatever comes in this process has named nothing."""
    _named.clear()
    _commands.clear()


def opened(by: object, url: str) -> None:
    """A program opens a database; one in memory no command can look at."""
    if not url.startswith("memory:"):
        _open[by] = _safe(url)


def closed(by: object) -> None:
    """And closes it."""
    _open.pop(by, None)


_WORD = re.compile(r"""(?:\$'(?:\\.|[^'\\])*'|'[^']*'|"[^"]*"|\S)+""", re.DOTALL)
"""A word of a command as it is typed, with its quotes."""


def quoted(word: str) -> str:
    r"""How a word is typed in a shell; what a terminal would not show is spelled out, so that it can be copied.

    One that begins like an option is in quotes: a shell does not care, and :func:`typed` knows by them that it is none.

    >>> quoted("t"), quoted("my trip"), quoted("it's\n"), quoted("-x")
    ('t', "'my trip'", "$'it\\'s\\012'", "'-x'")
    """
    if visible(word, lambda _: "") == word:
        found = shlex.quote(word)
        return f"'{found}'" if found.startswith("-") else found
    spelled = visible(re.sub(r"(['\\])", r"\\\1", word), lambda c: "".join(f"\\{b:03o}" for b in c.encode()))
    return f"$'{spelled}'"


@contextmanager
def about(url: str) -> Generator[None]:
    """What is said here is of this database, whichever others the program has open."""
    before = _about.set(url)
    try:
        yield
    finally:
        _about.reset(before)


def typed(words: str, url: str = "") -> str:
    """How a command is typed: its name, what it is about, each word :func:`quoted`, and then its options.

    What it is about may begin like an option; then it comes last, after a ``--``, behind which there are no options.
    Who reads what a program says is told its database, unless every command finds that: ``url``, or the one that is
    open.

    >>> typed("why t"), typed("approve '-x' ap_1 --edit ARGUMENTS")
    ('perdure why t', "perdure approve --edit ARGUMENTS -- '-x' ap_1")
    >>> opened(typed, "sqlite:///x.db")
    >>> typed("verify --all"), typed("why t", "sqlite:///y.db")
    ('perdure verify --all --store sqlite:///x.db', 'perdure why t --store sqlite:///y.db')
    >>> closed(typed)
    """
    command, *rest = _WORD.findall(words)
    told = {option: value for option, value in _named.items() if option != WITNESS or command in WITNESSED}
    if not _commands and (store := _database(url or _about.get())):
        told = {"--store": store, **told}
    first = next((at for at, word in enumerate(rest) if word.startswith("-")), len(rest))
    subject, options = rest[:first], rest[first:]
    options += [f"{option} {quoted(value)}" for option, value in told.items()]
    if any(word.startswith(("'-", "$'-")) for word in subject):
        return " ".join(("perdure", command, *options, "--", *subject))
    return " ".join(("perdure", command, *subject, *options))


def asks_why(session: str, url: str = "") -> str:
    """How whoever reads this asks why a session stands where it stands.

    >>> asks_why("t")
    'perdure why t'
    """
    if door() == "http":
        return f"GET /api/v1/sessions/{quote(session, safe='')}/why"
    return typed(f"why {quoted(session)}", url)


def _database(url: str) -> str:
    """What a program's reader has to name; "" where every command finds it, and where none could look at it."""
    urls = {url} if url else set(_open.values())
    if len(urls) > 1:
        # Of several nobody can say here which one is meant.
        return "URL"
    url = _safe(urls.pop()) if urls else ""
    found = _safe(os.environ.get("PERDURE_STORE") or DEFAULT_PATH)
    return "" if url.startswith("memory:") or is_one_place(url, found) else url


def _say_again(key: str, program: Callable[[str], str] = errors.say_again) -> str:
    match door():
        case "shell":
            return f"say it again with --key {quoted(key)} to get its answer"
        case "http":
            return f"send it again with the key {key!r} to get its answer"
        case "program":
            return program(key)


def _when_busy(session: str, program: Callable[[str], str] = errors.when_busy) -> str:
    match door():
        case "shell":
            leave, look = typed(f"post {quoted(session)} MESSAGE"), typed(f"show {quoted(session)}")
            return f"try again when that has ended, or leave a message ({leave}), or look at it ({look})"
        case "http":
            return "try again when that has ended, or send it a message, which waits in its inbox"
        case "program":
            return program(session)


def _when_own(session: str, program: Callable[[str], str] = errors.when_own) -> str:
    return program(session) if door() == "program" else _when_busy(session)


errors.suggested = typed
errors.say_again = _say_again
errors.when_busy = _when_busy
errors.when_own = _when_own
