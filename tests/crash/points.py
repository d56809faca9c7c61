"""The named points of the source, and which of them a campaign must have died at."""

from __future__ import annotations

import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "perdure"
_POINT = re.compile(r'faults\.point\(f?"([^"]+)"\)')

ELSEWHERE = ("memory.", "file.epoch.", "file.restore.", "{what}")
"""Points that no scenario here is about: the memory store survives nothing, and restoring is done into memory."""


def named_points(store: str) -> dict[str, re.Pattern[str]]:
    """All points that a process can pass which uses one kind of store: as written -> what it matches."""
    others = {"file": "sqlite.", "sqlite": "file."}[store]
    found: dict[str, re.Pattern[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for name in _POINT.findall(path.read_text("utf-8")):
            if name.startswith((others, *ELSEWHERE)):
                continue
            pattern = re.sub(r"\\\{\w+\\\}", r"[a-z_]+", re.escape(name))
            found[name] = re.compile(pattern)
    return found


def never_reached(store: str, reached: set[str]) -> list[str]:
    """Points of the source at which nothing was killed."""
    return [
        name for name, pattern in named_points(store).items() if not any(pattern.fullmatch(point) for point in reached)
    ]
