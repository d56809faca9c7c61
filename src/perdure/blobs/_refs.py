"""What a blob's ref looks like, and streams of content that are checked against it."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from perdure.errors import Corrupted, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REF = re.compile(r"[0-9a-f]{64}")
CHUNK = 1 << 20
"""Bytes that are read or written at once where a content is streamed from memory or a file."""


def check_ref(ref: str) -> str:
    """The ref, if it is one.

    >>> check_ref("..")
    Traceback (most recent call last):
    perdure.errors.InvalidInput: '..' is no blob's ref: it must be 64 hexadecimal digits in lower case
    """
    if not REF.fullmatch(ref):
        raise InvalidInput(f"{ref!a:.80} is no blob's ref: it must be 64 hexadecimal digits in lower case")
    return ref


def check_content(ref: str, data: bytes) -> None:
    """Refuse content that is not what its ref says."""
    if hashlib.sha256(data).hexdigest() != check_ref(ref):
        raise InvalidInput(f"blob {ref}: the content has another sha256; nothing was written")


def checked(ref: str, where: str, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks of a content; the last one is given out only when all together are what the ref says."""
    seen = hashlib.sha256()
    held = b""
    for chunk in chunks:
        if held:
            yield held
        seen.update(chunk)
        held = chunk
    if seen.hexdigest() != ref:
        raise Corrupted(where, "this blob is not what was written")
    if held:
        yield held
