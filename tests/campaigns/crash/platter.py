"""What is on a disk and what is merely on its way there: writes, names and syncs, and what a power loss leaves.

The rules, as adverse as file systems may be:

* of what was written to a file since it was last synced, anything may survive: all, nothing, any of the writes,
  any of their 512-byte sectors, in whatever order they were made;
* of the names made, moved or removed in a folder since the folder was synced, any may survive;
* what is below a folder whose own name is lost is lost.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

SECTOR = 512
FOLDER = -1
MODES = ("drop", "tear", "subset", "names", "data", "keep", "prefix")


class Op(NamedTuple):
    """One thing that was done to a disk; which fields it has depends on ``what``."""

    what: str
    """write, truncate, sync (of a file); link, unlink, rename, sync_folder (of names); note"""
    file: int = 0
    path: str = ""
    offset: int = 0
    data: bytes = b""
    source: str = ""
    event: Any = None


class Trace:
    """Everything that is done below a folder, in order. May be used from any thread.

    ``deaf`` says which syncs are not heard: (what, path) -> bool.
    """

    def __init__(self, root: str, deaf: Callable[[str, str], bool] | None = None) -> None:
        self.root = root
        self.ops: list[Op] = []
        self.first: dict[str, tuple[int, bytes]] = {}
        """What was durable at the beginning: path -> number and content."""
        self._lock = threading.RLock()
        self._deaf = deaf or (lambda what, path: False)
        self._live: dict[str, int] = {}
        self._paths: dict[int, str] = {}
        self._next = 1
        for path, content in read_tree(root).items():
            self._adopt(path, content)

    def _adopt(self, path: str, content: bytes | None) -> int:
        number = FOLDER if content is None else self._name(path)
        self.first[path] = (number, content or b"")
        return number

    def _name(self, path: str) -> int:
        self._live[path] = file = self._next
        self._paths[file] = path
        self._next += 1
        return file

    def _add(self, op: Op) -> None:
        self.ops.append(op)

    # -- what is done ------------------------------------------------------------------------------

    def opened(self, path: str, *, made: bool) -> int:
        """A file was opened; gives the number it goes by."""
        with self._lock:
            if path in self._live:
                return self._live[path]
            if not made:
                # Made by somebody who does not use this disk, and before anything was written to it.
                with open(path, "rb") as file:
                    return self._adopt(path, file.read())
            number = self._name(path)
            self._add(Op("link", number, path))
            return number

    def write(self, file: int, offset: int, data: bytes) -> None:
        """Bytes were written."""
        with self._lock:
            self._add(Op("write", file, offset=offset, data=bytes(data)))

    def truncate(self, file: int, size: int) -> None:
        """A file was cut or extended."""
        with self._lock:
            self._add(Op("truncate", file, offset=size))

    def sync(self, file: int) -> None:
        """A file was synced."""
        with self._lock:
            path = self._paths[file]
            if not self._deaf("file", path):
                self._add(Op("sync", file, path))

    def made_folder(self, path: str) -> None:
        """A folder was made."""
        with self._lock:
            self._add(Op("link", FOLDER, path))

    def rename(self, source: str, path: str) -> None:
        """A file was given another name."""
        with self._lock:
            file = self._live.pop(source)
            self._live[path] = file
            self._paths[file] = path
            if os.path.dirname(source) == os.path.dirname(path):
                self._add(Op("rename", file, path, source=source))
            else:
                # Two folders, two entries: they need not reach the disk together.
                self._add(Op("link", file, path))
                self._add(Op("unlink", path=source))

    def unlink(self, path: str) -> None:
        """A name was removed."""
        with self._lock:
            self._live.pop(path, None)
            self._add(Op("unlink", path=path))

    def sync_folder(self, path: str) -> None:
        """The names in a folder were synced."""
        with self._lock:
            if not self._deaf("folder", path):
                self._add(Op("sync_folder", path=path))

    def note(self, event: Any) -> None:
        """Something happened that is not on this disk."""
        with self._lock:
            self._add(Op("note", event=event))


class Platter:
    """The disk at one moment of a trace: what is durable, and what is on its way."""

    def __init__(self, trace: Trace) -> None:
        self._root = trace.root
        self._names = {path: number for path, (number, _) in trace.first.items()}
        self._contents = {number: bytearray(content) for number, content in trace.first.values() if number > 0}
        self._pending: dict[int, list[Op]] = {}
        self._moves: list[Op] = []

    def do(self, op: Op) -> None:
        """Go on by one step of the trace."""
        match op.what:
            case "write" | "truncate":
                self._pending.setdefault(op.file, []).append(op)
            case "sync":
                content = self._contents.setdefault(op.file, bytearray())
                for each in self._pending.pop(op.file, ()):
                    _apply(content, each.what, each.offset, each.data)
            case "link" | "unlink" | "rename":
                self._moves.append(op)
            case "sync_folder":
                stay: list[Op] = []
                for move in self._moves:
                    if os.path.dirname(move.path) == op.path:
                        _move(self._names, move)
                    else:
                        stay.append(move)
                self._moves = stay
            case _:
                return

    @property
    def in_flight(self) -> int:
        """How many writes and names are not durable yet."""
        return len(self._moves) + sum(len(ops) for ops in self._pending.values())

    def survivors(self, rng: random.Random, mode: str) -> dict[str, bytes | None]:
        """What is found after a power loss: path -> content; None for a folder."""
        names = dict(self._names)
        for move in self._moves:
            if mode in ("keep", "names") or (mode in ("subset", "tear", "prefix") and rng.random() < 0.5):
                _move(names, move)
        contents = {file: bytearray(content) for file, content in self._contents.items()}
        for file, ops in self._pending.items():
            content = contents.setdefault(file, bytearray())
            for what, offset, data in _left(ops, rng, mode):
                _apply(content, what, offset, data)
        found: dict[str, bytes | None] = {}
        for path, number in names.items():
            if self._is_reachable(path, names):
                found[path] = None if number == FOLDER else bytes(contents.get(number, b""))
        return found

    def _is_reachable(self, path: str, names: dict[str, int]) -> bool:
        folder = os.path.dirname(path)
        return folder == self._root or (names.get(folder) == FOLDER and self._is_reachable(folder, names))


def _left(ops: list[Op], rng: random.Random, mode: str) -> Iterator[tuple[str, int, bytes]]:
    """What is left of the writes to one file."""
    if mode in ("drop", "names"):
        return
    cut = rng.randint(0, len(ops)) if mode == "prefix" else len(ops)
    for op in ops[:cut]:
        if mode == "subset" and rng.random() < 0.5:
            continue
        if mode == "tear" and op.what == "write":
            yield from _sectors(op, rng)
        elif mode != "tear" or rng.random() < 0.5:
            yield op.what, op.offset, op.data


def _sectors(op: Op, rng: random.Random) -> Iterator[tuple[str, int, bytes]]:
    """Some sectors of a write: a beginning, or any of them."""
    end = op.offset + len(op.data)
    limit = rng.randint(op.offset, end) if rng.random() < 0.5 else end
    keep = 1.0 if limit < end else rng.random()
    at = op.offset
    while at < limit:
        following = min(at - at % SECTOR + SECTOR, end)
        if rng.random() < keep:
            yield "write", at, op.data[at - op.offset : following - op.offset]
        at = following


def _apply(content: bytearray, what: str, offset: int, data: bytes) -> None:
    """Change a file's content as a write or a truncation does."""
    if what == "truncate":
        del content[offset:]
        content.extend(bytes(offset - len(content)))
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _move(names: dict[str, int], op: Op) -> None:
    if op.what == "unlink":
        names.pop(op.path, None)
        return
    if op.what == "rename":
        names.pop(op.source, None)
    names[op.path] = op.file


def read_tree(root: str) -> dict[str, bytes | None]:
    """Everything below a folder: path -> content; None for a folder."""
    found: dict[str, bytes | None] = {}
    for folder, folders, files in os.walk(root):
        found.update({os.path.join(folder, name): None for name in folders})
        for name in files:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                found[path] = file.read()
    return found


def write_tree(found: dict[str, bytes | None], source: str, root: str) -> None:
    """Put what was found below ``source`` below another folder."""
    for path in sorted(found):
        content = found[path]
        target = root + path.removeprefix(source)
        if content is None:
            os.mkdir(target, 0o700)
        else:
            with open(target, "wb") as file:
                file.write(content)
