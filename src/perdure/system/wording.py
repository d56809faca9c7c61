"""Moments, spans of time and sizes: in words for people, and moments as all JSON has them."""

from __future__ import annotations

import re

from perdure.errors import InvalidInput

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_LAST = 253_402_300_799_999
"""The last millisecond of the year 9999."""
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def gap(ms: int) -> str:
    """A span of time in the largest unit that fits; "" when it is less than a second.

    >>> gap(90_000), gap(7_200_000), gap(999)
    ('1 min', '2 h', '')
    """
    return next((f"{ms // unit} {name}" for unit, name in _UNITS if ms >= unit), "")


def ago(then: int, now: int) -> str:
    """How long ago, or in how long, in the largest unit that fits.

    >>> ago(0, 90_000), ago(7_200_000, 0), ago(5, 9)
    ('1 min ago', 'in 2 h', 'now')
    """
    if not (between := gap(abs(now - then))):
        return "now"
    return f"{between} ago" if then < now else f"in {between}"


def when(ms: int) -> str:
    """A moment in universal time, to the second.

    >>> when(1_700_000_000_000), when(10**18)
    ('2023-11-14 22:13:20Z', '1000000000000000000 ms')
    """
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def timestamp(ms: float) -> str:
    """A moment in JSON: RFC 3339 in universal time, to the millisecond. What no calendar has is the nearest it has.

    >>> timestamp(1_700_000_000_001), timestamp(10**18)
    ('2023-11-14T22:13:20.001Z', '9999-12-31T23:59:59.999Z')
    """
    from datetime import UTC, datetime

    seconds, rest = divmod(min(max(int(ms), 0), _LAST), 1000)
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat()[:19]}.{rest:03}Z"


def parse_timestamp(text: str) -> int:
    """The moment, in ms since 1970, that is written as RFC 3339, in any time zone.

    >>> parse_timestamp("2023-11-14T23:13:20.001+01:00")
    1700000000001
    """
    from datetime import datetime, timedelta

    try:
        if _RFC3339.fullmatch(text):
            since = datetime.fromisoformat(text.upper()) - datetime.fromisoformat("1970-01-01T00:00:00Z")
            return since // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        pass
    raise InvalidInput(f"{text[:60]!r} is no time: write 2030-11-30T09:00:00Z, or with another time zone than Z")


def size(count: float, one: str = "bytes") -> str:
    """A number of bytes; ``one`` is what they are called when there are few.

    >>> size(312), size(312, "B"), size(70_000), size(5 << 20)
    ('312 bytes', '312 B', '68.4 KiB', '5.0 MiB')
    """
    if count < 1024:
        return f"{count:.0f} {one}"
    for power, unit in ((1, "KiB"), (2, "MiB")):
        if count < 1024 ** (power + 1):
            return f"{count / 1024**power:.1f} {unit}"
    return f"{count / 1024**3:.1f} GiB"


def count(number: int, thing: str) -> str:
    """How many of a thing.

    >>> count(1, "session"), count(0, "branch")
    ('1 session', '0 branches')
    """
    ending = "" if number == 1 else "es" if thing.endswith("ch") else "s"
    return f"{number} {thing}{ending}"
