"""Telling somebody that a session waits for people: after the commit, in the background, and never in the way.

The body has the shape in which AG-UI asks for decisions, so that a front end can show it as it is.
"""

from __future__ import annotations

import base64
import http.client
import json
import logging
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from perdure.agent.run_result import approval_interrupt, doubt_interrupt
from perdure.errors import InvalidInput
from perdure.model import MAIN
from perdure.system.urls import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.agent.run_result import RunResult

    Notify = str | Callable[[dict[str, Any]], Any]

TRIES, PAUSE, TIMEOUT = 3, 1.0, 5.0
"""How often it is tried, seconds before the second try (twice as many before each next), and seconds for an answer."""
TELLERS, WAITING = 8, 200
"""How many are told at a time in one process, and how many wait for that at most."""
_log = logging.getLogger("perdure.agent")


def check_notify(notify: Notify | None) -> Notify | None:
    """What an agent was given to tell: an address of the web, or a function."""
    if notify is None or callable(notify):
        return notify
    given: Any = notify
    parts = urlsplit(given if isinstance(given, str) else "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput("notify is a URL that begins with https:// or http://, or a function of one argument")
    return notify


def body_of(agent: str, result: RunResult, branch: str = MAIN) -> dict[str, Any]:
    """What is told of a run that waits for people, or has failed."""
    asked = [approval_interrupt(a, result.session, branch) for a in result.approvals]
    asked += [doubt_interrupt(d, result.session, branch) for d in result.in_doubt]
    about = {"session": result.session, "branch": branch, "agent": agent, "status": result.status, "step": result.step}
    return {**about, "reason": result.reason, "interrupts": asked}


class Tellers:
    """Those who tell, in the background; a process that ends waits for them, which takes a bounded time."""

    def __init__(self) -> None:
        self.begin()
        if hasattr(os, "register_at_fork"):
            # They stay with the parent.
            os.register_at_fork(after_in_child=self.begin)

    def begin(self) -> None:
        """With nobody at work."""
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Notify, dict[str, Any]]] = deque()
        self._at_work = 0

    def tell(self, notify: Notify, body: dict[str, Any]) -> None:
        """Have somebody told."""
        with self._lock:
            if len(self._waiting) >= WAITING:
                _log.warning(
                    "%d notifications wait already: %s is not told that session %r is %s",
                    len(self._waiting), _shown(notify), body["session"], body["status"],
                )  # fmt: skip
                return
            self._waiting.append((notify, body))
            if self._at_work < TELLERS:
                threading.Thread(target=self._work, name="perdure-notify").start()
                self._at_work += 1

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._at_work -= 1
                    return
                one = self._waiting.popleft()
            _tell(*one)


tell = Tellers().tell


def _shown(notify: Notify) -> str:
    return shown(notify) if isinstance(notify, str) else getattr(notify, "__qualname__", "a function")


def _tell(notify: Notify, body: dict[str, Any]) -> None:
    where, problem = _shown(notify), ""
    for attempt in range(TRIES):
        if attempt:
            if not threading.main_thread().is_alive():
                break  # the process ends, and others wait
            time.sleep(PAUSE * 2 ** (attempt - 1))
        try:
            problem = _post(notify, body) if isinstance(notify, str) else _call(notify, body)
        except BaseException as e:
            # Whatever it is, neither a run nor this thread fails of it; its words may hold a secret.
            problem = type(e).__name__
        if not problem:
            return
    _log.warning("%s could not be told that session %r is %s: %s", where, body["session"], body["status"], problem)


def _call(fn: Callable[[dict[str, Any]], Any], body: dict[str, Any]) -> str:
    answer = fn(body)
    if hasattr(answer, "__await__"):
        import asyncio

        async def finish() -> None:
            await answer

        asyncio.run(finish())
    return ""


def _post(url: str, body: dict[str, Any]) -> str:
    """Post once; what was wrong, or "". Redirects are not followed: they would take the body elsewhere."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT)
    headers = {"Content-Type": "application/json", "Idempotency-Key": f"{body['session']}:{body['step']}"}
    headers["Idempotency-Key"] = base64.b16encode(headers["Idempotency-Key"].encode()).decode()[:200]
    if parts.username is not None:
        said = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(said.encode()).decode('ascii')}"
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", path, json.dumps(body, default=str).encode(), headers)
        answer = connection.getresponse()
        answer.read(1024)
        return "" if 200 <= answer.status < 300 else f"it answered {answer.status}"
    finally:
        connection.close()
