"""A real terminal, for what commands show only there."""

from __future__ import annotations

import os
import pty
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def in_terminal(line: list[str], folder: Path, env: dict[str, str]) -> bytes:
    """What a command prints in a terminal."""
    leader, follower = pty.openpty()
    try:
        child = subprocess.Popen(line, cwd=folder, env=env, stdin=follower, stdout=follower, stderr=follower)
        os.close(follower)
        shown = b""
        try:
            while part := os.read(leader, 65536):
                shown += part
        except OSError:
            # How a terminal says that nobody writes to it any more.
            pass
        assert child.wait(120) == 0, shown
        return shown
    finally:
        os.close(leader)
