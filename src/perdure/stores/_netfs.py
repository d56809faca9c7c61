"""Whether a path lies on a network filesystem, where locks and syncs may not mean what they say."""

from __future__ import annotations

import os
import re
import warnings

_NETWORK = {
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs", "gfs2", "glusterfs", "gpfs",
    "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "pvfs2", "smb2", "smb3", "smbfs", "virtiofs",
}  # fmt: skip
_NETWORK_FUSE = {
    "ceph", "gcsfuse", "glusterfs", "goofys", "juicefs", "rclone", "s3fs", "seaweedfs", "sshfs", "weed",
}  # fmt: skip


def network_filesystem(path: str | os.PathLike[str], mounts: str | None = None) -> str:
    """The type of the network filesystem a path lies on; "" for a local one or when nobody can tell.

    >>> network_filesystem("/data/agents.db", "server:/x /data nfs4 rw 0 0")
    'nfs4'
    >>> network_filesystem("/local/agents.db", "/dev/sda / ext4 rw 0 0\\nserver:/x /data nfs4 rw 0 0")
    ''
    """
    if mounts is None:
        try:
            with open("/proc/mounts", encoding="utf-8", errors="surrogateescape") as file:
                mounts = file.read()
        except OSError:
            return ""
    lines = [fields for line in mounts.splitlines() if len(fields := line.split(" ")) >= 3]
    if not any(_is_network(fields[2]) for fields in lines):
        return ""
    target = os.path.realpath(path)
    best, found = "", ""
    for fields in lines:
        where = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1])
        inside = target == where or target.startswith(where.rstrip("/") + "/")
        # A later mount on the same place hides an earlier one.
        if inside and len(where) >= len(best):
            best, found = where, fields[2]
    return found if _is_network(found) else ""


def _is_network(filesystem: str) -> bool:
    kind, _, fuse = filesystem.partition(".")
    return kind in _NETWORK or (kind == "fuse" and fuse in _NETWORK_FUSE)


def warn_if_network(path: str | os.PathLike[str]) -> None:
    """Warn (once per place, as warnings do) when a store is opened on a network filesystem."""
    if kind := network_filesystem(path):
        warnings.warn(
            f"{os.fspath(path)} lies on a network filesystem ({kind}): its locks and syncs may not protect "
            "checkpoints from a second machine or a power loss. Use a local disk or a server store.",
            stacklevel=4,
        )
