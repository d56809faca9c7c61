"""Pieces of answers on their way, beside a store: in a folder without any sync, or in this process. Nothing is kept."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from typing import NamedTuple

from perdure.system.disk import FOLDER_MODE

MOST = 1 << 20
"""Bytes that are kept of one session at most; what comes after is lost, and the commit brings it anyway."""
STALE = 24 * 3600
"""Seconds after which what a dead process left is removed."""
_HEADER = 8


class FolderLive:
    """Implements :class:`perdure.protocols.Live` with one append-only file for each session that is talking.

    A file begins with a number of its own, so that a reader sees when another one took its place.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._tidy = False

    def _path(self, session: str) -> str:
        return os.path.join(self._folder, hashlib.sha256(session.encode()).hexdigest()[:40])

    def publish(self, session: str, piece: bytes) -> None:
        """Append a piece."""
        if not self._tidy:
            self._tidy = True
            with suppress(FileExistsError):
                os.mkdir(self._folder, FOLDER_MODE)
            self._remove_stale()
        path = self._path(session)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(file).st_size
            if size + len(piece) > MOST:
                return
            begin = os.urandom(_HEADER) if not size else b""
            os.write(file, begin + len(piece).to_bytes(4, "big") + piece)
        finally:
            os.close(file)

    def poll(self, session: str, after: str) -> tuple[list[bytes], str]:
        """The pieces after a cursor, and the next one."""
        try:
            with open(self._path(session), "rb") as file:
                data = file.read(2 * MOST)
        except FileNotFoundError:
            return [], ""
        name, _, place = after.partition(":")
        header = data[:_HEADER].hex()
        # A file that was made just now may be empty yet.
        at = int(place) if place and name == header else _HEADER
        pieces: list[bytes] = []
        while at + 4 <= len(data):
            size = int.from_bytes(data[at : at + 4], "big")
            if at + 4 + size > len(data):
                break
            pieces.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        return pieces, f"{header}:{at}" if len(header) == 2 * _HEADER else ""

    def clear(self, session: str) -> None:
        """Forget what was published."""
        with suppress(FileNotFoundError):
            os.unlink(self._path(session))

    def _remove_stale(self) -> None:
        before = time.time() - STALE
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.stat().st_mtime < before:
                        os.unlink(entry.path)


class _Said(NamedTuple):
    name: str
    pieces: list[bytes]


class MemoryLive:
    """Implements :class:`perdure.protocols.Live` in a dictionary that all handles of one store share."""

    def __init__(self, said: dict[str, _Said]) -> None:
        self._said = said

    def publish(self, session: str, piece: bytes) -> None:
        """Append a piece."""
        pieces = self._said.setdefault(session, _Said(os.urandom(8).hex(), [])).pieces
        if sum(map(len, pieces)) + len(piece) <= MOST:
            pieces.append(piece)

    def poll(self, session: str, after: str) -> tuple[list[bytes], str]:
        """The pieces after a cursor, and the next one."""
        said = self._said.get(session)
        if said is None:
            return [], ""
        name, _, place = after.partition(":")
        pieces = said.pieces[int(place) if name == said.name else 0 :]
        return pieces, f"{said.name}:{len(said.pieces)}"

    def clear(self, session: str) -> None:
        """Forget what was published."""
        self._said.pop(session, None)
