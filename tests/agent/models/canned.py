"""A server on loopback that sends canned bytes, and keeps the bytes it was sent: for what no well-bred server does."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class Heard(NamedTuple):
    """A request as it came in."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """What the body says."""
        return json.loads(self.body)


class Canned:
    """Sends one canned answer per connection, in their order, and the last one again and again."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.heard: list[Heard] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """What a client is told."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def close(self) -> None:
        """Stop listening."""
        # Closing alone does not wake a thread that accepts.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer:
                self._one(peer)

    def _one(self, peer: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            more = peer.recv(65536)
            if not more:
                return
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        while len(body) < int(headers.get("content-length", "0")):
            body += peer.recv(65536)
        self.heard.append(Heard(first.split()[1], headers, body))
        at = min(len(self.heard), len(self.answers)) - 1
        peer.sendall(self.answers[at])


@contextmanager
def canned(*answers: bytes) -> Iterator[Canned]:
    """The server, while it is needed."""
    server = Canned(*answers)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def silent(*pieces: bytes, pause: float = 0.3) -> Iterator[str]:
    """A server that sends these pieces of an answer with pauses, and then nothing, without hanging up; its address."""
    over = threading.Event()
    peers: list[socket.socket] = []

    def speak(peer: socket.socket) -> None:
        peer.recv(65536)
        for piece in pieces:
            peer.sendall(piece)
            if over.wait(pause if len(pieces) > 1 else 0):
                return
        over.wait(30)

    def serve() -> None:
        while True:
            try:
                peers.append(listener.accept()[0])
            except OSError:
                return
            threading.Thread(target=speak, args=(peers[-1],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            for peer in peers:
                peer.close()


def http(body: bytes | dict[str, Any] | str, status: int = 200, **headers: str) -> bytes:
    """A whole answer."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body.encode() if isinstance(body, str) else body
    kind = "application/json" if isinstance(body, dict) else "text/plain"
    lines = [f"HTTP/1.1 {status} Whatever", f"content-type: {kind}", f"content-length: {len(data)}"]
    lines += ["connection: close", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def events(*chunks: Any, done: bool = True, cut: bytes | None = None) -> bytes:
    """A stream of server-sent events; with ``cut`` it ends with these bytes, short of what was announced."""
    data = b"".join(b"data: " + _bytes(chunk) + b"\n\n" for chunk in chunks)
    if done and cut is None:
        data += b"data: [DONE]\n\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
    if cut is None:
        return head + b"\r\n" + data
    data += cut
    return head + b"content-length: %d\r\n\r\n" % (len(data) + 1000) + data


def _bytes(chunk: Any) -> bytes:
    return chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode()


def completion(message: dict[str, Any], finish: str = "stop", **more: Any) -> dict[str, Any]:
    """An answer of Chat Completions in one piece."""
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    about = {"id": "chatcmpl-1", "object": "chat.completion", "model": "m-2026-01-01", "system_fingerprint": "fp_1"}
    return {**about, "choices": [choice], "usage": usage, **more}


def chunk(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A piece of an answer of Chat Completions."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {"id": "chatcmpl-1", "model": "m-2026-01-01", "system_fingerprint": "fp_1", "choices": choices, **more}


def usage_chunk() -> dict[str, Any]:
    """The last piece, which counts the tokens."""
    return chunk(None, usage={"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18})
