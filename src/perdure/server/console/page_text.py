"""Texts and values on pages. Whatever an agent wrote may be hostile, so it is made harmless here.

HTML is escaped by the templates; this is about what is left then: control characters, terminal escapes, characters
that turn the direction of text around or cannot be seen, and texts without end.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from perdure.system import wording

LONG = 6000
"""Characters of one text that are shown before it is cut."""
_CONTROLS = {0: "NUL", 7: "BEL", 8: "BS", 13: "CR", 27: "ESC", 127: "DEL"}


def harmless(text: str) -> str:
    r"""The text with everything that cannot be seen, or steers how it is shown, made visible.

    >>> harmless("\x1b[2Jpaid\r\n"), harmless("a\u202eb")
    ('⟨ESC⟩[2Jpaid⟨CR⟩\n', 'a⟨U+202E⟩b')
    """
    return wording.visible(text, _named, keep="\n\t")


def _named(c: str) -> str:
    code = ord(c)
    return f"⟨{_CONTROLS.get(code, f'U+{code:04X}')}⟩"


class Shown(NamedTuple):
    """A text as far as it is shown."""

    text: str
    more: int = 0
    """Characters that were left out."""


def shown(text: str, limit: int = LONG) -> Shown:
    """The beginning of a text that may have megabytes."""
    return Shown(text) if len(text) <= limit else Shown(text[:limit], len(text) - limit)


def as_json(value: Any, limit: int = 100_000) -> str:
    """A value as indented JSON of bounded length."""
    text = wording.as_json(value, indent=2)
    return text if len(text) <= limit else text[:limit] + "\n…"


def editable(value: Any) -> str:
    r"""A value as JSON for somebody to edit: what cannot be seen is written out, and comes back as it was.

    >>> editable({"a": "\u200bé"})
    '{\n  "a": "\\u200bé"\n}'
    """
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return text if harmless(text) == text else "".join(c if harmless(c) == c else json.dumps(c)[1:-1] for c in text)
