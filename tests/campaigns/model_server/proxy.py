"""A proxy in front of a model server that keeps the bytes of every request, and changes none of them."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from types import TracebackType

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_DRAWN = re.compile(rb"\b(?:call|fc|msg|rs|resp)_[0-9a-f]{16,}")
"""Names that the server draws by lot and that come back in later requests."""


class Sent(NamedTuple):
    """A request that reached the server as a whole."""

    line: bytes
    body: bytes

    def renamed(self) -> Sent:
        """With the server's own names numbered in the order in which they appear."""
        seen: dict[bytes, bytes] = {}
        name = _DRAWN.sub(lambda found: seen.setdefault(found[0], b"<%d>" % len(seen)), self.body)
        return Sent(self.line, name)


class Proxy:
    """Listens on a port of its own; what is sent there goes on to the server, and what the server says comes back."""

    def __init__(self, port: int) -> None:
        self._server = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._sent: list[Sent] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self._listening.close()

    @property
    def base_url(self) -> str:
        """What a client is told."""
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}/v1"

    def taken(self) -> list[Sent]:
        """The requests since this was last asked, in the order in which they were whole."""
        with self._lock:
            sent, self._sent = self._sent, []
            return sent

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server))
            threading.Thread(target=self._up, args=(client, server), daemon=True).start()
            threading.Thread(target=_pump, args=(server, client), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        read = b""
        try:
            while data := client.recv(1 << 16):
                read = self._keep(read + data)
                server.sendall(data)
        except OSError:
            pass  # a client that was killed, or a server that has hung up
        finally:
            _hang_up(client, server)

    def _keep(self, read: bytes) -> bytes:
        """Write down each request that is whole by now; what is left over."""
        while (end := read.find(b"\r\n\r\n")) >= 0:
            head, rest = read[: end + 2], read[end + 4 :]
            found = _LENGTH.search(head)
            size = int(found[1]) if found else 0
            if len(rest) < size:
                break
            with self._lock:
                self._sent.append(Sent(head.split(b"\r\n", 1)[0], rest[:size]))
            read = rest[size:]
        return read


def _pump(server: socket.socket, client: socket.socket) -> None:
    try:
        while data := server.recv(1 << 16):
            client.sendall(data)
    except OSError:
        pass  # whoever was to read it is gone
    finally:
        _hang_up(client, server)


def _hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):  # it may be closed already
            end.shutdown(socket.SHUT_RDWR)
        end.close()
