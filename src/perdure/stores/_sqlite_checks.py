"""Whether values read from SQLite can be what was written.

SQLite gives back whatever a damaged page says, of any type: what is not of the type that was written is
``Corrupted`` here, and never gets further.
"""

from __future__ import annotations

import json
from typing import Any, cast

from perdure.errors import Corrupted
from perdure.model import Span


class Checks:
    """The checks; ``path`` says where damage was found."""

    def __init__(self, path: str) -> None:
        self._path = path

    def damaged(self, what: str) -> Corrupted:
        """The error for a value that cannot have been written."""
        return Corrupted(self._path, f"{what} is not what was written")

    def whole(self, value: Any) -> int:
        """A number, which none of ours is below zero."""
        if type(value) is not int or value < 0:
            raise self.damaged("a number")
        return value

    def text(self, value: Any) -> str:
        """A text."""
        if type(value) is not str:
            raise self.damaged("a text")
        return value

    def raw(self, value: Any) -> bytes:
        """Bytes."""
        if type(value) is not bytes:
            raise self.damaged("a sequence of bytes")
        return value

    def names(self, text: Any) -> tuple[str, ...]:
        """A list of texts, stored as JSON."""
        return tuple(self.text(name) for name in self._list(text))

    def spans(self, text: Any) -> tuple[Span, ...]:
        """A list of spans, stored as JSON."""
        spans: list[Span] = []
        for value in self._list(text):
            if not isinstance(value, list) or len(cast("list[Any]", value)) != 3:
                raise self.damaged("the reference of an artifact")
            spans.append(Span(*map(self.whole, cast("list[Any]", value))))
        return tuple(spans)

    def _list(self, text: Any) -> list[Any]:
        if not self.text(text):
            return []
        try:
            found = json.loads(text)
        except ValueError as error:
            raise self.damaged("a list") from error
        if not isinstance(found, list):
            raise self.damaged("a list")
        return cast("list[Any]", found)
