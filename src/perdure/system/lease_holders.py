"""Names for lease holders, and whether the process behind a name is certainly dead.

A holder's name is "host/pid/start/boot/namespace/nonce". A process killed with SIGKILL cannot give
its lease back; on the same boot and in the same process namespace we can see that it is gone, so the
next process need not wait for the lease to run out. Anything less than certain counts as alive.
"""

from __future__ import annotations

import functools
import os

from perdure.system.clock import boot_id


def new_holder() -> str:
    """A fresh name for one handle of this process."""
    return f"{_process(os.getpid())}/{os.urandom(4).hex()}"


@functools.lru_cache(maxsize=1)
def _process(pid: int) -> str:
    """This process: what every one of its names begins with. A child of a fork has another id, and another name."""
    host = os.uname().nodename.replace("/", "_")
    return f"{host}/{pid}/{_started(pid)}/{boot_id()}/{_namespace()}"


def describe(holder: str) -> str:
    """A holder for people to read."""
    parts = holder.split("/")
    return f"process {parts[1]} on {parts[0]}" if len(parts) == 6 else holder


def is_dead(holder: str) -> bool:
    """True only when the process behind the name has certainly ended.

    >>> is_dead(new_holder())
    False
    >>> is_dead("somebody else")
    False
    """
    parts = holder.split("/")
    if len(parts) != 6 or parts[3] != boot_id() or not parts[4] or parts[4] != _namespace():
        return False
    pid, started = int(parts[1]), parts[2]
    return _started(pid) != started


def _started(pid: int) -> str:
    """When a process started, in the boot's ticks; "" when there is no such process (or no /proc)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            stat = file.read()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    # A zombie has ended: it only waits for its parent to notice.
    return "" if fields[0] in "ZX" else fields[19]


def _namespace() -> str:
    """The process namespace; "" where unknown, and then nobody is ever called dead."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
