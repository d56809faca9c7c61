"""A file in which processes that are killed write down what they do."""

from __future__ import annotations

import json
import os
from typing import Any


class Log:
    """What happened, in a file that survives any process: one line each, appended in one piece."""

    def __init__(self, path: str) -> None:
        self.path = path

    def note(self, what: str, **more: Any) -> None:
        """Write one thing down."""
        line = json.dumps({"what": what, **more}).encode() + b"\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line)
        finally:
            os.close(file)

    def read(self) -> list[dict[str, Any]]:
        """Everything that was written down."""
        with open(self.path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]
