"""The named points of the source, and which of them a campaign must have died at."""

from __future__ import annotations

import re
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "src" / "perdure"
_POINT = re.compile(r'faults\.point\(f?"([^"]+)"\)')

ELSEWHERE = re.compile(r"memory\.|copy\.|agent\.|call\.after_claimed|\w+\.(epoch|restore)\.|\{what\}")
"""Points that no scenario here is about: the memory store survives nothing, restoring is done into memory, copying is
killed by tests of its own (``tests/upkeep/test_copy_killed.py``), so are calls that sessions share
(``tests/session/test_shared_claims.py``), and there is no agent here."""
BACKENDS = {
    "file": ("stores/file", "blobs/local"),
    "sqlite": ("stores/sqlite", "blobs/local"),
    "postgres": ("stores/postgres", "blobs/postgres", "links/postgres"),
    "redis": ("stores/redis", "blobs/redis", "links/redis"),
    "tiered": ("stores/tiered", "stores/postgres", "blobs/postgres", "links/postgres"),
}
"""The modules of each kind of store."""


def _passed_by(store: str, path: Path, *, own: bool) -> bool:
    room = path.relative_to(SOURCE).as_posix()
    if not room.startswith(("stores/", "blobs/", "links/")):
        return not own
    return room.startswith(BACKENDS[store])


def named_points(store: str, *, own: bool = False) -> dict[str, re.Pattern[str]]:
    """All points that a process can pass which uses one kind of store: as written -> what it matches.

    ``own`` means only those in the modules of that store.
    """
    found: dict[str, re.Pattern[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if not _passed_by(store, path, own=own):
            continue
        for name in _POINT.findall(path.read_text("utf-8")):
            if ELSEWHERE.match(name):
                continue
            pattern = re.sub(r"\\\{\w+\\\}", r"[a-z_]+", re.escape(name))
            found[name] = re.compile(pattern)
    return found


def never_reached(store: str, reached: set[str], *, own: bool = False) -> list[str]:
    """Points of the source at which nothing was killed."""
    wanted = named_points(store, own=own).items()
    return [name for name, pattern in wanted if not any(pattern.fullmatch(point) for point in reached)]
