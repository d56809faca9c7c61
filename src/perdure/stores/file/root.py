"""The root of a file store: who it is (``perdure.json``) and the counter of lease tokens (``token``).

Both are guarded by the advisory lock of ``lock``. Sessions live below ``sessions``, in folders named by
the hash of their id: what a user calls a session never becomes part of a path.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import threading
import zlib
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from perdure.errors import Corrupted, InvalidInput, UnsupportedFormat
from perdure.stores.file.records import FORMAT
from perdure.system import faults
from perdure.system.disk import make_folder, open_to_write, sync, sync_folder, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perdure.system.disk import Disk

R = TypeVar("R")

_SLOT = struct.Struct("<4sQI")
_SLOT_MAGIC = b"pdT1"
_SLOTS = (0, 4096)
"""Two places, in different blocks: a torn write can only hurt the one it was made to."""


_OURS = {"perdure.json", "perdure.json.new", "lock", "token", "clock", "sessions", "blobs", "live", "lost+found"}
"""What may lie in the folder before a store is made there: what a killed process has left, or a file system."""
TOKENS_PER_EPOCH = 1 << 32
"""By how much tokens jump with a new epoch."""


class Identity(NamedTuple):
    """What ``perdure.json`` says."""

    id: str
    epoch: str


def session_name(session: str) -> str:
    """The name of a session's folder."""
    try:
        return hashlib.sha256(session.encode()).hexdigest()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{session!a:.80} has a lone surrogate: a session id must be proper Unicode") from error


def salt_of(name: str) -> int:
    """What the checksums of a session's records start from."""
    return zlib.crc32(b"perdure log " + name.encode())


class FileRoot:
    """The folder of a file store."""

    def __init__(self, path: str, disk: Disk) -> None:
        self.path = path
        self.sessions = f"{path}/sessions"
        self._disk = disk
        self._mutex = threading.Lock()
        try:
            if not make_folder(disk, path):
                self._check_ours()
        except NotADirectoryError as error:
            raise InvalidInput(f"{error.filename} is a file: a file store needs a folder of its own") from error
        self._lock_fd = open_to_write(disk, f"{path}/lock")
        try:
            self.alone(self._create)
            self.identity = self.read_identity()
        except BaseException:
            disk.close(self._lock_fd)
            raise

    def close(self) -> None:
        """Close what is open."""
        fd, self._lock_fd = self._lock_fd, -1
        if fd >= 0:
            self._disk.close(fd)

    def alone(self, do: Callable[[], R]) -> R:
        """Do something alone with the root, among threads and processes."""
        with self._mutex:
            try:
                self._disk.lock(self._lock_fd, exclusive=True)
                return do()
            finally:
                # Twice when it is interrupted: nothing may stay locked.
                try:
                    self._disk.unlock(self._lock_fd)
                except BaseException:
                    self._disk.unlock(self._lock_fd)
                    raise

    def folder(self, name: str) -> str:
        """Where a session's files are."""
        return f"{self.sessions}/{name[:2]}/{name}"

    def names(self) -> Iterator[str]:
        """The folders of all sessions, in order of their names."""
        for shard in self._disk.listdir(self.sessions):
            if len(shard) == 2:
                yield from (name for name in self._disk.listdir(f"{self.sessions}/{shard}") if len(name) == 64)

    def read_identity(self) -> Identity:
        """Read ``perdure.json`` again: another process may have given the store a new epoch."""
        path = f"{self.path}/perdure.json"
        raw = self._read(path)
        try:
            said = json.loads(raw)
            version, found = said["format"], Identity(said["id"], said["epoch"])
            whole = said["check"] == _check(version, found)
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupted(path, "this is not what was written") from error
        if isinstance(version, int) and version > FORMAT:
            raise UnsupportedFormat(f"{path}: format {version} was written by a newer Perdure; upgrade this process")
        if not whole:
            raise Corrupted(path, "this is not what was written")
        return found

    def renew_epoch(self) -> None:
        """Write a new epoch, and let tokens go on behind any that a lost past may have given out."""
        self.alone(self._renew_epoch)

    def _renew_epoch(self) -> None:
        self._count(lambda newest: newest + TOKENS_PER_EPOCH)
        self.identity = self.read_identity()._replace(epoch=os.urandom(8).hex())
        self._write_identity(self.identity, "epoch")

    def next_token(self, floor: int) -> int:
        """A token above all that were ever handed out, and above ``floor``; durable when it returns."""
        return self.alone(lambda: self._count(lambda newest: max(newest, floor) + 1))

    def skip_tokens(self, floor: int) -> None:
        """Never hand out ``floor`` or anything below it: another store has."""
        self.alone(lambda: self._count(lambda newest: max(newest, floor)))

    def _count(self, change: Callable[[int], int]) -> int:
        disk, path = self._disk, f"{self.path}/token"
        fd = disk.open(path)
        try:
            found = [_parse_slot(disk.read(fd, _SLOT.size, offset)) for offset in _SLOTS]
            known = [value for value in found if value is not None]
            if not known:
                raise Corrupted(path, "the counter of lease tokens is not what was written")
            # A slot that cannot be read may have held, and given out, the number after the other one.
            token = change(max(known) + found.count(None))
            turn = found.index(None) if None in found else found.index(min(known))
            faults.point("file.token.before_write")
            write_all(disk, fd, _slot(token), _SLOTS[turn])
            faults.point("file.token.before_fsync")
            sync(disk, fd, path)
            faults.point("file.token.after_fsync")
        finally:
            disk.close(fd)
        return token

    def clock(self) -> str:
        """What was kept of this boot's clock; "" when nothing was."""
        try:
            return self._read(f"{self.path}/clock").decode("ascii", "replace")
        except OSError:
            return ""

    def keep_clock(self, known: str) -> None:
        """Keep it for the other processes of this boot. Not synced, not insisted on: it can only delay what expires."""
        with contextlib.suppress(OSError):
            self.alone(lambda: self._keep_clock(known.encode()))

    def _keep_clock(self, known: bytes) -> None:
        fd = self._disk.open(f"{self.path}/clock", create=True)
        try:
            self._disk.truncate(fd, 0)
            write_all(self._disk, fd, known, 0)
        finally:
            self._disk.close(fd)

    # --- creation --------------------------------------------------------------------------------

    def _check_ours(self) -> None:
        """Refuse a folder in which others keep something: it was not meant, or would be mixed with what is theirs."""
        foreign = [name for name in self._disk.listdir(self.path) if name not in _OURS]
        # Looked for last: whoever made this store since has made the other names after this one.
        if foreign and not os.path.exists(f"{self.path}/perdure.json"):
            raise InvalidInput(
                f"{self.path} is no database, and not empty ({foreign[0]!r:.80} is in it): nothing was made; name a "
                f"folder of its own, such as file://{self.path}/perdure"
            )

    def _create(self) -> None:
        disk = self._disk
        names = disk.listdir(self.path)
        if "perdure.json" not in names:
            if "token" in names and disk.listdir(self.sessions):
                raise Corrupted(f"{self.path}/perdure.json", "it is missing, though there are sessions")
            disk.mkdir(self.sessions)
            fd = disk.open(f"{self.path}/token", create=True)
            try:
                for offset in _SLOTS:
                    write_all(disk, fd, _slot(0), offset)
                sync(disk, fd, f"{self.path}/token")
            finally:
                disk.close(fd)
            # Whoever made the folder may have been killed before it synced its name.
            sync_folder(disk, os.path.dirname(self.path))
            sync_folder(disk, self.path)
            # Last: a root with this file is complete.
            self._write_identity(Identity(os.urandom(16).hex(), os.urandom(8).hex()), "create")
        else:
            sync_folder(disk, self.path)

    def _write_identity(self, identity: Identity, what: str) -> None:
        disk, path = self._disk, f"{self.path}/perdure.json"
        said = {"perdure": "file store", "format": FORMAT, **identity._asdict()}
        said["check"] = _check(FORMAT, identity)
        raw = (json.dumps(said, indent=1) + "\n").encode()
        fd = disk.open(f"{path}.new", create=True)
        try:
            disk.truncate(fd, 0)
            write_all(disk, fd, raw, 0)
            faults.point(f"file.{what}.before_fsync")
            sync(disk, fd, path)
        finally:
            disk.close(fd)
        faults.point(f"file.{what}.before_rename")
        disk.rename(f"{path}.new", path)
        faults.point(f"file.{what}.after_rename")
        sync_folder(self._disk, self.path)

    def _read(self, path: str) -> bytes:
        fd = self._disk.open(path, write=False)
        try:
            return self._disk.read(fd, 64 << 10, 0)
        finally:
            self._disk.close(fd)


def _check(version: object, identity: Identity) -> int:
    return zlib.crc32(f"{version}/{identity.id}/{identity.epoch}".encode())


def _slot(token: int) -> bytes:
    raw = _SLOT_MAGIC + token.to_bytes(8, "little")
    return raw + zlib.crc32(raw).to_bytes(4, "little")


def _parse_slot(raw: bytes) -> int | None:
    if len(raw) != _SLOT.size:
        return None
    magic, token, crc = _SLOT.unpack(raw)
    return int(token) if magic == _SLOT_MAGIC and zlib.crc32(raw[:-4]) == crc else None
