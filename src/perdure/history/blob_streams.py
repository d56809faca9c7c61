"""Large values as streams: put into blobs and read from them piece by piece, never held in memory as a whole.

Flows only: the blobs themselves are a backend's. What a stream leaves in a state is a
:class:`~perdure.state.values.BlobRef`, which reads as the bytes it stands for.
"""

from __future__ import annotations

import io
import itertools
from typing import TYPE_CHECKING, Any, Self

from perdure.errors import InvalidInput, LimitExceeded, Misuse
from perdure.state.values import BYTES, MAX_VALUE, TREE, BlobRef
from perdure.system.flow import Do, Flow, Invoke

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
    from typing import IO

    from perdure.kernel import Kernel
    from perdure.system.flow import HandleGuard

    Source = bytes | IO[bytes] | Iterable[bytes] | AsyncIterable[bytes]

CHUNK = 1 << 20
"""Bytes that are read from a file at once."""


class BlobStreams:
    """Large values that go into a database, or come out of it, piece by piece."""

    def __init__(self, kernel: Kernel, guard: HandleGuard, new_reader: Callable[[Iterator[bytes]], Any]) -> None:
        self._kernel = kernel
        self._guard = guard
        self._new_reader = new_reader

    def put_blob(self, source: Source) -> Flow[BlobRef]:
        """Store bytes from a binary file or an iterable, not held in memory; answers what stands for them in a state.

        They are durable when this returns. Put the answer anywhere into a state and commit: it reads as bytes there.
        What no commit names is collected after the grace period.
        """
        self._guard.check()
        if hasattr(source, "__aiter__"):
            return (yield from self._put_awaited(source))
        return (yield Do(self._put_pieces, (_pieces(source),)))

    def _put_awaited(self, source: Any) -> Flow[BlobRef]:
        """Pieces that have to be awaited wait in a temporary file until all are there."""
        pieces = aiter(source)
        import tempfile

        with tempfile.SpooledTemporaryFile(max_size=CHUNK) as spool:
            while (piece := (yield Invoke(_await_next, (pieces,)))) is not None:
                yield Do(spool.write, (_checked(piece),))
            spool.seek(0)
            return (yield Do(self._put_pieces, (_pieces(spool),)))

    def _put_pieces(self, pieces: Iterator[bytes]) -> BlobRef:
        size = 0

        def counted() -> Iterator[bytes]:
            nonlocal size
            for piece in pieces:
                size += len(piece)
                if size > MAX_VALUE:
                    raise LimitExceeded(f"one value may have {MAX_VALUE} bytes: split it, or keep it elsewhere")
                yield piece

        ref = self._kernel.blobs.put_stream(counted())
        return BlobRef(BYTES, ref, size, self._kernel.resolve, self._kernel.clock.monotonic())

    def open_blob(self, blob: BlobRef | bytes) -> Flow[Any]:
        """Read a large value as a stream: what ``put_blob`` answered, or what stands in a state (``s.blob(...)``).

        The content is verified: whoever reads to the end has read exactly what was put, or gets ``Corrupted``.
        """
        self._guard.check()
        pieces = _content(self._kernel, blob)
        # The first piece is read here, so that a missing blob shows when it is opened.
        first: bytes = yield Do(next, (pieces, b""))
        return self._new_reader(itertools.chain([first], pieces))


def as_file(pieces: Iterator[bytes]) -> io.BufferedReader:
    """Pieces as a file that is read in this thread."""
    return io.BufferedReader(_Pieces(pieces))


def _content(kernel: Kernel, blob: Any) -> Iterator[bytes]:
    if isinstance(blob, bytes):
        return iter([blob])
    if not isinstance(blob, BlobRef):
        msg = f"a {type(blob).__name__} is no blob: pass what put_blob() answered, or session.blob('vars', 'name')"
        raise InvalidInput(msg)
    if blob.form == TREE:
        raise Misuse("this blob is a list or an object: look at it in the state")
    return iter(kernel.blobs.get_stream(blob.ref))


def _pieces(source: Any) -> Iterator[bytes]:
    if isinstance(source, bytes):
        yield source
        return
    if callable(read := getattr(source, "read", None)):
        while piece := read(CHUNK):
            yield _checked(piece)
        return
    if isinstance(source, str) or not hasattr(source, "__iter__"):
        raise InvalidInput(
            f"a {type(source).__name__} cannot be streamed: pass a file opened in binary mode, or an iterable of bytes"
        )
    for piece in source:
        yield _checked(piece)


def _checked(piece: Any) -> bytes:
    try:
        return memoryview(piece).tobytes()
    except TypeError:
        msg = f"a blob is made of bytes, not of {type(piece).__name__}: open the file in binary mode"
        raise InvalidInput(msg) from None


async def _await_next(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)


class _Pieces(io.RawIOBase):
    """Pieces as a file that can be read once, from its beginning to its end."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


class AsyncBlobReader:
    """A large value being read, awaited: ``await reader.read(n)``, or ``async for piece in reader``."""

    def __init__(self, pieces: Iterator[bytes], call: Callable[..., Awaitable[Any]]) -> None:
        self._file = as_file(pieces)
        self._call = call
        """Calls what blocks, in a thread."""

    async def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes (-1: all that are left); b"" at the end."""
        return await self._call(self._file.read, size)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """All that is left, in pieces."""
        while piece := await self.read(CHUNK):
            yield piece

    async def close(self) -> None:
        """No further use."""
        self._file.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
