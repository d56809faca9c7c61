"""Runs one server and ends it when whoever asked for it is gone, however it went: ``python -m tests.servers.guard``.

A test run that is killed with SIGKILL cannot clean up after itself; this process outlives it by a moment and does.
It is also a child subreaper, so that what the server itself started (weed and its parts, backends) goes with it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys

PR_SET_CHILD_SUBREAPER = 36


def main(owner: int, command: list[str]) -> int:
    """Run ``command`` until it ends or the process ``owner`` does; SIGTERM ends it too."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        watched = os.pidfd_open(owner)
    except ProcessLookupError:
        return 1
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    running = os.pidfd_open(child.pid)
    wake, woken = os.pipe()
    signal.signal(signal.SIGTERM, lambda *_: os.write(woken, b"x"))
    select.select([watched, running, wake], [], [])
    end_family()
    return 0


def end_family() -> None:
    """Kill every descendant; each generation becomes ours when its parent dies, so go on until none is left."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as listed:
            children = [int(pid) for pid in listed.read().split()]
        if not children:
            return
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
