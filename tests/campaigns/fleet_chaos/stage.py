"""Where a chaos run takes place: a store whose disk can be filled, or one on servers that can be restarted."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers import process
from tests.servers.postgres import postgres_url, start_postgres
from tests.servers.valkey import redis_url, start_valkey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.servers.process import Running

SIZE = 256 << 20
"""Bytes of the small disk."""
INSIDE = "PERDURE_CHAOS_NAMESPACE"


def enter_namespace(module: str, arguments: Sequence[str]) -> None:
    """Start this program anew where it may mount a disk of its own, which goes with it; stay here if that cannot be."""
    if INSIDE in os.environ or shutil.which("unshare") is None:
        return
    # The same user there: PostgreSQL does not run as root, nor as a user that only looks like it.
    user = [] if os.getuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    command = ["unshare", *user, "--mount"]
    if subprocess.run([*command, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=False, capture_output=True).returncode:
        return
    os.environ[INSIDE] = "1"
    os.execvp("unshare", [*command, sys.executable, "-m", module, *arguments])


class Disk:
    """A store in one file, on a disk that can be full."""

    kind = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._at = at = folder / "disk"
        at.mkdir()
        self._ballast = at / "ballast"
        self.is_real = False
        """Whether the disk itself can be full; else files of the workers may not grow."""
        if INSIDE in os.environ:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(at)], check=True)
            self.is_real = True
        self.url = f"sqlite:///{at}/chaos.db"

    @property
    def ends_as_told(self) -> bool:
        """Whether workers end only when they are told to."""
        return self.is_real

    @property
    def how(self) -> str:
        """How the disk is filled, for people."""
        if self.is_real:
            return f"disk full: a disk of its own of {SIZE >> 20} MB (tmpfs), filled until ENOSPC"
        return (
            "instead of a full disk files of workers that may not grow (RLIMIT_FSIZE), of which workers end: "
            "no disk can be mounted here"
        )

    def fill(self, workers: Sequence[int]) -> None:
        """Leave no space at all."""
        if not self.is_real:
            _limit(workers, 4096)
            return
        piece = b"\0" * (1 << 20)
        with self._ballast.open("ab", buffering=0) as file:
            while piece:
                try:
                    file.write(piece)
                except OSError as e:
                    if e.errno != errno.ENOSPC:
                        raise
                    piece = piece[: len(piece) // 2] if len(piece) > 4096 else b""

    def free(self, workers: Sequence[int]) -> None:
        """Give the space back."""
        if self.is_real:
            self._ballast.unlink(missing_ok=True)
        else:
            _limit(workers, resource.RLIM_INFINITY)

    def close(self) -> None:
        """Take the disk away; it would go with the process, too."""
        if self.is_real:
            subprocess.run(["umount", "--lazy", str(self._at)], check=True)


def _limit(workers: Sequence[int], size: int) -> None:
    for pid in workers:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


class Servers:
    """PostgreSQL behind Redis, both our own: nobody else sees them restart."""

    kind = "tiered"
    ends_as_told = True

    def __init__(self, folder: Path) -> None:
        self.postgres = start_postgres()
        try:
            self.redis = start_valkey()
        except BaseException:
            process.stop(self.postgres)
            raise
        self.url = f"tiered:{redis_url(self.redis)},{postgres_url(self.postgres)}"

    @property
    def how(self) -> str:
        """What is restarted, for people."""
        return "servers: PostgreSQL 18 and Valkey of this run alone"

    def restart_postgres(self, number: int, pause: float = 0.0) -> None:
        """Stop it with a signal (SIGINT: fast, SIGQUIT: immediate) and start it again later on what it has left."""
        old = self.postgres
        os.kill(old.server, number)
        wait_gone(old)
        time.sleep(pause)
        self.postgres = start_postgres(folder=old.folder, port=old.port)

    def flush_redis(self) -> None:
        """Forget everything that is hot."""
        import redis

        with redis.Redis(port=self.redis.port, socket_timeout=10) as client:
            client.flushall()

    def restart_redis(self) -> None:
        """Kill it and start it again."""
        old = self.redis
        process.kill(old)
        self.redis = start_valkey(folder=old.folder, port=old.port)

    def close(self) -> None:
        """Stop both, and remove what they wrote."""
        for server in (self.postgres, self.redis):
            process.stop(server)


def wait_gone(server: Running) -> None:
    """Until the guard has seen the server end, and has ended itself."""
    guard = process._ours.pop(server.guard)  # pyright: ignore[reportPrivateUsage]
    guard.wait(process.START_WITHIN)


Stage = Disk | Servers
FAST, IMMEDIATE = signal.SIGINT, signal.SIGQUIT
