"""The files of the store itself, onto which nothing else may be written: neither a witness nor a backup."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from perdure.blobs.local import LocalBlobs
from perdure.errors import InvalidInput
from perdure.system.urls import TIERED, path_of, tiers

if TYPE_CHECKING:
    from perdure.kernel import Kernel

BESIDE = ("", "-wal", "-shm", "-journal", "-blobs", "-live")
"""What an embedded store's path ends in to name its files and folders."""


def check_apart(kernel: Kernel, path: str | os.PathLike[str], what: str) -> None:
    """Refuse a file that is the store itself, or lies in it: to write the one would be to destroy the other.

    Files are known by what they are, not by what they are called: through a link, too.
    """
    url = kernel.store.url
    store = path_of(tiers(url)[1] if url.startswith(TIERED) else url)
    parts = [os.path.realpath(store) + ending for ending in BESIDE] if store else []
    if isinstance(kernel.blobs, LocalBlobs):
        parts.append(kernel.blobs.folder)
    where = os.path.realpath(path)
    for part in map(os.path.realpath, parts):
        linked = os.path.exists(where) and os.path.exists(part) and os.path.samefile(where, part)
        if linked or where == part or where.startswith(part + os.sep):
            raise InvalidInput(
                f"the {what} {os.fspath(path)} belongs to the store {url} itself: name a file of its own, best on "
                "another disk. Nothing was written to it"
            )
