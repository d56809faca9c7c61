"""One server process under its guard: started, waited for, killed, frozen, started again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.servers import place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parents[2]
START_WITHIN = 60.0
NOBODY = 65534


class Running(NamedTuple):
    """A server that answers: where, in which folder, kept by which guard."""

    kind: str
    port: int
    folder: str
    guard: int
    server: int
    """The pid of the server itself."""


def free_port(also: int = 0) -> int:
    """A port that nobody listens on, given to nobody else of the run; with ``also`` the one so far above it is, too."""
    with place.alone("ports") as folder:
        first, note = int((folder / "block").read_text()), folder / "ports"
        last = int(note.read_text()) if note.exists() else first
        for step in range(1, place.BLOCK):
            port = first + (last - first + step) % place.BLOCK
            if _is_free(port) and (not also or _is_free(port + also)):
                note.write_text(str(port))
                return port
    raise RuntimeError("no port is free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # A server would not mind connections of the past either.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def scratch(kind: str) -> str:
    """A new folder that an unprivileged server may enter too."""
    folder = tempfile.mkdtemp(prefix=f"perdure-{kind}-")
    os.chmod(folder, 0o755)
    return folder


def start(
    kind: str, command: Sequence[str], port: int, folder: str, ready: Callable[[], bool], *, owner: int | None = None
) -> Running:
    """Start a server under a guard that watches ``owner`` (None: this process) and wait until it answers."""
    log = Path(folder) / "server.log"
    with log.open("ab") as output:
        guard = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.guard", str(owner or os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=ROOT,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_WITHIN
    while not ready():
        if guard.poll() is not None or time.monotonic() > deadline:
            # Not SIGKILL: the guard takes the server with it.
            guard.terminate()
            guard.wait(START_WITHIN)
            raise RuntimeError(f"{kind} did not start: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.01)
    _ours[guard.pid] = guard
    return Running(kind, port, folder, guard.pid, _child_of(guard.pid))


_ours: dict[int, subprocess.Popen[bytes]] = {}
"""Guards that this process started and must wait for, so that none stays a zombie."""


def _child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def stop(server: Running, *, keep: bool = False) -> None:
    """End a server at once, and its folder with it unless told to ``keep`` that."""
    try:
        os.kill(server.guard, signal.SIGTERM)
        _wait_gone(server.guard)
    except ProcessLookupError:
        pass
    if not keep:
        shutil.rmtree(server.folder, ignore_errors=True)


def kill(server: Running) -> None:
    """SIGKILL the server itself, as a crash would; the guard sees it and ends what is left."""
    os.kill(server.server, signal.SIGKILL)
    _wait_gone(server.guard)


def freeze(server: Running) -> None:
    """SIGSTOP: it accepts connections and answers nothing. Returns when its last thread has stopped."""
    os.kill(server.server, signal.SIGSTOP)
    tasks = Path(f"/proc/{server.server}/task")
    deadline = time.monotonic() + START_WITHIN
    while any((task / "stat").read_text().rpartition(")")[2].split()[0] != "T" for task in tasks.iterdir()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"process {server.server} did not stop")
        time.sleep(0.001)


def thaw(server: Running) -> None:
    """Let a frozen server go on."""
    os.kill(server.server, signal.SIGCONT)


def _wait_gone(pid: int) -> None:
    if guard := _ours.pop(pid, None):
        guard.wait(START_WITHIN)
        return
    deadline = time.monotonic() + START_WITHIN
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.005)
    raise RuntimeError(f"process {pid} did not end")


def answers(port: int) -> bool:
    """Whether anybody accepts connections on the port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def unprivileged(command: Sequence[str]) -> list[str]:
    """The command as nobody when we are root (PostgreSQL refuses to run as root), else as it is."""
    if os.getuid() != 0:
        return list(command)
    # Not from here: nobody may not be let into wherever the project lies.
    there = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--", "env", "--chdir=/"]
    return [*there, *command]


def give_away(folder: str) -> None:
    """Let the unprivileged server own the folder."""
    if os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
