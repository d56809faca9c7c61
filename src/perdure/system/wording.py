"""Sizes, counts, values and hostile texts in words, for whatever people read: terminals, pages, explanations.

There is one wording of each. What differs between a terminal and a page is how a character is made visible.
"""

from __future__ import annotations

import json
import unicodedata
from typing import TYPE_CHECKING, Any, cast

from perdure.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HUGE = 4096
"""Bits from which on a number is described instead of written: Python refuses to write very long ones."""
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"))
"""Categories of characters that cannot be seen, or that steer how others are shown."""
_JOINERS = "\u200c\u200d"
"""Some scripts and emoji need them."""


def size(count: float) -> str:
    """A number of bytes.

    >>> size(312), size(70_000), size(5 << 20)
    ('312 B', '68.4 KiB', '5.0 MiB')
    """
    if count < 1024:
        return f"{count:.0f} B"
    for power, unit in ((1, "KiB"), (2, "MiB")):
        if count < 1024 ** (power + 1):
            return f"{count / 1024**power:.1f} {unit}"
    return f"{count / 1024**3:.1f} GiB"


def count(number: int, thing: str) -> str:
    """How many of a thing.

    >>> count(1, "session"), count(1200, "branch"), count(2, "loss")
    ('1 session', '1,200 branches', '2 losses')
    """
    ending = "" if number == 1 else "es" if thing.endswith(("ch", "ss")) else "s"
    return f"{number:,} {thing}{ending}"


def sessions_stored(number: int, set_aside: int) -> str:
    """How many sessions are stored, lives that have expired and can be brought back among them, which no list shows.

    >>> sessions_stored(2, 0), sessions_stored(77, 3)
    ('2 sessions', '77 sessions (3 of them set aside)')
    """
    return count(number, "session") + (f" ({set_aside:,} of them set aside)" if set_aside else "")


def left_aside(files: Sequence[str]) -> str:
    """What is to be said of files in which commits were set aside beside a database.

    >>> left_aside(["/d/a.db.rescued-1-00000000"]).partition(":")[0]
    '1 file that was set aside is beside the database'
    """
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    return (
        f"{count(len(files), 'file')} that {'was' if len(files) == 1 else 'were'} set aside "
        f"{'is' if len(files) == 1 else 'are'} beside the database: {', '.join(files[:3])}{more}. They may have "
        "commits that nothing else has, from when its files were taken away or written over: a copy (.rescued-…) is "
        "brought back with the command copy, a log (.log-…) fits only a copy of the database that was there; remove "
        "each then"
    )


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


def visible(text: str, written: Callable[[str], str], keep: str = "") -> str:
    """The text with every character ``written`` out that cannot be seen or steers how it is shown; some may be kept.

    >>> visible("paid\\x1b[2J", ascii), visible("naïve 東京", ascii)
    ("paid'\\\\x1b'[2J", 'naïve 東京')
    """
    if text.isascii() and text.isprintable():
        return text
    keep += _JOINERS
    return "".join(c if c in keep or unicodedata.category(c) not in _HIDDEN else written(c) for c in text)


def storable(text: str) -> str:
    """The text as UTF-8 holds it: half of a surrogate pair, as a file name that is no UTF-8 gives, is written out.

    >>> storable("invoice-\\udcff.pdf"), storable("東京")
    ('invoice-\\\\udcff.pdf', '東京')
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def one_line(text: str, limit: int = 80) -> str:
    """The text in one line and not longer than a limit.

    >>> one_line("a\\nb", 10), one_line("abcdefgh", 5)
    ('a b', 'abcd…')
    """
    # Only as much as can be shown is looked at: the text may have megabytes.
    line = " ".join(text[: limit * 2 + 2].split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def described(value: Any) -> str:
    """What is said of a value that is not written out: of bytes and of huge numbers; "" for any other.

    >>> described(b"abc"), described(1 << 5000), described(7)
    ('3 B of binary data', 'a number of 5001 bits', '')
    """
    if isinstance(value, bytes):
        return f"{size(len(value))} of binary data"
    return f"a number of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > HUGE else ""


def as_json(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON to look at; what is not written out is described.

    >>> as_json({"proof": b"abc", "n": [1 << 20_000]})
    '{"proof": "<3 B of binary data>", "n": ["<a number of 20001 bits>"]}'
    """
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, default=_named)
    except ValueError:
        # Of a number that is too long json raises before anybody is asked.
        return json.dumps(_without_huge(value), indent=indent, ensure_ascii=False, default=_named)


def brief(value: Any, limit: int = 160) -> str:
    """A value as JSON in one short line."""
    return one_line(as_json(value), limit)


def call_words(tool: str, args: dict[str, Any], limit: int = 160, each: int = 60) -> str:
    """A call as people write one.

    >>> call_words("refund", {"order": "A-1", "amount": 20})
    'refund(order="A-1", amount=20)'
    """
    inside = ", ".join(f"{k}={brief(v, each)}" for k, v in args.items())
    return f"{tool}({one_line(inside, limit)})"


def _named(value: Any) -> str:
    return f"<{described(value) or type(value).__name__}>"


def _without_huge(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_huge(v) for k, v in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return [_without_huge(v) for v in cast("list[Any]", value)]
    return _named(value) if isinstance(value, int) and described(value) else value


class GivenTwice(ValueError):
    """An object of JSON has two values under one name: which was meant, nobody knows."""


def once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON as it is read, for ``object_pairs_hook``.

    >>> once_each([("a", 1), ("b", 2)])
    {'a': 1, 'b': 2}
    """
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise GivenTwice(f"{brief(name, 100)} was given twice in one object")
        found[name] = value
    return found


def json_or_text(text: str) -> Any:
    """A value as a person types it: JSON, and anything else is text.

    >>> json_or_text('{"paid": 7}'), json_or_text("seven"), json_or_text("NaN")
    ({'paid': 7}, 'seven', 'NaN')
    """
    try:
        return json.loads(text, object_pairs_hook=once_each, parse_constant=_no_json)
    except GivenTwice as e:
        # It is JSON, and must not be taken for a text.
        raise InvalidInput(str(e)) from None
    except (ValueError, RecursionError):
        return text


def _no_json(word: str) -> Any:
    """Words that Python takes for numbers, and JSON does not have."""
    raise ValueError(word)
