"""A state as a tree that can be folded: every value a node, cut where it is long, deep or large."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from perdure.system import wording

if TYPE_CHECKING:
    from collections.abc import Iterable

MANY = 60
"""Items of one container that are shown."""
DEEP = 16
BUDGET = 1500
"""Nodes of one tree."""
LONG = 600
OPEN_UNDER = 7
"""A container with fewer items is shown unfolded near the root."""


class Node(NamedTuple):
    """One value."""

    name: str
    kind: str
    """object, list, text, number, word (true, false, null) or data"""
    words: str
    children: tuple[Node, ...] = ()
    open: bool = False
    left_out: int = 0
    """Items that are not shown."""


def tree_of(value: Any, name: str = "state") -> Node:
    """A plain or tracked value as nodes.

    >>> node = tree_of({"vars": {"n": 1}, "messages": []})
    >>> [(c.name, c.words) for c in node.children]
    [('vars', '1 item'), ('messages', 'empty')]
    """
    return _Builder().node(value, name, 0)


class _Builder:
    def __init__(self) -> None:
        self._left = BUDGET

    def node(self, value: Any, name: str, depth: int) -> Node:
        self._left -= 1
        if isinstance(value, dict):
            named = cast("dict[str, Any]", value)
            return self._container(named.items(), len(named), "object", name, depth)
        if isinstance(value, list):
            held = cast("list[Any]", value)
            # The end of a list is what happened last.
            numbered = ((str(i), held[i]) for i in range(max(0, len(held) - MANY), len(held)))
            return self._container(numbered, len(held), "list", name, depth)
        return Node(name, *_scalar(value))

    def _container(self, items: Iterable[tuple[str, Any]], count: int, kind: str, name: str, depth: int) -> Node:
        words = wording.count(count, "item") if count else "empty"
        if depth >= DEEP or self._left <= 0:
            return Node(name, kind, words, left_out=count)
        children: list[Node] = []
        for key, value in items:
            if len(children) >= MANY or self._left <= 0:
                break
            children.append(self.node(value, key, depth + 1))
        unfolded = depth == 0 or (depth <= 2 and 0 < count < OPEN_UNDER and kind == "object")
        return Node(name, kind, words, tuple(children), unfolded, count - len(children))


def _scalar(value: Any) -> tuple[str, str]:
    if isinstance(value, str):
        cut = value if len(value) <= LONG else f"{value[:LONG]}… ({len(value):,} characters)"
        return "text", cut
    kind = "data" if isinstance(value, bytes) else "word" if value is None or isinstance(value, bool) else "number"
    return kind, wording.described(value) or wording.as_json(value)
