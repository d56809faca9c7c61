"""Message boundaries of the two protocols, as much as is needed to say where a statement and its answer end.

PostgreSQL: a statement is a simple query, an Execute or a Sync. A query or a Sync is answered when the server says
that it is ready; an Execute when its completion comes, for which the server is asked to flush. Sync is counted on its
own, because it is what commits. Redis: a statement is a command, and each has one answer.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from asyncio import StreamReader


class Request(NamedTuple):
    """One message of a client."""

    data: bytes
    statement: str
    """What kind of statement it is; "" when none."""
    nudge: bytes = b""
    """What to send with it to have it answered at once."""


class Answer(NamedTuple):
    """One message of a server."""

    data: bytes
    belongs: bool
    """Whether it belongs to the statement that was asked first and is not answered yet."""
    ends: int
    """How many statements are answered with it."""


class Wire(Protocol):
    """One connection's messages, in both directions."""

    async def hello(self, client: StreamReader) -> tuple[bytes, bytes]:
        """What a client says before it may make statements: what it is answered at once, and what the server gets."""
        ...

    async def request(self, client: StreamReader) -> Request: ...

    async def answer(self, server: StreamReader) -> Answer: ...

    def sent(self, request: Request) -> bool:
        """A request went to the server; False when it will never be answered."""
        ...


# -- PostgreSQL ----------------------------------------------------------------------------------------

_ENCRYPTION = (80877103, 80877104)
_CANCEL = 80877102
FLUSH = b"H" + struct.pack("!I", 4)
_STATEMENTS = {b"Q": "query", b"E": "execute", b"S": "sync"}
_COMPLETE = b"CIs"


class POSTGRES:
    """PostgreSQL's protocol, version 3."""

    def __init__(self) -> None:
        # The login is answered like a query: with "ready".
        self._open: deque[str] = deque(["login"])
        self._failed = False

    async def hello(self, client: StreamReader) -> tuple[bytes, bytes]:
        head = await client.readexactly(8)
        size, code = struct.unpack("!II", head)
        rest = await client.readexactly(size - 8)
        if code in _ENCRYPTION:
            # Nothing is encrypted here, and the server need not be asked.
            return b"N", b""
        return b"", head + rest

    async def request(self, client: StreamReader) -> Request:
        head = await client.readexactly(5)
        kind = head[:1]
        body = await client.readexactly(struct.unpack("!I", head[1:])[0] - 4)
        return Request(head + body, _STATEMENTS.get(kind, ""), FLUSH if kind == b"E" else b"")

    def sent(self, request: Request) -> bool:
        if request.statement == "execute" and self._failed:
            # After an error the server passes over everything up to the next Sync.
            return False
        self._open.append(request.statement)
        return True

    async def answer(self, server: StreamReader) -> Answer:
        head = await server.readexactly(5)
        kind = head[:1]
        body = await server.readexactly(struct.unpack("!I", head[1:])[0] - 4)
        asked = bool(self._open)
        ended = 0
        if kind == b"Z":
            self._failed = False
            ended = 1
        elif kind in _COMPLETE and self._open and self._open[0] == "execute":
            ended = 1
        elif kind == b"E":
            self._failed = True
            while ended < len(self._open) and self._open[ended] == "execute":
                ended += 1
        for _ in range(min(ended, len(self._open))):
            self._open.popleft()
        return Answer(head + body, asked, ended)


# -- Redis ---------------------------------------------------------------------------------------------

_PUSH = b">"
_LINES = b"+-:_,#("
_BULKS = b"$=!"
_LISTS = {b"*": 1, b"~": 1, b">": 1, b"%": 2, b"|": 2}


class RESP:
    """The protocol of Redis and Valkey, versions 2 and 3."""

    async def hello(self, client: StreamReader) -> tuple[bytes, bytes]:
        return b"", b""

    async def request(self, client: StreamReader) -> Request:
        return Request(await _value(client), "command")

    def sent(self, request: Request) -> bool:
        return True

    async def answer(self, server: StreamReader) -> Answer:
        data = await _value(server)
        # What the server says of its own accord answers nothing.
        counts = data[:1] != _PUSH
        return Answer(data, counts, int(counts))


async def _value(reader: StreamReader) -> bytes:
    """One value, with everything in it."""
    line = await reader.readuntil(b"\r\n")
    kind, size = line[:1], line[1:-2]
    if kind in _LINES:
        return line
    if kind in _BULKS:
        return line if size == b"-1" else line + await reader.readexactly(int(size) + 2)
    if kind not in _LISTS:
        raise ValueError(f"not RESP: {line[:40]!r}")
    parts = [line]
    for _ in range(max(int(size), 0) * _LISTS[kind]):
        parts.append(await _value(reader))
    if kind == b"|":
        # Attributes stand before the value they are about.
        parts.append(await _value(reader))
    return b"".join(parts)
