"""Names for lease holders, and whether the process behind a name is certainly dead.

A holder's name is "host/pid/start/boot/namespace/nonce". A process killed with SIGKILL cannot give
its lease back; on the same boot and in the same process namespace we can see that it is gone, so the
next process need not wait for the lease to run out. Anything less than certain counts as alive.

The nonce of who runs the agent of a session ends in "-agent": whoever else has a session open need not answer it.
"""

from __future__ import annotations

import functools
import os
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from perdure.errors import Busy
from perdure.system.clock import boot_id

if TYPE_CHECKING:
    from collections.abc import Generator

_AGENT = "-agent"
_runs: ContextVar[bool] = ContextVar("perdure_runs_agent", default=False)


@contextmanager
def running_agent() -> Generator[None]:
    """Names that are made here are of who opens a session to run its agent."""
    before = _runs.set(True)
    try:
        yield
    finally:
        _runs.reset(before)


def runs_agent(holder: str) -> bool:
    """Whether somebody has a session to run its agent, and not merely to read and write it.

    >>> with running_agent():
    ...     runs_agent(new_holder())
    True
    >>> runs_agent(new_holder())
    False
    """
    return holder.endswith(_AGENT)


def new_holder() -> str:
    """A fresh name for one handle of this process."""
    return f"{_process(os.getpid())}/{os.urandom(4).hex()}{_AGENT if _runs.get() else ''}"


@functools.lru_cache(maxsize=1)
def _process(pid: int) -> str:
    """This process: what every one of its names begins with. A child of a fork has another id, and another name."""
    host = os.uname().nodename.replace("/", "_")
    return f"{host}/{pid}/{_started(pid) or ''}/{boot_id()}/{_namespace()}"


def describe(holder: str) -> str:
    """A holder for people to read."""
    parts = holder.split("/")
    return f"process {parts[1]} on {parts[0]}" if len(parts) == 6 else holder


def busy(session: str, holder: str, until: int) -> Busy:
    """The error for who finds a session held by somebody, this very process perhaps."""
    return Busy(session, describe(holder), until, own=holder.rpartition("/")[0] == _process(os.getpid()))


def is_dead(holder: str) -> bool:
    """True only when the process behind the name has certainly ended.

    >>> is_dead(new_holder())
    False
    >>> is_dead("somebody else")
    False
    """
    parts = holder.split("/")
    if len(parts) != 6 or parts[3] != boot_id() or not parts[4] or parts[4] != _namespace() or not parts[1].isdecimal():
        return False
    pid, started = int(parts[1]), parts[2]
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        pass  # somebody else's, so there is one
    # There is a process of this number: the same one, unless it is seen to have ended or to have started later.
    seen = _started(pid)
    return seen is not None and (seen == ENDED or ("" != started != seen))


ENDED = "ended"


def _started(pid: int) -> str | None:
    """When a process started, in the boot's ticks, or that it has ended; None when that cannot be seen.

    It may not be: there is no /proc, it hides the processes of others, or no more files can be opened.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            stat = file.read()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    # A zombie has ended: it only waits for its parent to notice.
    return ENDED if fields[0] in "ZX" else fields[19]


def _namespace() -> str:
    """The process namespace; "" where unknown, and then nobody is ever called dead."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
