"""What the Redis store promises, which depends on how the server was set up. No I/O here, but for warnings."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from perdure.model import Promise

if TYPE_CHECKING:
    from perdure.redislink import Server

_RETURNED = "When a commit has returned the server has it, so it survives the end of this process. "
_KEPT = {
    "always": (
        "The server wrote it to its append-only file and synced that first (appendfsync always): it survives the end "
        "of the server and a loss of power, as far as the disk keeps what it says it has synced."
    ),
    "everysec": (
        "The server syncs its append-only file once a second (appendfsync everysec): when the server crashes or loses "
        "power, the commits of the last two seconds or so may be gone, and nobody is told."
    ),
    "no": (
        "The server leaves it to its operating system when the append-only file is synced (appendfsync no): a loss of "
        "power may take back the commits of half a minute or more."
    ),
    "snapshots": (
        "The server keeps no append-only file and only takes snapshots of its memory now and then: when it crashes, "
        "all commits since the last snapshot are gone. Use CONFIG SET appendonly yes and appendfsync always."
    ),
    "nothing": (
        "The server persists nothing: when it ends, everything is gone. Use CONFIG SET appendonly yes and "
        "appendfsync always."
    ),
    "unknown": (
        "The server does not say whether and when it writes to a disk (CONFIG GET is not allowed): ask whoever runs "
        "it, and count on nothing when the server crashes."
    ),
}
_FAILOVER = (
    " Replication is asynchronous: a replica that is promoted may lack commits that had returned. A promotion is "
    "noticed when we connect again: leases and cursors from before it are refused."
)
_WAITED = (
    " Each commit waits until {n} replica(s) have it in memory, which makes it unlikely, not impossible, that a "
    "promotion loses it."
)


def kept_by(server: Server) -> str:
    """Which of the promises holds on this server."""
    if server.appendonly:
        return server.appendfsync if server.appendfsync in _KEPT else "unknown"
    if server.appendonly is None or server.save is None:
        return "unknown"
    return "snapshots" if server.save.strip() else "nothing"


def promise_of(server: Server, wait_replicas: int) -> Promise:
    """The promise in code and in words."""
    kept = kept_by(server)
    waited = _WAITED.format(n=wait_replicas) if wait_replicas else ""
    return Promise(
        process_crash=kept in ("always", "everysec", "no"),
        power_loss=kept == "always",
        words=_RETURNED + _KEPT[kept] + _FAILOVER + waited,
    )


def warn_if_nothing_is_kept(server: Server, where: str) -> None:
    """Warn (once per place, as warnings do) when everything is gone with the server's process."""
    if kept_by(server) == "nothing":
        warnings.warn(
            f"{where} persists nothing: when the server ends, all checkpoints are gone. "
            "CONFIG SET appendonly yes and CONFIG SET appendfsync always make it keep them.",
            stacklevel=4,
        )
