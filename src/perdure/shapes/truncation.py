"""Values of any size as answers of bounded size: long texts and lists are cut, and it is said where and how much."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Values are any JSON here: their types are looked at, not declared.
from __future__ import annotations

import base64
from typing import Any, Literal, NamedTuple

from perdure.errors import InvalidInput, NotFound
from perdure.shapes.basics import Shape
from perdure.state.values import BYTES, STR, TREE, BlobRef

MAX_ANSWER = 1 << 20
"""About so many bytes of values are in one answer."""
TEXT = 16_384
"""Characters of a text inside a larger value."""
ITEMS = 500
"""Items of a list, or names of an object, inside a larger value."""
MOST_CUTS = 1000
LARGEST_BLOB = 8 << 20
"""Bytes of a value kept outside that are read to show its beginning."""


Kind = Literal["text", "list", "object", "bytes", "value"]


class Truncation(Shape):
    """A place where something was left out."""

    path: str
    """A JSON pointer (RFC 6901)."""
    kind: Kind
    size: int
    """Characters, items, names or bytes the whole has."""


class Window(NamedTuple):
    """What is shown of a value, and of which part of it."""

    kind: Kind
    size: int
    """Characters, items, names or bytes the whole has; 1 for anything else."""
    offset: int
    value: Any
    truncated: list[Truncation]


def bounded(
    value: Any, budget: int | None = MAX_ANSWER, path: str = "", *, text: int = TEXT, items: int = ITEMS
) -> tuple[Any, list[Truncation]]:
    """A value within a budget (None: all of it), and what was left out of it. May read blobs, so it blocks.

    >>> bounded({"a": "x" * 9, "b": [1]}, text=4)
    ({'a': 'xxxx', 'b': [1]}, [Truncation(path='/a', kind='text', size=9)])
    """
    if budget is None:
        return value, []
    walk = _Walk(budget, text, items)
    return walk.value(value, path), walk.truncated


def window(value: Any, path: str, offset: int, limit: int | None) -> Window:
    """A part of the text, list or object at a path; nested values are cut as in :func:`bounded`."""
    value = at_pointer(value, path)
    if isinstance(value, BlobRef):
        value = value.resolve()
    kind, size = _kind(value), _size(value)
    if kind == "text":
        return Window(kind, size, offset, value[offset : offset + (limit or MAX_ANSWER // 4)], [])
    if kind == "bytes":
        return Window(kind, size, offset, _bytes(value[offset : offset + (limit or MAX_ANSWER // 2)]), [])
    walk = _Walk(MAX_ANSWER, TEXT, limit or ITEMS)
    if kind == "list":
        raw = list.__getitem__(value, slice(offset, offset + (limit or ITEMS)))
        return Window(kind, size, offset, walk.array(raw, path, offset), walk.truncated)
    if kind == "object":
        names = list(dict.keys(value))[offset : offset + (limit or ITEMS)]
        return Window(
            kind, size, offset, walk.value({n: dict.__getitem__(value, n) for n in names}, path), walk.truncated
        )
    return Window(kind, size, 0, value, [])


def at_pointer(value: Any, pointer: str) -> Any:
    """The value at a JSON pointer (RFC 6901): "" is the whole, "/messages/3/content" a part.

    >>> at_pointer({"messages": [{"content": "hi"}]}, "/messages/0/content")
    'hi'
    """
    for part in parts_of(pointer):
        if isinstance(value, BlobRef):
            value = value.resolve()
        if isinstance(value, dict) and part in value:
            value = dict.__getitem__(value, part)
        elif (
            isinstance(value, list) and part.isascii() and part.isdigit() and len(part) <= 18 and int(part) < len(value)
        ):
            value = list.__getitem__(value, int(part))
        else:
            raise NotFound(f"there is nothing at {pointer[:200]!r} in this state")
    return value


def parts_of(pointer: str) -> list[str]:
    """The names and numbers in a JSON pointer.

    >>> parts_of("/a~1b/0"), parts_of("")
    (['a/b', '0'], [])
    """
    if not pointer:
        return []
    if not pointer.startswith("/"):
        raise InvalidInput(f"a path begins with a slash, such as /messages/0: {pointer[:80]!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/")]


def pointer_of(path: tuple[str | int, ...]) -> str:
    """A path as a JSON pointer.

    >>> pointer_of(("a/b", 0))
    '/a~1b/0'
    """
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


class _Walk:
    def __init__(self, budget: int, text: int, items: int) -> None:
        self._left = budget
        self._text = text
        self._items = items
        self.truncated: list[Truncation] = []

    def value(self, value: Any, path: str) -> Any:
        if isinstance(value, BlobRef):
            return self._blob(value, path)
        if isinstance(value, str):
            return self._string(value, path)
        if isinstance(value, dict):
            return self._object(value, path)
        if isinstance(value, list | tuple):
            return self.array(value, path)
        if isinstance(value, bytes):
            if len(value) > self._text:
                self._note(path, value)
                return _bytes(b"")
            self._left -= len(value) * 2
            return _bytes(value)
        self._left -= 8
        return value

    def _string(self, value: str, path: str) -> str:
        room = max(min(self._text, self._left), 0)
        if len(value) > room:
            self._note(path, value)
            value = value[:room]
        self._left -= len(value) + 2
        return value

    def _object(self, value: Any, path: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self._left -= 2
        for name, inner in dict.items(value):
            if self._left <= 0 or len(found) >= self._items:
                self._note(path, value)
                break
            self._left -= len(name) + 4
            found[name] = self.value(inner, path + pointer_of((name,)))
        return found

    def array(self, value: Any, path: str, first: int = 0) -> list[Any]:
        """A list, or the part of one that begins with this item."""
        found: list[Any] = []
        self._left -= 2
        walk = list.__iter__(value) if isinstance(value, list) else iter(value)
        for number, inner in enumerate(walk, first):
            if self._left <= 0 or number >= first + self._items:
                self._note(path, value)
                break
            found.append(self.value(inner, f"{path}/{number}"))
        return found

    def _blob(self, ref: BlobRef, path: str) -> Any:
        if ref.size <= LARGEST_BLOB and self._left > 0:
            return self.value(ref.resolve(), path)
        kind = {STR: "text", BYTES: "bytes", TREE: "value"}[ref.form]
        self._cut(path, kind, ref.size)
        return {"text": "", "bytes": _bytes(b"")}.get(kind)

    def _note(self, path: str, value: Any) -> None:
        self._cut(path, _kind(value), _size(value))

    def _cut(self, path: str, kind: Any, size: int) -> None:
        if len(self.truncated) < MOST_CUTS:
            self.truncated.append(Truncation(path=path, kind=kind, size=size))


def _kind(value: Any) -> Kind:
    if isinstance(value, str):
        return "text"
    if isinstance(value, dict):
        return "object"
    if isinstance(value, list | tuple):
        return "list"
    return "bytes" if isinstance(value, bytes) else "value"


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | dict | list | tuple | bytes) else 1


def _bytes(value: bytes) -> dict[str, str]:
    """Bytes have no JSON form of their own."""
    return {"$bytes": base64.b64encode(value).decode("ascii")}
