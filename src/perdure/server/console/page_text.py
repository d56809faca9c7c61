"""Words for pages: times, sizes, values. Whatever an agent wrote may be hostile, so it is made harmless here.

HTML is escaped by the templates; this is about what is left then: control characters, terminal escapes, characters
that turn the direction of text around or cannot be seen, and texts without end.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any, NamedTuple

from perdure.system import wording

LONG = 6000
"""Characters of one text that are shown before it is cut."""
_KEEP = frozenset("\n\t\u200c\u200d")
"""Line breaks, tabs, and the joiners that some scripts and emoji need."""
_CONTROLS = {0: "NUL", 7: "BEL", 8: "BS", 13: "CR", 27: "ESC", 127: "DEL"}
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"))


def harmless(text: str) -> str:
    r"""The text with everything that cannot be seen, or steers how it is shown, made visible.

    >>> harmless("\x1b[2Jpaid\r\n"), harmless("a\u202eb")
    ('⟨ESC⟩[2Jpaid⟨CR⟩\n', 'a⟨U+202E⟩b')
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in _KEEP or unicodedata.category(c) not in _HIDDEN else _named(c) for c in text)


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


def cut(text: str, limit: int = 80) -> str:
    """The text in one line and not longer than a limit.

    >>> cut("a\\nb", 10), cut("abcdefgh", 5)
    ('a b', 'abcd…')
    """
    line = " ".join(text[: limit * 2 + 2].split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def span(ms: float) -> str:
    """How long something took.

    >>> span(12), span(1234), span(95_000), span(7_260_000)
    ('12 ms', '1.2 s', '1 min 35 s', '2 h 1 min')
    """
    ms = max(0, ms)
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, hours = int(ms // 60_000), int(ms // 3_600_000)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min {int(ms // 1000) % 60} s"


def size(count: float) -> str:
    """A number of bytes.

    >>> size(312), size(70_000), size(5 << 20)
    ('312 B', '68.4 KiB', '5.0 MiB')
    """
    return wording.size(count, "B")


def number(value: float) -> str:
    """A number with its thousands set apart.

    >>> number(1234567), number(0.5), number(0.0)
    ('1,234,567', '0.5', '0')
    """
    return f"{value:,}" if isinstance(value, int) else f"{round(value, 2):,.10g}"


def money(value: float) -> str:
    """A cost, with as many digits as it needs to be seen.

    >>> money(0), money(0.00042), money(12.5)
    ('0', '0.00042', '12.50')
    """
    if not value:
        return "0"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def plural(count: int, thing: str) -> str:
    """How many of a thing.

    >>> plural(1, "session"), plural(1200, "branch")
    ('1 session', '1,200 branches')
    """
    ending = "" if count == 1 else "es" if thing.endswith("ch") else "s"
    return f"{count:,} {thing}{ending}"


def as_json(value: Any, limit: int = 100_000) -> str:
    """A value as indented JSON; what JSON has no word for is named."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=_unnamed)
    return text if len(text) <= limit else text[:limit] + "\n…"


def editable(value: Any) -> str:
    r"""A value as JSON for somebody to edit: what cannot be seen is written out, and comes back as it was.

    >>> editable({"a": "\u200bé"})
    '{\n  "a": "\\u200bé"\n}'
    """
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return text if harmless(text) == text else "".join(c if harmless(c) == c else json.dumps(c)[1:-1] for c in text)


def brief(value: Any, limit: int = 160) -> str:
    """A value in one short line."""
    return cut(json.dumps(value, ensure_ascii=False, default=_unnamed), limit)


def call_words(tool: str, args: dict[str, Any], limit: int = 160) -> str:
    """A call as people write one.

    >>> call_words("refund", {"order": "A-1", "amount": 20})
    'refund(order="A-1", amount=20)'
    """
    inside = ", ".join(f"{k}={brief(v, 60)}" for k, v in args.items())
    return f"{tool}({cut(inside, limit)})"


def _unnamed(value: Any) -> str:
    return f"<{size(len(value))} of binary data>" if isinstance(value, bytes) else f"<{type(value).__name__}>"
