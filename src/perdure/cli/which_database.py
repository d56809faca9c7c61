"""Which database a command means, and opening it; only commands that run agents make one that is not there."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.errors import InvalidInput, Misuse, Unavailable
from perdure.stores import DEFAULT_PATH as DEFAULT
from perdure.system.urls import TIERED, only_existing, path_of

if TYPE_CHECKING:
    from perdure.aio import AsyncDatabase
    from perdure.database import Database

ENDINGS = (".db", ".sqlite", ".sqlite3")
MAKERS = "perdure run, chat, worker and serve"
"""The commands that make a database where there is none."""
_MAGIC = b"SQLite format 3\0"
_OURS = b"PRDR"


_witness: list[str] = []
"""The witness that this command was told to use."""


def use_witness(path: str) -> None:
    """Whatever is opened from now on has this witness."""
    _witness[:] = [path] if path else []


def witness() -> str | None:
    """The witness of what is opened to be written; None when there is none."""
    return _witness[0] if _witness else None


class NoDatabase(Unavailable):
    """There is no database where one was looked for; none was made."""


def find_url(given: str | None) -> str:
    """The URL of an existing database."""
    if given:
        return _existing(given)
    if os.path.exists(DEFAULT):
        return _existing(DEFAULT)
    found = sorted(_candidates(Path()))
    if len(found) == 1:
        return _existing(found[0])
    if found:
        shown = ", ".join(found[:5])
        raise InvalidInput(f"there are several databases here ({shown}): choose one with --store or PERDURE_STORE")
    raise NoDatabase(
        f"there is no database here ({DEFAULT} does not exist): name one with --store or PERDURE_STORE, or have "
        f"{MAKERS} make one"
    )


def find_or_default(given: str | None) -> str:
    """The same database for commands that may make one: where none is named and none is there, the default one."""
    if given:
        return given
    try:
        return find_url(None)
    except NoDatabase:
        return DEFAULT


def find_or_new(given: str | None) -> str:
    """The same for a program that is started together with those that make one; what is no database is refused."""
    try:
        return find_url(given)
    except NoDatabase:
        return find_or_default(given)


def open_or_make_async(given: str | None, blobs: str | None = None) -> AsyncDatabase:
    """Open the database that is meant; a new one that nobody named is told, for it could be meant to lie elsewhere."""
    import perdure

    url = find_or_default(given)
    new = not given and not os.path.exists(url.removeprefix("file://"))
    db = perdure.open_async(url, blobs=blobs or None, witness=witness())
    if new:
        print(f"perdure: there was no database here: {url} was made", file=sys.stderr)
    return db


def open_existing(given: str | None, blobs: str | None = None, *, maintain: bool = False, **options: Any) -> Database:
    """Open an existing database; commands that only look leave its upkeep to the programs that write it."""
    import perdure

    url = find_url(given)
    return perdure.open(url, maintain=maintain, blobs=blobs or None, witness=witness(), **only_existing(url), **options)


def open_existing_async(given: str | None, blobs: str | None = None, *, maintain: bool = False) -> AsyncDatabase:
    """The same, awaited."""
    import perdure

    url = find_url(given)
    return perdure.open_async(url, maintain=maintain, blobs=blobs or None, witness=witness(), **only_existing(url))


def _existing(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if separator and scheme == "memory":
        raise InvalidInput("memory:// lives inside one process: a command has nothing to look at in it")
    if url.startswith(TIERED):
        return url
    path = path_of(url)
    if not separator and os.path.isdir(path):
        url, scheme = f"file://{os.path.abspath(path)}", "file"
    if not separator and scheme != "file" and not path.endswith(ENDINGS) and os.path.exists(path):
        raise InvalidInput(f"{path} names no database: the name of an SQLite database ends in {', '.join(ENDINGS)}")
    if scheme == "file":
        if not os.path.exists(os.path.join(path, "perdure.json")):
            raise NoDatabase(
                f"there is no database in the folder {path}: nothing was made; {_who_makes(path, folder=True)}"
            )
    elif path and not os.path.isdir(path):
        if not os.path.exists(path):
            raise NoDatabase(f"there is no database {path}: nothing was made; {_who_makes(path)}")
        if not os.path.getsize(path):
            raise NoDatabase(f"{path} is empty: no program has written to it yet")
    return url


def _who_makes(path: str, *, folder: bool = False) -> str:
    """Who makes a database there, or why nobody does: as those commands say it."""
    above = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(above) and not folder:
        return f"correct the path, or make the folder {above} first"
    if folder and os.path.isdir(path) and (foreign := sorted(os.listdir(path))):
        return f"it is not empty ({foreign[0]!r:.80} is in it): name a folder that is"
    return f"{MAKERS} make one"


def _candidates(folder: Path) -> list[str]:
    """The databases of ours in a folder, by their first bytes."""
    found = [str(path.parent) for path in folder.glob("*/perdure.json")]
    return found + [str(path) for path in folder.iterdir() if path.name.endswith(ENDINGS) and _is_ours(path)]


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            header = file.read(100)
        if not header.startswith(_MAGIC):
            return False
        if header[68:72] == _OURS:
            return True
        # Young databases have their first page in the log only.
        with path.with_name(path.name + "-wal").open("rb") as file:
            return _OURS in file.read(1 << 16)
    except Misuse:
        return True  # it is open in this very process, as one of ours
    except OSError:
        return False
