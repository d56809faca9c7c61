"""Any text as PostgreSQL can keep it: it has no place for the character 0, so that is written with two others.

The order of code points stays, and all texts without the characters 0 and 1 are kept as they are.
"""

from __future__ import annotations


def packed(text: str) -> str:
    r"""The text as it is stored.

    >>> packed("trip-42")
    'trip-42'
    >>> packed("nul\0inside") < packed("nul\1inside") < packed("nul\2inside")
    True
    """
    if "\0" in text or "\1" in text:
        return text.replace("\1", "\1\2").replace("\0", "\1\1")
    return text


def unpacked(text: str) -> str:
    r"""The text that was stored.

    >>> unpacked(packed("\0\1\1\0\2")) == "\0\1\1\0\2"
    True
    """
    return text.replace("\1\1", "\0").replace("\1\2", "\1") if "\1" in text else text
