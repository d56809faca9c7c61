"""What the tests of the file store share: where logs lie, how they grow, and a disk that fails."""

from __future__ import annotations

import errno
import random
from typing import TYPE_CHECKING

from perdure.stores.file.root import session_name
from perdure.stores.file.store import FileStore
from perdure.system.disk import Disk
from perdure.testing.sealed_rows import write

if TYPE_CHECKING:
    from pathlib import Path


def log_of(root: Path, session: str = "s") -> Path:
    """The log of a session."""
    name = session_name(session)
    return root / "sessions" / name[:2] / name / "log"


def steps(store: FileStore, session: str = "s") -> list[int]:
    """The steps of the first line that can be loaded."""
    return [row.step for row in store.load(session, 0).rows]


def grow(store: FileStore, count: int, session: str = "s", size: int = 100) -> None:
    """Append commits with payloads that do not compress."""
    payload = random.Random(count).randbytes(size)
    write(store, session, count=count, payload=payload)


def make(root: Path, count: int) -> list[int]:
    """A store with some commits, and the length of its log before each of them (and after the last)."""
    store = FileStore(root)
    lengths: list[int] = []
    for step in range(count):
        lengths.append(log_of(root).stat().st_size if step else 0)
        write(store)
    store.close()
    return [*lengths, log_of(root).stat().st_size]


def flip(path: Path, bit: int) -> bytes:
    """Flip one bit of a file; what it holds now."""
    raw = bytearray(path.read_bytes())
    raw[bit // 8] ^= 1 << bit % 8
    path.write_bytes(raw)
    return bytes(raw)


class FailingDisk(Disk):
    """Fails where it is told to."""

    def __init__(self) -> None:
        self.fail: dict[str, OSError | int] = {}
        """By method: what to raise; for ``write``, a number is how many bytes it still takes."""

    def _do(self, name: str) -> None:
        error = self.fail.get(name)
        if isinstance(error, OSError):
            raise error

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = True) -> int:
        if write:
            self._do("open")
        return super().open(path, create=create, exclusive=exclusive, write=write)

    def mkdir(self, path: str) -> None:
        self._do("mkdir")
        super().mkdir(path)

    def write(self, fd: int, data: bytes, offset: int) -> int:
        self._do("write")
        left = self.fail.get("write")
        if isinstance(left, int):
            if not left:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.fail["write"] = left - len(data[:left])
            return super().write(fd, data[:left], offset)
        return super().write(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        self._do("truncate")
        super().truncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        self._do("fdatasync")
        super().fdatasync(fd)

    def fsync_folder(self, path: str) -> None:
        self._do("fsync_folder")
        super().fsync_folder(path)

    def rename(self, source: str, target: str) -> None:
        self._do("rename")
        super().rename(source, target)


class PowerGone(BaseException):
    """The process ends here."""
