"""Texts and values in a terminal. Whatever an agent wrote may be hostile, so it is made harmless here."""

from __future__ import annotations

import json
from typing import Any, cast

from perdure.system.wording import described, visible

LONG = 400
"""Characters of one text that are shown before it is cut."""
MANY = 24
"""Items of one list or object that are shown before the middle is left out."""
DEEP = 12
"""Levels that are shown."""
WIDE, FEW = 110, 8
"""How many characters and items a list or object may have to be shown in one line."""


def safe(text: str) -> str:
    r"""The text with everything that could steer a terminal written out.

    Control and format characters (escape sequences, carriage returns, direction overrides) become escapes.

    >>> safe("\x1b[2Jpaid\r\n")
    '\\x1b[2Jpaid\\r\\n'
    >>> safe("a\u202eb"), safe("naïve [bold] 東京")
    ('a\\u202eb', 'naïve [bold] 東京')
    """
    return visible(text, lambda c: c.encode("unicode_escape").decode("ascii"))


def cut(text: str, limit: int) -> str:
    """The text in one line, harmless, and not longer than a limit.

    >>> cut("a\\nb", 10), cut("abcdefgh", 5)
    ('a\\\\nb', 'abcd…')
    """
    # Only as much as can be shown is looked at: the text may have megabytes.
    shown = safe(text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def brief(value: Any, limit: int = 80) -> str:
    """A value in one short line, with an ellipsis where anything of it is left out."""
    lines = Shown(full=False, long=limit, many=6).lines([value])[1:-1]
    return cut(" ".join(line.strip() for line in lines), limit)


def beside(value: Any) -> str:
    """All of a value behind what it belongs to; "" where it is too long for that, and stands :func:`below`.

    >>> beside({"order": "o1", "amount": 100}), beside({"note": "x" * 200})
    ('{order: "o1", amount: 100}', '')
    """
    lines = Shown(full=True).lines([value])[1:-1]
    return lines[0].strip() if len(lines) == 1 and len(lines[0]) <= WIDE else ""


def below(name: str, value: Any, shown: Shown | None = None) -> list[str]:
    """All of a value on lines of its own; with ``shown`` as much of it as that shows.

    >>> below("facts", {"fare": 1200})
    ['  facts: {fare: 1200}']
    """
    return (shown or Shown(full=True)).lines({name: value})[1:-1]


def call_in_full(tool: str, args: Any, shown: Shown | None = None) -> tuple[str, list[str]]:
    """A call that somebody decides on: its name with all its arguments, and the lines below that they take if long.

    >>> call_in_full("refund", {"note": "x" * 120})[0]
    'refund'
    """
    whole = beside(args)
    return f"{cut(tool, 60)} {whole}".rstrip(), [] if whole else below("arguments", args, shown)


class Shown:
    """A value as indented text, cut where it is long unless all of it is wanted."""

    def __init__(self, *, full: bool, long: int = LONG, many: int = MANY) -> None:
        self._full = full
        self._long = long
        self._many = many
        self.shortened = False
        """Whether anything was left out."""

    def lines(self, value: Any) -> list[str]:
        """The lines of a plain value."""
        return self._value(value, "", 0)

    def _value(self, value: Any, name: str, depth: int) -> list[str]:
        pad = "  " * depth
        if depth and (short := self._inline(value, WIDE - len(pad) - len(name))) is not None:
            return [f"{pad}{name}{short}"]
        if isinstance(value, dict):
            return self._many_of(
                name, "{}", [(self._key(k), v) for k, v in cast("dict[str, Any]", value).items()], depth
            )
        if isinstance(value, list):
            return self._many_of(name, "[]", [("", v) for v in cast("list[Any]", value)], depth)
        return [f"{pad}{name}{self._scalar(value)}"]

    def _inline(self, value: Any, room: int) -> str | None:
        """A small list or object in one line; None when it does not fit."""
        if isinstance(value, dict) and value:
            parts = [(self._key(k), v) for k, v in list(cast("dict[str, Any]", value).items())[:FEW]]
            brackets = "{}"
        elif isinstance(value, list) and value:
            parts, brackets = [("", v) for v in cast("list[Any]", value)[:FEW]], "[]"
        else:
            return None
        if len(cast("list[Any]", value)) > FEW:
            return None
        out: list[str] = []
        for key, item in parts:
            if isinstance(item, str) and len(item) > room:
                return None
            nested = isinstance(item, dict | list) and bool(cast("list[Any]", item))
            shown = self._inline(item, room) if nested else self._value(item, "", 0)[0]
            if shown is None:
                return None
            out.append(key + shown)
            room -= len(out[-1]) + 2
            if room < 0:
                return None
        return f"{brackets[0]}{', '.join(out)}{brackets[1]}"

    def _many_of(self, name: str, brackets: str, items: list[tuple[str, Any]], depth: int) -> list[str]:
        pad = "  " * depth
        if not items:
            return [f"{pad}{name}{brackets}"]
        if depth >= DEEP and not self._full:
            self.shortened = True
            return [f"{pad}{name}{brackets[0]} … {len(items)} inside {brackets[1]}"]
        # The end of a list is what happened last: most of what is shown comes from there.
        first, left_out = len(items), 0
        if not self._full and len(items) > self._many:
            first, left_out = self._many // 4, len(items) - self._many
            self.shortened = True
        out = [f"{pad}{name}{brackets[0]}"]
        for i, (key, item) in enumerate(items):
            if i == first and left_out:
                out.append(f"{pad}  … {left_out} more")
            if first <= i < first + left_out:
                continue
            out += self._value(item, key, depth + 1)
        return [*out, f"{pad}{brackets[1]}"]

    def _key(self, key: str) -> str:
        return f"{safe(key) if key.isidentifier() else self._text(key)}: "

    def _scalar(self, value: Any) -> str:
        if isinstance(value, str):
            return self._text(value)
        return f"<{words}>" if (words := described(value)) else json.dumps(value, default=str)

    def _text(self, value: str) -> str:
        if self._full or len(value) <= self._long:
            return safe(json.dumps(value, ensure_ascii=False))
        self.shortened = True
        return (
            f"{safe(json.dumps(value[: self._long], ensure_ascii=False))} … {len(value) - self._long} more characters"
        )
