"""Moments and spans of time: as all JSON has them (RFC 3339), and in words for people."""

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


def ahead(ms: int) -> str:
    """A span of time to come, to the nearest unit: of seven days a moment later there are still seven.

    >>> ahead(7 * 86_400_000 - 9), ahead(3_599_999), ahead(100_000), ahead(999)
    ('7 d', '1 h', '2 min', '')
    """
    finer = [unit for unit, _ in _UNITS[1:]] + [1]
    for (unit, name), small in zip(_UNITS, finer, strict=True):
        # Just short of a unit is one; half of it is told in the next smaller one.
        if (ms + small // 2) // small * small >= unit:
            return f"{(ms + unit // 2) // unit} {name}"
    return ""


def ago(then: int, now: int) -> str:
    """How long ago, or in how long, in the largest unit that fits.

    >>> ago(0, 90_000), ago(7_200_000, 0), ago(5, 9)
    ('1 min ago', 'in 2 h', 'now')
    """
    if not (between := gap(now - then) if then < now else ahead(then - now)):
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


def span(ms: float) -> str:
    """How long something took, in two units.

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
