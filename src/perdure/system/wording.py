"""Moments, spans of time and sizes in words, for whatever people read: the command line, pages, and explanations."""

from __future__ import annotations

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
