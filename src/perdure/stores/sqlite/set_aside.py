"""What was set aside beside a database when somebody took its files away: which files these are, and what they name."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING
from urllib.parse import quote

import apsw

from perdure.errors import PerdureError, Unavailable
from perdure.stores.sqlite.file import Damaged, cursor_of, names
from perdure.stores.sqlite.own_locks import LOG_ASIDE, RESCUED

if TYPE_CHECKING:
    from collections.abc import Iterator

_ASIDE = re.compile(rf"(.+)({re.escape(LOG_ASIDE)}|{re.escape(RESCUED)})\d+-[0-9a-f]{{8}}", re.DOTALL)


def files(path: str, ending: str = "") -> list[str]:
    """Those beside a database, which nobody but you removes; of one kind, or of both."""
    folder, name = os.path.split(path)
    return [
        os.path.join(folder, found)
        for found in sorted(os.listdir(folder or "."))
        if (match := _ASIDE.fullmatch(found)) and match[1] == name and ending in ("", match[2])
    ]


def database_of(path: str) -> str:
    """The database that a file was set aside of, beside which its blobs are; another file is its own.

    >>> database_of("/data/agents.db.rescued-12-0a1b2c3d"), database_of("/data/agents.db")
    ('/data/agents.db', '/data/agents.db')
    """
    match = _ASIDE.fullmatch(path)
    return match[1] if match and not os.path.isdir(f"{path}-blobs") else path


def blob_refs(path: str) -> Iterator[str]:
    """Every blob that is named by a copy beside the database: it has not been brought back yet."""
    for file in files(path, RESCUED):
        try:
            yield from _refs(file)
        except (apsw.Error, Damaged, PerdureError) as error:
            raise Unavailable(
                f"{file}, in which commits were set aside, cannot be read ({error}), so nobody knows which blobs it "
                "names: bring back what is in it, or move it elsewhere. No blob was deleted"
            ) from error


def _refs(file: str) -> Iterator[str]:
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(f"file:{quote(file)}?mode=ro", flags=flags)
    try:
        for table in ("commits", "artifacts"):
            for (blobs,) in cursor_of(connection).execute(f"select blobs from {table} where blobs <> ''"):
                yield from names(blobs)
    finally:
        connection.close(True)
