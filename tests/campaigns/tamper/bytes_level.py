"""Mutations of bytes: they know nothing of formats and fit any file of any store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from tests.campaigns.tamper.building import Original

    Mutation = Callable[["Target"], str]
    """Changes the target; says what it did, or "" when there was nothing to do it to."""

PAGE = 4096


class Target:
    """A copy of a store that is about to be tampered with."""

    def __init__(self, original: Original, image: str, folder: Path, rng: random.Random) -> None:
        self.original = original
        self.image = image
        self.folder = folder
        self.rng = rng

    def files(self, *endings: str) -> list[Path]:
        """The files of the copy that have content, those with these endings only."""
        found = sorted(path for path in self.folder.rglob("*") if path.is_file() and path.stat().st_size)
        return [path for path in found if not endings or path.name.endswith(endings)]

    def any_file(self) -> Path | None:
        """A file; the few that hold the records are taken more often than the many that hold blobs."""
        files = self.files()
        blobs = [path for path in files if "blobs" in str(path)]
        others = [path for path in files if path not in blobs]
        pick = blobs if blobs and self.rng.random() < 0.12 else others
        return self.rng.choice(pick) if pick else None

    def foreign(self, path: Path) -> Path:
        """The same file of another store."""
        return self.original.folder / "foreign" / path.relative_to(self.folder)

    def old(self, path: Path) -> Path | None:
        """The same file at an earlier moment."""
        inside = path.relative_to(self.folder)
        olds = [old / inside for old in self.original.olds() if (old / inside).is_file()]
        return self.rng.choice(olds) if olds else None


def flip_bits(t: Target) -> str:
    """One bit, or a few."""
    path = t.any_file()
    if path is None:
        return ""
    data = bytearray(path.read_bytes())
    count = t.rng.choice([1, 1, 1, 2, 8])
    for _ in range(count):
        data[t.rng.randrange(len(data))] ^= 1 << t.rng.randrange(8)
    path.write_bytes(data)
    return f"{count} bits of {path.name}"


def overwrite(t: Target) -> str:
    """A run of bytes: zeros, ones, noise, or bytes from elsewhere in the file."""
    path = t.any_file()
    if path is None:
        return ""
    data = bytearray(path.read_bytes())
    size = min(len(data), t.rng.choice([1, 2, 4, 16, 100, 512]))
    at, source = t.rng.randrange(len(data) - size + 1), t.rng.randrange(len(data) - size + 1)
    fill = t.rng.choice([bytes(size), b"\xff" * size, t.rng.randbytes(size), bytes(data[source : source + size])])
    data[at : at + size] = fill
    path.write_bytes(data)
    return f"{size} bytes of {path.name} at {at}"


def truncate(t: Target) -> str:
    """The end of a file is gone, or all of it."""
    path = t.any_file()
    if path is None:
        return ""
    size = path.stat().st_size
    os.truncate(path, t.rng.choice([0, size - 1, t.rng.randrange(size), max(0, size - t.rng.randrange(1, 600))]))
    return f"{path.name} cut to {path.stat().st_size} of {size}"


def extend(t: Target) -> str:
    """Something follows the end of a file."""
    path = t.any_file()
    if path is None:
        return ""
    data = path.read_bytes()
    tail = t.rng.choice([bytes(64), t.rng.randbytes(100), data[-200:], data[: min(len(data), PAGE)]])
    path.write_bytes(data + tail)
    return f"{path.name} longer by {len(tail)}"


def remove_file(t: Target) -> str:
    """A file is gone."""
    path = t.any_file()
    if path is None:
        return ""
    path.unlink()
    return f"{path.name} removed"


def swap_pages(t: Target) -> str:
    """Two blocks of a file trade places."""
    path = t.any_file()
    if path is None:
        return ""
    data = bytearray(path.read_bytes())
    size = t.rng.choice([PAGE, PAGE + 24, 512, 64])
    pages = len(data) // size
    if pages < 2:
        return ""
    a, b = (page * size for page in t.rng.sample(range(pages), 2))
    data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]
    path.write_bytes(data)
    return f"blocks of {size} in {path.name} at {a} and {b}"


def swap_files(t: Target) -> str:
    """Two files of one kind trade places."""
    path = t.any_file()
    alike = [p for p in t.files() if path is not None and p != path and _kind(p) == _kind(path)]
    if path is None or not alike:
        return ""
    other = t.rng.choice(alike)
    a, b = path.read_bytes(), other.read_bytes()
    path.write_bytes(b)
    other.write_bytes(a)
    return f"{path.name} and {other.name}"


def _kind(path: Path) -> str:
    return "blob" if "blobs" in str(path) else path.name


def replay_file(t: Target) -> str:
    """A file as it was at an earlier moment."""
    path = t.any_file()
    old = t.old(path) if path is not None else None
    if path is None or old is None:
        return ""
    path.write_bytes(old.read_bytes())
    return f"{path.name} of {old.relative_to(t.original.folder)}"


def replay_page(t: Target) -> str:
    """A block of a file as it was at an earlier moment."""
    path = t.any_file()
    old = t.old(path) if path is not None else None
    if path is None or old is None:
        return ""
    then, now = old.read_bytes(), bytearray(path.read_bytes())
    at = t.rng.randrange(0, len(then), PAGE) if then else 0
    if now[at : at + PAGE] == then[at : at + PAGE]:
        return ""
    now[at : at + PAGE] = then[at : at + PAGE]
    path.write_bytes(now)
    return f"block at {at} of {path.name} of {old.relative_to(t.original.folder)}"


def replay_all(t: Target) -> str:
    """The whole store as it was at an earlier moment."""
    old = t.rng.choice(t.original.olds())
    for path in t.files():
        path.unlink()
    for source in old.rglob("*"):
        if source.is_file():
            target = t.folder / source.relative_to(old)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    return old.name


ANY_FILE: dict[str, Mutation] = {
    "bit flips": flip_bits,
    "bytes overwritten": overwrite,
    "truncated": truncate,
    "extended": extend,
    "file removed": remove_file,
    "blocks swapped": swap_pages,
    "files swapped": swap_files,
    "old file": replay_file,
    "old block": replay_page,
    "old store": replay_all,
}
