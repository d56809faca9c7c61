"""Blobs in a folder: each in a file named by the sha256 of its content, below its first two digits.

A file's time of change says when its content was last put, by the clock of the file system: those of the machines and
processes that put and delete are compared with it, never with each other. Whoever puts and whoever deletes meet at the
advisory lock of the file ``lock``: shared for putting, exclusive for deleting, so that a blob that is being
put again is never deleted under the hands of the one who relies on it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from perdure.blobs.content import CHUNK, REF, check_content, check_ref, checked, verified
from perdure.errors import HandleClosed, InvalidInput, NotFound, Poisoned
from perdure.system import faults
from perdure.system.clock import SystemClock
from perdure.system.disk import READ_ONLY, Disk, check_folder_of, explain, make_folder, sync, sync_folder, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from perdure.protocols import Clock

R = TypeVar("R")

_SHARD = re.compile(r"[0-9a-f]{2}")
_OURS = re.compile(r"[0-9a-f]{2}|lock|tmp-.*|lost\+found")
LEFTOVER = 3_600_000
"""Age in ms from which an unfinished file is taken for one that a killed process left behind."""


class LocalBlobs:
    """Implements :class:`perdure.protocols.Blobs` on a folder. ``disk`` is for tests that lose power.

    >>> import hashlib, tempfile
    >>> blobs = LocalBlobs(tempfile.mkdtemp())
    >>> ref = hashlib.sha256(b"a photograph").hexdigest()
    >>> blobs.put(ref, b"a photograph")
    >>> blobs.get(ref)
    b'a photograph'
    """

    def __init__(self, folder: str | os.PathLike[str], *, clock: Clock | None = None, disk: Disk | None = None) -> None:
        self.folder = os.path.abspath(folder)
        self._clock: Clock = clock or SystemClock()
        self._own_time = not isinstance(self._clock, SystemClock)
        """Whether a clock was given, by which everything goes."""
        self._disk = disk or Disk()
        self._closed = False
        self._poisoned = ""
        self._named = False
        """Whether the folder is there, and its name is durable; it is made when something is first put."""
        with self._noting():
            # Before anything was written that needs it.
            check_folder_of(self.folder)

    def put(self, ref: str, data: bytes) -> None:
        """Make the content durable under its ref; when it is there already, renew it instead."""
        path = self._path(ref)
        check_content(ref, data)
        with self._noting():
            self._make_folder()
            if self._renew(ref, path, len(data)):
                return
        unfinished, _, _ = self._write((data,))
        with self._noting():
            self._name(unfinished, path)

    def put_stream(self, chunks: Iterable[bytes]) -> str:
        """Make a content durable that comes in pieces, or renew it; its ref."""
        self._check()
        with self._noting():
            self._make_folder()
        unfinished, ref, size = self._write(chunks)
        path = self._path(ref)
        with self._noting():
            if self._renew(ref, path, size):
                self._disk.unlink(unfinished)
            else:
                self._name(unfinished, path)
        return ref

    def get(self, ref: str) -> bytes:
        """The content, verified; ``NotFound`` when missing, ``Corrupted`` when altered."""
        path = self._path(ref)
        with self._noting():
            fd = self._open(ref)
            try:
                data = self._disk.read(fd, self._disk.fstat(fd).st_size, 0)
            finally:
                self._disk.close(fd)
        return verified(ref, path, data)

    def get_stream(self, ref: str) -> Iterator[bytes]:
        """The content in pieces, verified before its last one is given out."""
        return checked(ref, self._path(ref), self._read_on(ref))

    def refs(self) -> Iterator[tuple[str, int]]:
        """All refs with the time (ms) each was last put or renewed, by the caller's own clock.

        Also clears what killed writers left.
        """
        self._check()
        with self._noting():
            if not (shards := self._disk.listdir(self.folder)):
                return
            try:
                now = self._now()
            except OSError as error:
                if error.errno not in READ_ONLY:
                    raise
                # Nothing can be deleted there either.
                now = self._clock.wall() * 1_000_000
            ahead = self._ahead(now)
            self._clear_leftovers(now // 1_000_000)
            for shard in shards:
                if not _SHARD.fullmatch(shard):
                    continue
                for name in self._disk.listdir(f"{self.folder}/{shard}"):
                    renewed = self._renewed(f"{self.folder}/{shard}/{name}")
                    if renewed is not None and REF.fullmatch(shard + name):
                        yield shard + name, renewed - ahead

    def delete(self, ref: str, unless_renewed_since: int) -> bool:
        """Delete unless it was renewed at or after that time (ms) of the caller's clock; True when deleted."""
        path = self._path(ref)
        if self._renewed(path) is None:
            return False

        def delete() -> bool:
            renewed = self._renewed(path)
            if renewed is None or renewed >= unless_renewed_since + self._ahead(self._now()):
                return False
            faults.point("blobs.delete.before_unlink")
            # Not synced: a blob that comes back after a power loss is merely collected again.
            self._disk.unlink(path)
            return True

        with self._noting():
            return self._locked(delete, exclusive=True)

    def close(self) -> None:
        """No further use; nothing is held open between calls."""
        self._closed = True

    # -- parts -------------------------------------------------------------------------------------

    def _path(self, ref: str) -> str:
        self._check()
        check_ref(ref)
        return f"{self.folder}/{ref[:2]}/{ref[2:]}"

    def _now(self) -> int:
        """The time (ns) by which files are dated: what the file system says when it writes one now."""
        if self._own_time:
            return self._clock.wall() * 1_000_000
        fd = self._disk.open(f"{self.folder}/lock", create=True)
        try:
            self._disk.utime(f"{self.folder}/lock", None)
            return self._disk.fstat(fd).st_mtime_ns
        finally:
            self._disk.close(fd)

    def _ahead(self, now: int) -> int:
        """How far that is ahead of our clock, in ms, and rather too little: then a blob looks younger."""
        return 0 if self._own_time else now // 1_000_000 - self._clock.wall() - 1

    def _is_whole(self, ref: str, path: str, size: int) -> bool:
        """Whether a blob is there as it was put: whoever puts it again has in hand what a damaged one lacks."""
        seen = hashlib.sha256()
        try:
            fd = self._disk.open(path, write=False)
        except FileNotFoundError:
            return False
        try:
            if self._disk.fstat(fd).st_size != size:
                return False
            for at in range(0, size, CHUNK):
                seen.update(self._disk.read(fd, CHUNK, at))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            # A sector that cannot be read is damage, too.
            return False
        finally:
            self._disk.close(fd)
        return seen.hexdigest() == ref

    def _renew(self, ref: str, path: str, size: int) -> bool:
        """Renew a blob that is there; False when it is not, or not whole."""
        # Outside of the lock: a large one takes its time, and whoever deletes it meanwhile is noticed.
        if not self._is_whole(ref, path, size):
            return False

        def renew() -> bool:
            try:
                stat = self._disk.stat(path)
            except FileNotFoundError:
                return False
            if stat.st_size != size:
                return False
            # Never back in time: a clock that was set back must not make a blob look older than it is.
            self._disk.utime(path, max(stat.st_mtime_ns, self._now()))
            # Whoever put it may have been killed before its name was durable.
            self._sync_names(os.path.dirname(path))
            return True

        return self._locked(renew, exclusive=False)

    def _write(self, chunks: Iterable[bytes]) -> tuple[str, str, int]:
        """A new file, synced, under a name nobody reads; its ref and size. What the pieces raise passes through."""
        path = f"{self.folder}/tmp-{os.urandom(8).hex()}"
        seen = hashlib.sha256()
        size = 0
        with self._noting():
            fd = self._disk.open(path, exclusive=True)
        try:
            faults.point("blobs.put.before_write")
            for chunk in chunks:
                seen.update(chunk)
                with self._noting():
                    write_all(self._disk, fd, chunk, size)
                size += len(chunk)
            with self._noting():
                self._disk.utime(path, self._now())
                faults.point("blobs.put.before_fsync")
                sync(self._disk, fd, path)
        except BaseException:
            # On a full disk the half that was written must not keep it full.
            with suppress(OSError):
                self._disk.unlink(path)
            raise
        finally:
            self._disk.close(fd)
        return path, seen.hexdigest(), size

    def _name(self, unfinished: str, path: str) -> None:
        """Give a written file its name, durably."""

        def name() -> None:
            shard = os.path.dirname(path)
            self._disk.mkdir(shard)
            faults.point("blobs.put.before_rename")
            self._disk.rename(unfinished, path)
            faults.point("blobs.put.after_rename")
            self._sync_names(shard)
            faults.point("blobs.put.after_fsync")

        try:
            self._locked(name, exclusive=False)
        except OSError:
            with suppress(OSError):
                self._disk.unlink(unfinished)
            raise

    def _open(self, ref: str) -> int:
        try:
            return self._disk.open(self._path(ref), write=False)
        except FileNotFoundError as error:
            raise NotFound(f"there is no blob {ref} in {self.folder}") from error

    def _read_on(self, ref: str) -> Iterator[bytes]:
        with self._noting():
            fd = self._open(ref)
        try:
            at = 0
            while True:
                with self._noting():
                    chunk = self._disk.read(fd, CHUNK, at)
                if not chunk:
                    return
                at += len(chunk)
                yield chunk
        finally:
            self._disk.close(fd)

    def _sync_names(self, shard: str) -> None:
        sync_folder(self._disk, shard)
        sync_folder(self._disk, self.folder)

    def _renewed(self, path: str) -> int | None:
        try:
            return self._disk.stat(path).st_mtime_ns // 1_000_000
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _clear_leftovers(self, now: int) -> None:
        for name in self._disk.listdir(self.folder):
            if name.startswith("tmp-"):
                path = f"{self.folder}/{name}"
                made = self._renewed(path)
                if made is not None and made < now - LEFTOVER:
                    with suppress(FileNotFoundError):
                        self._disk.unlink(path)

    def _make_folder(self) -> None:
        if self._named:
            return
        if not make_folder(self._disk, self.folder):
            self._check_ours()
            # Whoever made it may have been killed before its name was durable.
            sync_folder(self._disk, os.path.dirname(self.folder))
        self._named = True

    def _check_ours(self) -> None:
        """Refuse a folder in which others keep something, before anything is put there."""
        foreign = [name for name in self._disk.listdir(self.folder) if not _OURS.fullmatch(name)]
        # Looked for last: others may have put the first blob meanwhile.
        if foreign and not os.path.exists(f"{self.folder}/lock"):
            raise InvalidInput(
                f"{self.folder} holds no blobs, and is not empty ({foreign[0]!r:.80} is in it): nothing was written; "
                f"name a folder of their own, such as file://{self.folder}/blobs"
            )

    # -- the handle --------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._closed:
            raise HandleClosed(f"{self.folder}: these blobs were closed: open them again")
        if self._poisoned:
            raise Poisoned(self._poisoned)

    def _locked(self, do: Callable[[], R], *, exclusive: bool) -> R:
        # Opened each time: the lock belongs to the opened file, so threads keep each other out as well.
        fd = self._disk.open(f"{self.folder}/lock", create=True)
        try:
            self._disk.lock(fd, exclusive=exclusive)
            return do()
        finally:
            # Twice when it is interrupted: nothing may stay locked.
            try:
                self._disk.unlock(fd)
            except BaseException:
                self._disk.unlock(fd)
                raise
            finally:
                self._disk.close(fd)

    @contextmanager
    def _noting(self) -> Generator[None]:
        """Explain what the system says; remember a failed sync."""
        try:
            yield
        except OSError as error:
            raise explain(error, self.folder) from error
        except Poisoned as error:
            self._poisoned = f"{error}, so nobody knows what is on disk: see to the disk, and open these blobs again"
            raise Poisoned(self._poisoned) from error
