"""Whether a path lies on a network filesystem, where locks and syncs may not mean what they say."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path

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
    >>> network_filesystem("/home/agents.db", "/dev/sda / ext4 rw 0 0\\nserver:/x /data nfs4 rw 0 0")
    ''
    """
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return ""
    target = os.path.realpath(path)
    best, found = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        where = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1])
        inside = target == where or target.startswith(where.rstrip("/") + "/")
        # A later mount on the same place hides an earlier one.
        if inside and len(where) >= len(best):
            best, found = where, fields[2]
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
