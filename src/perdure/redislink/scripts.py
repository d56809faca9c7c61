"""Scripts that run inside the server, and commands as bytes on the wire."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

# Looking a length up costs a third of writing it out, and a commit has two dozen short parts.
_LENGTHS: Final = [b"$%d\r\n" % size for size in range(1024)]


def pack(*args: bytes) -> bytes:
    r"""A command as the protocol writes it.

    >>> pack(b"GET", b"key")
    b'*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n'
    """
    parts = [b"*%d\r\n" % len(args)]
    _add(parts, args)
    return b"".join(parts)


def _add(parts: list[bytes], args: Iterable[bytes]) -> None:
    add = parts.append
    for arg in args:
        size = len(arg)
        add(_LENGTHS[size] if size < 1024 else b"$%d\r\n" % size)
        add(arg)
        add(b"\r\n")


class Script:
    """A script by name: called by its digest, loaded again whenever the server does not know it.

    The digest is that of the text, so processes with other versions of a script never call each other's.
    ``flags`` are the server's: "no-writes" for one that only reads, "allow-oom" for one that a full server needs.
    """

    def __init__(self, name: str, text: str, flags: str = "") -> None:
        # With this first line the server checks before the start, and not in the middle, that it may write.
        whole = f"#!lua{flags and ' flags='}{flags}\n{text}"
        sha = hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest()
        self.name = name
        self.writes = flags != "no-writes"
        self.load = pack(b"SCRIPT", b"LOAD", whole.encode())
        self._call = f"\r\n$7\r\nEVALSHA\r\n$40\r\n{sha}\r\n$1\r\n".encode()

    def call(self, key: bytes | None, *args: bytes) -> bytes:
        """The packed command; ``key`` is the one that everything it touches hangs on (None: the store itself)."""
        if key is None:
            parts = [b"*%d" % (3 + len(args)), self._call, b"0\r\n"]
        else:
            parts = [b"*%d" % (4 + len(args)), self._call, b"1\r\n"]
            _add(parts, (key,))
        _add(parts, args)
        return b"".join(parts)
