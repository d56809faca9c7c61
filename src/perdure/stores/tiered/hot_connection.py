"""One connection to the hot tier: a few commands and their answers, all before a deadline.

redis-py makes the connection (address, TLS, login, database) and packs the commands. Answers are read here: the
driver's time-out is per packet, so that a slow network could hold a reader for minutes; it believes any length that it
is told; and a state of one MiB takes it 3.6 times as long, and 7 times the processor time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

_READ = 1 << 16


class Refused(Exception):
    """The server answered a command with an error; the connection is fine. ``code`` is its first word."""

    def __init__(self, words: str) -> None:
        self.code = words.partition(" ")[0][:40]
        super().__init__(words)


class Broken(Exception):
    """What came is no answer: the connection cannot be used any more."""


class Link:
    """A connection that is open; whoever meets an error on it other than ``Refused`` closes it."""

    def __init__(self, connection: Any, most: int) -> None:
        """Connect one of redis-py that is not open yet; ``most`` is how many bytes one answer may have."""
        self._connection = connection
        self._most = self._room = most
        self._held = bytearray()
        self._at = 0
        self._deadline = 0.0
        try:
            self._connection.connect()
        except BaseException:
            self._connection.disconnect()
            raise
        self._socket: socket.socket = self._connection._get_socket()

    def ask(self, commands: Sequence[Sequence[bytes]], within: float) -> list[Any]:
        """Send commands together and give all their answers; errors of the server among them as ``Refused``."""
        self._deadline = time.monotonic() + within
        self._socket.settimeout(within)
        self._socket.sendall(b"".join(self._connection.pack_commands(commands)))
        answers: list[Any] = []
        for _ in commands:
            self._room = self._most
            answers.append(self._reply(0))
        return answers

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

    # -- reading ---------------------------------------------------------------------------------------

    def _reply(self, depth: int) -> Any:
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            size = _whole(rest)
            return None if size < 0 else self._exactly(size)
        if kind == b"*":
            count = _whole(rest)
            if depth > 2 or count > self._room:
                raise Broken("an answer is nested too deep or too long")
            return None if count < 0 else [self._reply(depth + 1) for _ in range(count)]
        if kind == b":":
            return _whole(rest)
        if kind == b"+":
            return rest
        if kind == b"-":
            return Refused(rest.decode(errors="replace")[:200])
        raise Broken("what came is no answer of a Redis server")

    def _line(self) -> bytes:
        while (end := self._held.find(b"\r\n", self._at)) < 0:
            if len(self._held) - self._at > _READ:
                raise Broken("an answer has no end")
            self._held += self._some()
        line = bytes(self._held[self._at : end])
        self._at = end + 2
        self._forget()
        return line

    def _exactly(self, size: int) -> bytes:
        self._room -= size
        if self._room < 0:
            raise Broken("an answer is too long")
        there = len(self._held) - self._at
        if there < size + 2:
            # The rest comes straight to its place.
            whole = bytearray(size + 2)
            whole[:there] = memoryview(self._held)[self._at :]
            self._held, self._at = bytearray(), 0
            view = memoryview(whole)
            while there < size + 2:
                self._wait()
                got = self._socket.recv_into(view[there:])
                if not got:
                    raise Broken("the connection was closed")
                there += got
            found = bytes(view[:size])
        else:
            found = bytes(memoryview(self._held)[self._at : self._at + size])
            self._at += size + 2
            self._forget()
        return found

    def _some(self) -> bytes:
        self._wait()
        if not (data := self._socket.recv(_READ)):
            raise Broken("the connection was closed")
        return data

    def _wait(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("it took too long")
        self._socket.settimeout(left)

    def _forget(self) -> None:
        if self._at == len(self._held):
            self._held, self._at = bytearray(), 0


def _whole(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise Broken("a number cannot be read") from None
