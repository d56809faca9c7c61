"""The folder of a whole test run: everything temporary lies in it, all its processes know it, it goes with the run.

Tests have it in memory where there is room, because most of what they would wait for otherwise is the disk. Nothing is
proved by that disk: fsync is called all the same, and what a loss of power leaves behind is played by
:mod:`tests.campaigns.crash.powerloss`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
import time
from contextlib import contextmanager
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PLACE = "PERDURE_TEST_SERVERS"
"""The folder of the run, as ``<pid of the run>:<folder>``."""
PREFIX = "perdure-run-"
MEMORY = "/dev/shm"
ROOM = 3 * 2**30
"""Bytes that a run may need in memory."""

_alive: list[int] = []
"""The file whose lock that says that the run has not ended."""
PORTS = range(10_000, 20_000)
"""Below those that the system gives to outgoing connections: one of these could take a port before its server does.
Object storage has those 10,000 above as well."""
BLOCK = 1000
"""Ports that one run has to itself: a server that is started again finds its own free, whatever runs beside it."""
_block: list[socket.socket] = []


def begin(*, in_memory: bool = False) -> None:
    """Called once by the process that owns the run; its children inherit the place."""
    if PLACE in os.environ:
        return
    root = (memory() if in_memory else None) or _on_disk()
    _sweep(Path(root))
    # What multiprocessing keeps for this process lives longer than the run: it is removed when the process ends.
    get_temp_dir()
    folder = _new_folder(root)
    _alive.append(os.open(f"{folder}/alive", os.O_CREAT | os.O_RDWR))
    fcntl.flock(_alive[-1], fcntl.LOCK_EX)
    Path(folder, "block").write_text(str(_own_block()))
    os.environ[PLACE] = f"{os.getpid()}:{folder}"
    os.environ["TMPDIR"] = tempfile.tempdir = folder


def _own_block() -> int:
    """The first port of a block that no other run has while this one lives; names in the system go with it."""
    for start in range(PORTS.start, PORTS.stop, BLOCK):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0perdure-test-ports-{start}")
        except OSError:
            claim.close()
        else:
            _block.append(claim)
            return start
    raise RuntimeError(f"{len(PORTS) // BLOCK} runs of the tests are under way: wait for one of them")


def _new_folder(root: str) -> str:
    """One that an unprivileged server may enter. No letters of chance: tests look for words where its name stands."""
    for number in range(1, 1000):
        folder = f"{root}/{PREFIX}{os.getpid()}-{number}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
            os.chmod(folder, 0o755)
            return folder
    raise RuntimeError(f"there are a thousand folders of runs in {root}")


def where() -> tuple[int, Path]:
    """The process that owns the run, and its folder."""
    begin()
    owner, _, folder = os.environ[PLACE].partition(":")
    return int(owner), Path(folder)


@contextmanager
def alone(name: str) -> Iterator[Path]:
    """Nobody else of the run does what is called this; its folder."""
    _, folder = where()
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def forget() -> None:
    """Remove the folder at the end of the run."""
    shutil.rmtree(where()[1], ignore_errors=True)
    del os.environ[PLACE]
    os.environ.pop("TMPDIR", None)
    tempfile.tempdir = None
    os.close(_alive.pop())
    _block.pop().close()


def memory() -> str | None:
    """A folder in memory, the run's own or any, if the machine has one with room in which programs may be run."""
    if PLACE in os.environ and where()[1].is_relative_to(MEMORY):
        return str(where()[1])
    if not os.access(MEMORY, os.W_OK | os.X_OK):
        return None
    there = os.statvfs(MEMORY)
    if there.f_flag & os.ST_NOEXEC or there.f_bavail * there.f_frsize < ROOM:
        return None
    return MEMORY


def _on_disk() -> str:
    """Where folders are made by default; elsewhere when an unprivileged server could not get there."""
    usual = tempfile.gettempdir()
    for folder in (usual, "/tmp", "/var/tmp"):
        here = Path(folder).resolve()
        with contextlib.suppress(OSError):
            if os.getuid() != 0 or all(up.stat().st_mode & 0o001 for up in (here, *here.parents)):
                return folder
    return usual


def _sweep(root: Path) -> None:
    """Remove what runs have left that were killed: in memory it would stay until the machine is started again."""
    for left in root.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            # One that has just been made is not locked yet.
            if time.time() - left.stat().st_mtime < 60:
                continue
            with (left / "alive").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
