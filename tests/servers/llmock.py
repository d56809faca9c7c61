"""llmock: a server with OpenAI's API that is not ours, told over HTTP what to say and when to break."""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import Any

from tests.servers.process import Running, free_port, scratch, start

KEY = "sk-test-0123456789abcdef"


def start_llmock(*options: str, owner: int | None = None) -> Running:
    """A server that answers what it is told to, and calls no tools by itself."""
    port = free_port()
    command = [sys.executable, "-m", "llmock.cli", "serve", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--tool-mode", "off", "--log-level", "warning", *options]
    return start("llmock", command, port, scratch("llmock"), lambda: _answers(port), owner=owner)


def base_url(server: Running) -> str:
    """What a client is told."""
    return f"http://127.0.0.1:{server.port}/v1"


def plan(server: Running, *behaviors: dict[str, Any]) -> None:
    """What the next requests get, in this order."""
    _admin(server, "POST", "/scenario", {"behaviors": list(behaviors)})


def requests(server: Running) -> list[dict[str, Any]]:
    """The requests so far, as the server saw them."""
    return _admin(server, "GET", "/requests")["requests"]


def verdict(server: Running) -> dict[str, Any]:
    """What the server thinks of its client."""
    return _admin(server, "GET", "/verdict")


def forget(server: Running) -> None:
    """Begin anew."""
    _admin(server, "POST", "/reset")


def reply(text: str | None = None, *calls: tuple[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    """An answer: text, calls, or both."""
    wanted = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return {"type": "reply", "text": text, "tool_calls": wanted, **more}


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
            return True
    except OSError:
        return False


def _admin(server: Running, method: str, path: str, body: Any = None) -> Any:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/_llmock{path}", data, method=method)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)
