"""What a blob's ref looks like, and streams of content that are checked against it."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from perdure.errors import Corrupted, InvalidInput, LimitExceeded

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


def check_size(data: bytes, most: int, where: str) -> None:
    """Refuse content that is too large for a server that holds it in memory as a whole."""
    if len(data) > most:
        raise LimitExceeded(
            f"a blob in {where} may have {most} bytes, and this one has {len(data)}: "
            'keep blobs in a bucket, as in perdure.open(url, blobs="s3://bucket/prefix") or --blobs s3://bucket/prefix'
        )


def verified(ref: str, where: str, data: bytes) -> bytes:
    """A content that was read, if it is what the ref says."""
    if hashlib.sha256(data).hexdigest() != ref:
        raise Corrupted(where, "this blob is not what was written")
    return data


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


MAX_WHOLE = 256 * 1024 * 1024
"""The largest content that is held in memory as a whole."""


class WholeStreams:
    """Inherit this where the backend itself knows no streams: a content passes through memory as a whole."""

    if TYPE_CHECKING:

        def put(self, ref: str, data: bytes) -> None: ...
        def get(self, ref: str) -> bytes: ...

    def put_stream(self, chunks: Iterable[bytes]) -> str:
        """Make a content durable that comes in pieces, or renew it; its ref."""
        data = bytearray()
        for chunk in chunks:
            data += chunk
            if len(data) > MAX_WHOLE:
                msg = f"a blob here may have {MAX_WHOLE} bytes: keep larger ones in a folder or a bucket (blobs=)"
                raise LimitExceeded(msg)
        whole = bytes(data)
        ref = hashlib.sha256(whole).hexdigest()
        self.put(ref, whole)
        return ref

    def get_stream(self, ref: str) -> Iterator[bytes]:
        """The content in pieces, verified before its last one is given out."""
        whole = memoryview(self.get(ref))
        for at in range(0, len(whole), CHUNK):
            yield bytes(whole[at : at + CHUNK])
