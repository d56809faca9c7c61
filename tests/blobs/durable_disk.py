"""A disk that remembers what would be left of a folder if the power went now, in the worst case or by chance."""

from __future__ import annotations

import os
import random
from pathlib import Path

from perdure.system.disk import Disk


class DurableDisk(Disk):
    """Does everything for real, and follows what is durable: synced bytes of files, synced names of folders."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._paths: dict[int, str] = {}
        self._written: dict[int, bytes] = {}
        """Content by inode, as last synced."""
        self._unsynced: dict[int, list[tuple[int, bytes] | int]] = {}
        """By inode: writes (offset, bytes) and cuts (length) since."""
        self._names: dict[str, dict[str, int]] = {}
        """By folder: the names that are durable, each with its inode; 0 is a folder."""
        self.log: list[str] = []
        """The calls that matter for durability, in order."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = True) -> int:
        fd = super().open(path, create=create, exclusive=exclusive, write=write)
        self._paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        super().close(fd)
        self._paths.pop(fd, None)

    def write(self, fd: int, data: bytes, offset: int) -> int:
        self.log.append(f"write {os.path.basename(self._paths[fd])}")
        self._unsynced.setdefault(os.fstat(fd).st_ino, []).append((offset, bytes(data)))
        return super().write(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        self._unsynced.setdefault(os.fstat(fd).st_ino, []).append(size)
        super().truncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        self.log.append(f"sync {os.path.basename(self._paths[fd])}")
        stat = os.fstat(fd)
        self._written[stat.st_ino] = os.pread(fd, stat.st_size, 0)
        self._unsynced.pop(stat.st_ino, None)

    def fsync_folder(self, path: str) -> None:
        super().fsync_folder(path)
        self.log.append(f"names {os.path.relpath(path, self._root)}")
        entries = {entry.name: entry for entry in os.scandir(path)}
        self._names[path] = {name: 0 if e.is_dir() else e.inode() for name, e in entries.items()}

    def after_power_loss(self, target: Path, chance: random.Random | None = None) -> Path:
        """Write what is left to a new folder. By ``chance`` also parts of what was not synced, in any order."""
        self._leave(self._root, target, chance)
        return target

    def _leave(self, source: str, target: Path, chance: random.Random | None) -> None:
        target.mkdir()
        for name, inode in self._names.get(source, {}).items():
            if not inode:
                self._leave(os.path.join(source, name), target / name, chance)
                continue
            content = bytearray(self._written.get(inode, b""))
            if chance is not None:
                self._tear(content, self._unsynced.get(inode, []), chance)
            (target / name).write_bytes(content)

    @staticmethod
    def _tear(content: bytearray, changes: list[tuple[int, bytes] | int], chance: random.Random) -> None:
        """Some sectors of some of the changes reach the disk, whatever came before or after them."""
        for change in changes:
            if isinstance(change, int):
                if chance.random() < 0.5:
                    del content[change:]
                continue
            offset, data = change
            for start in range(0, len(data), 512):
                if chance.random() < 0.5:
                    piece = data[start : start + chance.choice([512, 512, chance.randrange(512)])]
                    at = offset + start
                    content.extend(bytes(max(0, at + len(piece) - len(content))))
                    content[at : at + len(piece)] = piece
