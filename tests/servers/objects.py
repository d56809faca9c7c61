"""A real S3 server with conditional writes (SeaweedFS) from its wheel."""

from __future__ import annotations

import json
import socket
import sysconfig
from pathlib import Path

from tests.servers.process import Running, free_port, scratch, start

KEY_ID = "perdure-tests"
SECRET = "battery-staple"
GRPC_ABOVE = 10000


TRIES = 5


def start_objects(*, folder: str | None = None, port: int = 0, owner: int | None = None) -> Running:
    """A server on loopback; with ``folder`` the one that was stopped or killed there."""
    folder = folder or scratch("objects")
    ids = Path(folder) / "ids.json"
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    credentials = [{"accessKey": KEY_ID, "secretKey": SECRET}]
    ids.write_text(json.dumps({"identities": [{"name": "tests", "credentials": credentials, "actions": actions}]}))
    for _ in range(TRIES - 1):
        try:
            return _start(folder, port, ids, owner)
        except RuntimeError:
            # It needs ten ports, and between our look and its own somebody may have taken one.
            continue
    return _start(folder, port, ids, owner)


def _start(folder: str, port: int, ids: Path, owner: int | None) -> Running:
    """Each of its parts gets a port of its own, with its gRPC port far above."""
    port = port or free_port(GRPC_ABOVE)
    command = [str(Path(sysconfig.get_path("scripts")) / "weed"), "mini", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += [f"-dir={folder}", f"-s3.port={port}", f"-s3.config={ids}", "-webdav=false", "-admin.ui=false"]
    # What else it would start listens on fixed ports, or calls home.
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
    taken = {port, port + GRPC_ABOVE}
    for part in ("master", "volume", "filer", "admin"):
        # Free now is not enough: nor may it be the gRPC port of another part that has yet to be started.
        while taken & {own := free_port(GRPC_ABOVE), own + GRPC_ABOVE}:
            pass
        taken |= {own, own + GRPC_ABOVE}
        command.append(f"-{part}.port={own}")

    def ready() -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)):
                return False
            probe.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            try:
                return b"200" in probe.recv(100)
            except OSError:
                return False

    return start("objects", command, port, folder, ready, owner=owner)


def objects_options(server: Running) -> dict[str, str]:
    """What a client must know to connect."""
    return {
        "aws_endpoint": f"http://127.0.0.1:{server.port}",
        "aws_access_key_id": KEY_ID,
        "aws_secret_access_key": SECRET,
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
    }
