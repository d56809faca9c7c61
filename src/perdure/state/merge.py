"""Comparing two states and bringing two branches together. Pure: works on plain documents."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Values are any JSON here: their types are looked at, not declared.
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from perdure.errors import InvalidInput, format_path
from perdure.state.delta import APPEND, DEL, SET, diff
from perdure.state.values import BlobRef, same

if TYPE_CHECKING:
    from collections.abc import Callable

_GONE: Any = object()


class Difference(NamedTuple):
    """One place where two states differ."""

    path: tuple[str | int, ...]
    kind: str
    """added, removed or changed"""
    before: Any
    after: Any

    def __str__(self) -> str:
        sign = {"added": "+", "removed": "-"}.get(self.kind, "~")
        return f"{sign} {format_path(self.path)}"


class Clash(NamedTuple):
    """One place that both sides changed, each in its own way; a missing value is None."""

    path: tuple[str | int, ...]
    base: Any
    ours: Any
    theirs: Any

    def __str__(self) -> str:
        return format_path(self.path)


def differences(old: Any, new: Any) -> list[Difference]:
    """Where two plain values differ, in reading order.

    >>> [str(d) for d in differences({"a": 1, "m": [1]}, {"a": 2, "m": [1, 2]})]
    ['~ state.a', '+ state.m[1]']
    """
    found: list[Difference] = []
    for op in diff(old, new):
        code, path = op[0], tuple(cast("list[str | int]", op[1]))
        if code == DEL:
            found.append(Difference(path, "removed", _at(old, path), None))
        elif code == SET:
            before = _at(old, path)
            kind = "added" if before is _GONE else "changed"
            found.append(Difference(path, kind, None if before is _GONE else before, op[2]))
        elif code == APPEND:
            size = len(_at(old, path))
            found.extend(Difference((*path, size + i), "added", None, v) for i, v in enumerate(op[2]))
        else:
            target = _at(old, path)
            start, gone = cast("int", op[2]), cast("int", op[3])
            found.extend(Difference((*path, start + i), "removed", target[start + i], None) for i in range(gone))
            found.extend(Difference((*path, start + i), "added", None, v) for i, v in enumerate(op[4]))
    return found


def _at(value: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        try:
            value = value[part]
        except (LookupError, TypeError):
            return _GONE
    return value


def merge(base: Any, ours: Any, theirs: Any, prefer: str | Callable[[Clash], Any] | None) -> tuple[Any, list[Clash]]:
    """The three-way merge of plain values and the places left in conflict.

    ``prefer`` settles conflicts: "ours", "theirs", "both" (two lists that were only appended to: ours, then
    theirs), or a function of the :class:`Clash` that answers the value.
    """
    if isinstance(prefer, str) and prefer not in ("ours", "theirs", "both"):
        raise InvalidInput(f'prefer is "ours", "theirs", "both" or a function, not {prefer!r:.40}')
    clashes: list[Clash] = []
    return _merge(base, ours, theirs, (), prefer, clashes), clashes


def _merge(base: Any, ours: Any, theirs: Any, path: tuple[str | int, ...], prefer: Any, clashes: list[Clash]) -> Any:
    if _same(ours, theirs) or _same(base, theirs):
        return ours
    if _same(base, ours):
        return theirs
    if isinstance(ours, dict) and isinstance(theirs, dict) and (base is _GONE or isinstance(base, dict)):
        return _merge_objects({} if base is _GONE else base, ours, theirs, path, prefer, clashes)
    if isinstance(ours, list) and isinstance(theirs, list) and isinstance(base, list):
        settled = _merge_lists(base, ours, theirs, path, prefer, clashes)
        if settled is not None:
            return settled
    clash = Clash(path, *(None if v is _GONE else v for v in (base, ours, theirs)))
    if callable(prefer):
        return prefer(clash)
    if prefer in ("ours", "theirs"):
        return ours if prefer == "ours" else theirs
    clashes.append(clash)
    return ours


def _merge_objects(
    base: dict[str, Any], ours: dict[str, Any], theirs: dict[str, Any], path: Any, prefer: Any, clashes: list[Clash]
) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for k in [*ours, *(k for k in theirs if k not in ours)]:
        b, o, t = (d.get(k, _GONE) for d in (base, ours, theirs))
        merged = _merge(b, o, t, (*path, k), prefer, clashes)
        if merged is not _GONE:
            out[k] = merged
    return out


def _merge_lists(
    base: list[Any], ours: list[Any], theirs: list[Any], path: Any, prefer: Any, clashes: list[Clash]
) -> list[Any] | None:
    """Lists of one length are merged item by item; lists that both grew at the end only with "both"."""
    n = len(base)
    if len(ours) == len(theirs) == n:
        triples = zip(base, ours, theirs, strict=True)
        return [_merge(b, o, t, (*path, i), prefer, clashes) for i, (b, o, t) in enumerate(triples)]
    if prefer == "both" and same(ours[:n], base) and same(theirs[:n], base):
        return [*ours, *theirs[n:]]
    return None


def _same(a: Any, b: Any) -> bool:
    if a is _GONE or b is _GONE:
        return a is b
    if isinstance(a, BlobRef) and isinstance(b, BlobRef):
        return a == b
    return same(a, b)
