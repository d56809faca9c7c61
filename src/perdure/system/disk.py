"""The one seam between our file formats and the operating system, and what its errors mean. No format here.

The file store and the blob folder do all their writing through a :class:`Disk`, so that a test can
replace it by one that loses, tears and reorders whatever was not synced. What may be relied on:

* bytes written survive power loss only after :meth:`Disk.fdatasync` of that file;
* a name (created, renamed, removed) survives only after :meth:`Disk.fsync_folder` of its folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shlex
import stat
import time
import warnings
from io import FileIO
from typing import IO, TYPE_CHECKING

from perdure.errors import InvalidInput, Poisoned, StoreFull, Unavailable
from perdure.system import faults

if TYPE_CHECKING:
    from collections.abc import Generator

FOLDER_MODE = 0o700
FILE_MODE = 0o600
"""States hold what users said: only their owner may read them, whatever the umask."""

PATIENCE = 30.0
"""Seconds to wait for a lock that another process holds."""
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# EBADF: the file could be opened for reading only.
READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM, errno.EBADF}


class _Owner(FileIO):
    """Closes its file when it is thrown away, in C: no interrupt comes in between, and none gets lost there."""

    _finalizing = False
    """Hides that of the base, by which Python would warn of a file that an interrupt has left open."""


class Descriptor(int):
    """The number of an open file, which is closed at the latest when nobody knows the number any more."""

    owner: _Owner


class Disk:
    """Files by descriptor, names by path; every method is one system call (or a loop over one)."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = True) -> int:
        """Open a file; ``exclusive`` makes it and fails when it is there."""
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC
        if create or exclusive:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_EXCL
        owner = _Owner(os.open(path, flags, FILE_MODE), "r+b" if write else "rb")
        fd = Descriptor(owner.fileno())
        fd.owner = owner
        return fd

    def close(self, fd: int) -> None:
        """Close a descriptor. What was written and not synced stays unsynced."""
        if isinstance(fd, Descriptor):
            fd.owner.close()
        else:
            os.close(fd)

    def stat(self, path: str) -> os.stat_result:
        """What the folder says of a name."""
        return os.stat(path)

    def fstat(self, fd: int) -> os.stat_result:
        """What is known of an open file."""
        return os.fstat(fd)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes from ``offset``; fewer only at the end of the file."""
        data = os.pread(fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(fd, size - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def write(self, fd: int, data: bytes, offset: int) -> int:
        """Write at ``offset``; the answer may be short of ``len(data)``, as the system's own is."""
        return os.pwrite(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        """Cut (or extend) a file."""
        os.ftruncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        """Make what was written to this file durable, and the size needed to read it."""
        # Darwin has no fdatasync, and its fsync stops at the drive's own cache.
        if hasattr(os, "fdatasync"):
            os.fdatasync(fd)
        elif (barrier := getattr(fcntl, "F_FULLFSYNC", None)) is not None:
            fcntl.fcntl(fd, barrier)
        else:
            os.fsync(fd)

    def fsync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def mkdir(self, path: str) -> None:
        """Make one folder; no error when it is there already."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, FOLDER_MODE)

    def rename(self, source: str, target: str) -> None:
        """Give a file another name, replacing what had it."""
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        """Remove a name."""
        os.unlink(path)

    def utime(self, path: str, ns: int | None) -> None:
        """Set a file's time of change; None: to the time that it is, by the clock of the file system."""
        if ns is None:
            os.utime(path)
        else:
            os.utime(path, ns=(ns, ns))

    def listdir(self, path: str) -> list[str]:
        """The names in a folder, sorted; none when there is no such folder."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def lock(self, fd: int, *, exclusive: bool) -> None:
        """Wait for the advisory lock of an open file; it ends with :meth:`unlock` or the process.

        Others hold it for one write and one sync; one that was stopped while it did must not stop us for good.
        """
        how = (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB
        pause, waited = 0.0002, 0.0
        while True:
            try:
                return fcntl.flock(fd, how)
            except BlockingIOError:
                if waited > PATIENCE:
                    raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from None
            time.sleep(pause)
            waited += pause
            pause = min(pause * 1.5, 0.01)

    def unlock(self, fd: int) -> None:
        """Give the advisory lock back."""
        fcntl.flock(fd, fcntl.LOCK_UN)


def open_to_write(disk: Disk, path: str) -> int:
    """Open a file, making it if need be; for reading only where nothing may be written.

    A store on a read-only disk can still be read; a write says so when it is tried.
    """
    try:
        return disk.open(path, create=True)
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
        return disk.open(path, write=False)


def write_all(disk: Disk, fd: int, data: bytes, offset: int) -> None:
    """Write all of it; a disk that takes only a part is full."""
    done = disk.write(fd, data, offset)
    while done < len(data):
        more = disk.write(fd, data[done:], offset + done)
        if not more:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done += more


def sync(disk: Disk, fd: int, path: str) -> None:
    """Sync a file. After a failure nobody knows what is on disk, and asking again would not tell."""
    try:
        disk.fdatasync(fd)
    except OSError as error:
        raise Poisoned(f"{path}: could not be synced ({error.strerror})") from error


def sync_folder(disk: Disk, path: str) -> None:
    """Sync the names in a folder."""
    try:
        disk.fsync_folder(path)
    except OSError as error:
        raise Poisoned(f"{path}: could not be synced ({error.strerror})") from error


OWN_FOLDER = ".perdure"
"""The folder of this name is made for a database that lies in it."""


def _no_folder_of(path: str | os.PathLike[str]) -> str:
    folder = os.path.dirname(os.path.abspath(path))
    return (
        f"there is no folder {folder}, and nothing was made: correct the path {os.fspath(path)}, "
        f"or make its folder with `mkdir -p {shlex.quote(folder)}`"
    )


def check_folder_of(path: str | os.PathLike[str]) -> None:
    """Refuse a path whose folder is missing: one that was made for a slip of the finger is looked for by nobody."""
    folder = os.path.dirname(os.path.abspath(path))
    try:
        mode = os.stat(folder).st_mode
    except FileNotFoundError:
        raise InvalidInput(_no_folder_of(path)) from None
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)


def make_folder(disk: Disk, path: str) -> bool:
    """Make a folder where it is missing, durably named, in one that is there; whether it was missing."""
    if os.path.isdir(path):
        return False
    check_folder_of(path)
    # Looked at once more: others may have made it since.
    if os.path.exists(path) and not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    disk.mkdir(path)
    sync_folder(disk, os.path.dirname(path))
    return True


def explain(error: OSError, path: str) -> Unavailable:
    """What the system says, as what happened and what to do about it."""
    said, path = error.strerror or str(error), str(error.filename or path)
    if error.errno in _FULL:
        return StoreFull(
            f"{path}: no space left; nothing was written and earlier checkpoints are intact: free some "
            "space (or run retention) and try again"
        )
    if error.errno in READ_ONLY:
        return Unavailable(
            f"{path}: may not be written ({said}); nothing was written: check the owner and mode of the "
            "folder, and that its file system is mounted for writing"
        )
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return Unavailable(f"{path}: too many open files; nothing was written: raise `ulimit -n`")
    if error.errno == errno.ETIMEDOUT:
        return Unavailable(
            f"{path}: another process has held the lock for {PATIENCE:.0f} s; nothing was written: see whether "
            "it hangs or was stopped, then try again"
        )
    return Unavailable(f"{path}: {said}; nothing was written: see to the disk, then try again")


_NETWORK = {
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs", "gfs2", "glusterfs", "gpfs",
    "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "pvfs2", "smb2", "smb3", "smbfs", "virtiofs",
}  # fmt: skip
_NETWORK_FUSE = {
    "ceph", "gcsfuse", "glusterfs", "goofys", "juicefs", "rclone", "s3fs", "seaweedfs", "sshfs", "weed",
}  # fmt: skip


def filesystem(path: str | os.PathLike[str], mounts: str | None = None) -> str:
    """The type of the filesystem a path lies on; "" when nobody can tell."""
    if mounts is None:
        try:
            with open("/proc/mounts", encoding="utf-8", errors="surrogateescape") as file:
                mounts = file.read()
        except OSError:
            return ""
    target = os.path.realpath(path)
    best, found = "", ""
    for fields in (fields for line in mounts.splitlines() if len(fields := line.split(" ")) >= 3):
        where = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1])
        inside = target == where or target.startswith(where.rstrip("/") + "/")
        # A later mount on the same place hides an earlier one.
        if inside and len(where) >= len(best):
            best, found = where, fields[2]
    return found


def network_filesystem(path: str | os.PathLike[str], mounts: str | None = None) -> str:
    """The type of the network filesystem a path lies on; "" for a local one or when nobody can tell.

    >>> network_filesystem("/data/agents.db", "server:/x /data nfs4 rw 0 0")
    'nfs4'
    >>> network_filesystem("/local/agents.db", "/dev/sda / ext4 rw 0 0\\nserver:/x /data nfs4 rw 0 0")
    ''
    """
    found = filesystem(path, mounts)
    kind, _, fuse = found.partition(".")
    return found if kind in _NETWORK or (kind == "fuse" and fuse in _NETWORK_FUSE) else ""


def warn_if_network(path: str | os.PathLike[str]) -> None:
    """Warn (once per place, as warnings do) when a store is opened on a network filesystem."""
    if kind := network_filesystem(path):
        warnings.warn(
            f"{os.fspath(path)} lies on a network filesystem ({kind}): its locks and syncs may not protect "
            "checkpoints from a second machine or a power loss. Use a local disk or a server store.",
            stacklevel=4,
        )


@contextlib.contextmanager
def write_whole(path: str | os.PathLike[str], *, new: bool = False) -> Generator[IO[bytes]]:
    """A file to write to, which gets its name when all of it is durable.

    If that fails, whatever had the name before still has it, and nothing is left behind. With ``new`` that is so, too,
    when something has got the name meanwhile: ``FileExistsError``. What a killed one has left behind the next one
    for the same name removes. Through a link the file is replaced that it names, not the link.
    """
    target = os.path.realpath(path)
    try:
        _remove_abandoned(target)
        fd, unfinished = _begun(target)
        try:
            # Its lock is given back when it has its name: until then it is nobody's leftover.
            with open(fd, "wb", closefd=False) as file:
                yield file
                file.flush()
                faults.point("whole_file.before_fsync")
                os.fsync(file.fileno())
            faults.point("whole_file.before_rename")
            (_rename_new if new else os.replace)(unfinished, target)
        except BaseException:
            os.unlink(unfinished)
            raise
        finally:
            os.close(fd)
        Disk().fsync_folder(os.path.dirname(target))
    except FileExistsError:
        raise
    except OSError as e:
        if e.errno == errno.ENOENT and not os.path.exists(os.path.dirname(target)):
            raise Unavailable(_no_folder_of(path)) from e
        raise explain(e, target) from e


def _begun(target: str) -> tuple[int, str]:
    """A file without its name yet, which is locked while somebody writes it."""
    while True:
        # By chance: the number of a process is another one's, too, in another container.
        unfinished = f"{target}.{os.urandom(4).hex()}.tmp"
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            # Where a filesystem has no locks, nothing is taken for a leftover either.
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                return fd, unfinished
        except BaseException:
            os.close(fd)
            os.unlink(unfinished)
            raise
        # Somebody has taken it for a leftover before it was locked.
        os.close(fd)


def _remove_abandoned(target: str) -> None:
    """Remove unfinished files of a name that nobody writes any more: a lock ends with whoever holds it."""
    folder, name = os.path.split(target)
    theirs = re.compile(re.escape(name) + r"\.[0-9a-f]{8}\.tmp")
    # What cannot be looked at or removed is in nobody's way.
    with contextlib.suppress(OSError):
        for found in filter(theirs.fullmatch, os.listdir(folder)):
            with contextlib.suppress(OSError), open(os.path.join(folder, found), "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(file.name)


def _rename_new(unfinished: str, target: str) -> None:
    """Give a file a name that nothing has."""
    try:
        os.link(unfinished, target)
    except OSError as e:
        if e.errno not in (errno.EPERM, errno.EOPNOTSUPP):
            raise
        # A filesystem without second names.
        os.replace(unfinished, target)
    else:
        os.unlink(unfinished)
