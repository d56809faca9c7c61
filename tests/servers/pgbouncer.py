"""Debian's PgBouncer in transaction mode, in front of a PostgreSQL of the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.servers.postgres import PASSWORD, USER
from tests.servers.process import Running, answers, free_port, give_away, scratch, start, unprivileged
from tests.servers.shared import of_the_run, postgres

SETTINGS = {
    "listen_addr": "127.0.0.1",
    "unix_socket_dir": "",
    "auth_type": "scram-sha-256",
    "pool_mode": "transaction",
    # Few and shared by all clients, so that hardly any two statements in a row meet the same one.
    "default_pool_size": "4",
    "max_client_conn": "500",
    "server_check_delay": "0",
    "log_connections": "0",
    "log_disconnections": "0",
}


def binary() -> str:
    """The program, installed when it is missing and that is allowed."""
    found = _find()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "pgbouncer"]):
            subprocess.run(
                command, check=False, capture_output=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            )
        found = _find()
    if found is None:
        raise RuntimeError("these tests need PgBouncer: apt-get install pgbouncer")
    return found


def _find() -> str | None:
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")


def start_pgbouncer(behind: Running, *, owner: int | None = None) -> Running:
    """A PgBouncer on loopback that passes everything on to the server behind it."""
    folder, port = scratch("pgbouncer"), free_port()
    users = Path(folder) / "users.txt"
    users.write_text(f'"{USER}" "{PASSWORD}"\n')
    settings = {**SETTINGS, "listen_port": str(port), "auth_file": str(users)}
    lines = ["[databases]", f"* = host=127.0.0.1 port={behind.port}", "[pgbouncer]"]
    lines += [f"{name} = {value}" for name, value in settings.items()]
    config = Path(folder) / "pgbouncer.ini"
    config.write_text("\n".join(lines) + "\n")
    give_away(folder)
    for path in (users, config):
        path.chmod(0o644)
    return start("pgbouncer", unprivileged([binary(), str(config)]), port, folder, lambda: answers(port), owner=owner)


def pgbouncer() -> Running:
    """The run's PgBouncer, before the run's PostgreSQL."""
    behind = postgres()
    return of_the_run("pgbouncer", lambda owner: start_pgbouncer(behind, owner=owner))
