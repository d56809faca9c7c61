"""The rules of a three-way merge, written down once more for the model."""

from __future__ import annotations

from typing import Any

from tests.campaigns.model.documents import exact

ABSENT = object()


def merged(base: Any, ours: Any, theirs: Any, prefer: str | None) -> tuple[Any, list[tuple[str | int, ...]]]:
    """The merged value and the paths that are left in conflict."""
    clashes: list[tuple[str | int, ...]] = []
    return _value(base, ours, theirs, prefer, (), clashes), clashes


def equal(a: Any, b: Any) -> bool:
    """The order of keys is no difference worth a conflict, the type of a number is."""
    if a is ABSENT or b is ABSENT:
        return a is b
    return exact(_sorted(a)) == exact(_sorted(b))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def _value(
    base: Any, ours: Any, theirs: Any, prefer: str | None, path: tuple[str | int, ...], clashes: list[Any]
) -> Any:
    if equal(theirs, base) or equal(theirs, ours):
        return ours
    if equal(ours, base):
        return theirs
    start = {} if base is ABSENT else base
    if isinstance(start, dict) and isinstance(ours, dict) and isinstance(theirs, dict):
        keys = list(dict.fromkeys([*ours, *theirs]))
        out = {
            k: _value(start.get(k, ABSENT), ours.get(k, ABSENT), theirs.get(k, ABSENT), prefer, (*path, k), clashes)
            for k in keys
        }
        return {k: v for k, v in out.items() if v is not ABSENT}
    if all(isinstance(v, list) for v in (base, ours, theirs)):
        if len(base) == len(ours) == len(theirs):
            return [_value(base[i], ours[i], theirs[i], prefer, (*path, i), clashes) for i in range(len(base))]
        size = len(base)
        if prefer == "both" and equal(ours[:size], base) and equal(theirs[:size], base):
            return [*ours, *theirs[size:]]
    if prefer in ("ours", "theirs"):
        return ours if prefer == "ours" else theirs
    clashes.append(path)
    return ours
