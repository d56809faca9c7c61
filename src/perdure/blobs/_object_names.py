"""How the objects of a blob are named in a bucket, and what a listing of them says. Pure, no requests.

Below ``<first two digits>/<ref>/`` lie, for every generation of the content:

- ``<generation>``: the content itself. Its name, a time and random digits, is never used twice.
- ``<generation>.r<time>-<random>``: a renewal: at that time somebody put the same content again and relies on it.
- ``<generation>.x``: condemned: a collector is about to delete this generation, so nobody may rely on it any more.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

OWNER = "store"
"""The object that says whose blobs these are."""
_NAME = re.compile(
    r"(?P<shard>[0-9a-f]{2})/(?P<ref>(?P=shard)[0-9a-f]{62})/"
    r"(?P<generation>(?P<made>[0-9a-f]{12})-[0-9a-f]{16})(?:\.(?P<condemned>x)|\.r(?P<renewed>[0-9a-f]{12})-[0-9a-f]{8})?"
)


class Listed(NamedTuple):
    """One object as a listing shows it."""

    path: str
    size: int
    modified: int = 0
    """When it was written, by the server's clock, ms; many servers only know the second."""


class Generation(NamedTuple):
    """One upload of a content, with everything that was said about it since."""

    name: str
    path: str
    size: int | None
    """Of the content; None when only marks are left."""
    time: int
    """When it was last put or renewed, ms."""
    renewals: tuple[str, ...]
    """The paths of its renewals, oldest first."""
    condemned: bool
    age: int
    """How long before its mark it was last put or renewed, by the server's clock, ms; 0 without a mark."""

    @property
    def usable(self) -> bool:
        """Whether a writer may rely on it."""
        return self.size is not None and not self.condemned


def folder_of(ref: str) -> str:
    """Where all objects of a blob lie."""
    return f"{ref[:2]}/{ref}"


def new_generation(ref: str, now: int) -> str:
    """The path of a content that is about to be uploaded."""
    return f"{folder_of(ref)}/{_hex(now)}-{os.urandom(8).hex()}"


def renewal_of(path: str, now: int) -> str:
    """The path of a renewal. Random digits: two in one millisecond are two, and a collector notices each."""
    return f"{path}.r{_hex(now)}-{os.urandom(4).hex()}"


def mark_of(path: str) -> str:
    """The path of the mark that condemns a generation."""
    return f"{path}.x"


def _hex(now: int) -> str:
    return f"{max(0, now):012x}"


def generations(listed: Iterable[Listed]) -> dict[str, list[Generation]]:
    """What a listing says of each ref, the newest generation first; what is not ours is left out.

    >>> path = new_generation("ab" * 32, 1000)
    >>> [found] = generations([Listed(path, 5), Listed(renewal_of(path, 2000), 0)])["ab" * 32]
    >>> found.size, found.time, found.usable
    (5, 2000, True)
    """
    found: dict[tuple[str, str], _Parts] = {}
    for item in listed:
        if not (match := _NAME.fullmatch(item.path)):
            continue
        parts = found.setdefault((match["ref"], match["generation"]), _Parts(int(match["made"], 16)))
        if match["condemned"]:
            parts.condemned = item.modified
            continue
        parts.modified = max(parts.modified, item.modified)
        if match["renewed"]:
            parts.renewals.append(item.path)
            parts.time = max(parts.time, int(match["renewed"], 16))
        else:
            parts.size = item.size
    out: dict[str, list[Generation]] = {}
    for (ref, name), parts in sorted(found.items(), reverse=True):
        path = f"{folder_of(ref)}/{name}"
        # Renewals of one generation differ only in their time and random digits: their order is that of time.
        renewals = tuple(sorted(parts.renewals))
        condemned = parts.condemned is not None
        age = parts.condemned - parts.modified if parts.condemned is not None else 0
        out.setdefault(ref, []).append(Generation(name, path, parts.size, parts.time, renewals, condemned, age))
    return out


class _Parts:
    def __init__(self, made: int) -> None:
        self.size: int | None = None
        self.time = made
        self.renewals: list[str] = []
        self.modified = 0
        self.condemned: int | None = None
