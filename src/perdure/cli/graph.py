"""Drawing branches with a few characters. Pure: knows nothing of sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def draw(points: Sequence[tuple[str, str | None]]) -> list[tuple[int | None, str]]:
    """Lines of a picture for (id, parent) pairs, children before parents; (index of the point or None, line).

    >>> for i, line in draw([("d", "b"), ("c", "b"), ("b", "a"), ("a", None)]):
    ...     print(line)
    *
    | *
    |/
    *
    *
    """
    columns: list[str | None] = []
    """The id each column leads down to."""
    out: list[tuple[int | None, str]] = []
    for index, (id, parent) in enumerate(points):
        mine = [i for i, wanted in enumerate(columns) if wanted == id]
        for other in reversed(mine[1:]):
            out.append((None, _join(columns, mine[0], other)))
            columns[other] = None
        while columns and columns[-1] is None:
            columns.pop()
        if mine:
            at = mine[0]
        elif None in columns:
            at = columns.index(None)
        else:
            at = len(columns)
            columns.append(None)
        out.append((index, " ".join("*" if i == at else _bar(c) for i, c in enumerate(columns)).rstrip()))
        columns[at] = parent
    return out


def _bar(wanted: str | None) -> str:
    return " " if wanted is None else "|"


def _join(columns: Sequence[str | None], into: int, other: int) -> str:
    """A line on which column ``other`` runs into column ``into``."""
    cells = [_bar(c) for c in columns]
    cells[other] = " "
    line = list(" ".join(cells))
    for i in range(2 * into + 1, 2 * other - 1):
        if line[i] == " ":
            line[i] = "_"
    line[2 * other - 1] = "/"
    return "".join(line).rstrip()
