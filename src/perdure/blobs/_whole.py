"""Streams for blobs that are only ever handled whole: a default to inherit, built on ``put`` and ``get``."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from perdure.blobs._refs import CHUNK
from perdure.errors import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
