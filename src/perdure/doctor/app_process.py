"""A child process that runs somebody's app on a scratch database: :mod:`app` kills it and starts it again.

Run as ``python -m perdure.doctor.app_process FD TASK``, where TASK is a :class:`Task` as JSON. What it sees goes to
the file descriptor, one JSON object a line, so that the app may print what it likes. Where it is told to stop it says
so and waits for the signal that it will not survive.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

import perdure
from perdure.doctor.instrumentation import Instrumentation, Stop, is_theirs
from perdure.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.agent.agent import Agent

SESSION = "doctor"
REPEAT_FOR = 8.0
"""Seconds after which an app is not run again."""
AGENT, FUNCTION, PROGRAM = "agent", "function", "program"


class Task(NamedTuple):
    """What a child is to do."""

    app: str
    url: str
    say: tuple[str, ...] = ()
    stop: tuple[str, int] = ("", 0)
    """What it waits to be killed at, and the how-manyth of it."""
    repeat: int = 1
    look: bool = False
    """Only say what the app is."""
    limit: int = 0
    """The model refuses requests of more tokens than these; 0: it is as it is."""
    contend: bool = False
    """Somebody else saves each session first that is written without a lease."""
    program: bool = False
    """Run the file as a program of its own."""
    padding: int = 0
    """Tokens that are said besides, each time."""


class AppProcess:
    """What the child does: the app is loaded, watched and run as often as its task says."""

    def __init__(self, task: Task, fd: int) -> None:
        self._task = task
        self._out = os.fdopen(fd, "w", encoding="utf-8")
        self._lock = threading.Lock()
        self._watch = Instrumentation(self.tell, task.url, Stop(*task.stop), limit=task.limit, contend=task.contend)
        # A child that the app starts by forking tells what it does, too, and must find the lock free.
        os.register_at_fork(after_in_child=self._unlock)

    def _unlock(self) -> None:
        self._lock = threading.Lock()

    def tell(self, **what: Any) -> None:
        """One thing to the parent; short enough for a pipe to keep it whole."""
        with self._lock:
            self._out.write(json.dumps(what) + "\n")
            self._out.flush()

    def run(self) -> None:
        """Load the app and run it."""
        from perdure.agent.agent import Agent
        from perdure.agent.app_loader import load_app

        self._watch.install()
        if self._task.program:
            self._run_program()
            self.tell(event="ended")
            return
        try:
            app = load_app(self._task.app)
        except InvalidInput:
            if self._task.look and _is_program(self._task.app):
                self.tell(kind=PROGRAM)
                return
            raise
        if self._task.look:
            self.tell(**(_about(app) if isinstance(app, Agent) else {"kind": FUNCTION}))
            return
        if isinstance(app, Agent):
            asyncio.run(self._talk(app))
        else:
            self._work(app)
        self.tell(event="ended")

    def _run_program(self) -> None:
        import runpy

        path = self._task.app
        sys.argv = [path]
        sys.path.insert(0, os.path.dirname(path))
        try:
            for _ in range(self._task.repeat):
                runpy.run_path(path, run_name="__main__")
                self._round()
        except SystemExit as end:
            if end.code not in (None, 0):
                raise InvalidInput(f"it ended by itself with {str(end.code)[:200]}") from None

    async def _talk(self, agent: Agent) -> None:
        async with perdure.open_async(self._task.url) as db:
            for number, words in enumerate(self._task.say):
                said = f"{words}\n\n{_filler(self._task.padding, number)}".strip()
                # By key: what was said before a kill is not said twice. Heard, so that it is said in pieces.
                result = await agent.run(
                    db, session=SESSION, message=said, key=f"say-{number}", on_event=lambda _: None
                )
                self.tell(event="result", status=result.status, text=result.text[:1000], reason=result.reason[:1000])
            await agent.close()

    def _work(self, app: Callable[..., Any]) -> None:
        end = time.monotonic() + REPEAT_FOR
        for _ in range(self._task.repeat):
            if inspect.iscoroutinefunction(app):
                asyncio.run(self._work_async(app))
            else:
                with perdure.open(self._task.url) as db:
                    app(db)
            self._round()
            if time.monotonic() > end:
                return

    async def _work_async(self, app: Callable[..., Any]) -> None:
        async with perdure.open_async(self._task.url) as db:
            await app(db)

    def _round(self) -> None:
        if self._task.repeat > 1:
            self.tell(event="round", sizes=_sizes(self._task.url))


def _filler(tokens: int, number: int) -> str:
    """As many words as come to about so many tokens."""
    return " ".join(f"w{number:02}{n % 1000:03}" for n in range(tokens * 4 // 7))


def _is_program(app: str) -> bool:
    """Whether a file that has no agent in it is a program that uses the library by itself."""
    if not app.endswith(".py"):
        return False
    with open(app, encoding="utf-8", errors="replace") as file:
        return "perdure.open" in file.read()


def _about(agent: Agent) -> dict[str, Any]:
    from perdure.agent.models.scripted import FunctionModel
    from perdure.agent.replay.recorded_session import RecordedModel

    return {
        "kind": AGENT,
        "name": agent.name,
        "model": agent.model.name,
        "offline": all(isinstance(m, FunctionModel | RecordedModel) for m in agent.models),
        "window": agent.window.max_tokens,
        "compactor": agent.compactor is not None,
    }


def _sizes(url: str) -> dict[str, int]:
    """How large each part of each session's state is, in characters of JSON."""
    found: dict[str, int] = {}
    with perdure.open(url, maintain=False) as db:
        for row in db.sessions(limit=100):
            if row.heads:
                state = db.read(row.id, migrate=False).plain()
                found |= {f"{row.id}: {k}": len(json.dumps(v, default=repr)) for k, v in state.items()}
    return found


def _where(error: BaseException) -> str:
    """``FILE:LINE`` of the app's own code that an error came from."""
    lines = [f"{f.filename}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__) if is_theirs(f.filename)]
    return lines[-1] if lines else ""


def main(fd: str, task: str) -> int:
    """Do a task; what goes wrong in the app is told, and is not this program's failure."""
    child = AppProcess(Task(*json.loads(task)), int(fd))
    try:
        child.run()
    except Exception as e:  # whatever it is, it is the app's, and worth a finding
        child.tell(event="error", kind=type(e).__name__, words=str(e)[:1000], where=_where(e))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
