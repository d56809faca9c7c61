"""A child process that runs somebody's app on a scratch database: what ``perdure doctor APP`` kills and starts again.

Run as ``python -m perdure.cli.app_trial FD TASK``, where TASK is a :class:`Task` as JSON. What it sees goes to the file
descriptor, one JSON object a line, so that the app may print what it likes. After the save it is told to stop at it
says so and waits for the signal that it will not survive.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.agent.agent import Agent
    from perdure.model import Append

SESSION = "doctor"
REPEAT_FOR = 15.0
"""Seconds after which an app is not run again."""
_retrying: contextvars.ContextVar[bool] = contextvars.ContextVar("retrying", default=False)


class Task(NamedTuple):
    """What a child is to do."""

    app: str
    url: str
    say: tuple[str, ...] = ()
    stop_at: int = 0
    """The save after which it waits to be killed; 0: none."""
    repeat: int = 1
    look: bool = False
    """Only say what the app is."""


class Trial:
    """One child's work."""

    def __init__(self, task: Task, fd: int) -> None:
        self._task = task
        self._out = os.fdopen(fd, "w", encoding="utf-8")
        self._lock = threading.Lock()
        self._saves = 0

    def tell(self, **what: Any) -> None:
        """One thing to the parent."""
        with self._lock:
            self._out.write(json.dumps(what) + "\n")
            self._out.flush()

    def go(self) -> None:
        """Load the app and run it."""
        from perdure.agent.agent import Agent
        from perdure.cli.apps import load_app

        app = load_app(self._task.app)
        if self._task.look:
            self.tell(**(_about(app) if isinstance(app, Agent) else {"kind": "function"}))
            return
        self._watch()
        if isinstance(app, Agent):
            asyncio.run(self._talk(app))
        else:
            self._work(app)
        self.tell(event="ended")

    async def _talk(self, agent: Agent) -> None:
        import perdure

        async with perdure.open_async(self._task.url) as db:
            for number, words in enumerate(self._task.say):
                # By key: what was said before a kill is not said twice.
                result = await agent.run(db, session=SESSION, message=words, key=f"say-{number}")
                self.tell(event="result", status=result.status, text=result.text, reason=result.reason)
            await agent.close()

    def _work(self, app: Callable[..., Any]) -> None:
        import perdure

        end = time.monotonic() + REPEAT_FOR
        for _ in range(self._task.repeat):
            if inspect.iscoroutinefunction(app):
                asyncio.run(self._work_async(app))
            else:
                with perdure.open(self._task.url) as db:
                    app(db)
            self.tell(event="round", sizes=_sizes(self._task.url) if self._task.repeat > 1 else {})
            if time.monotonic() > end:
                return

    async def _work_async(self, app: Callable[..., Any]) -> None:
        import perdure

        async with perdure.open_async(self._task.url) as db:
            await app(db)

    # -- watching -------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """See every save of this process, and stop at one of them."""
        from perdure.database import Database
        from perdure.errors import Conflict
        from perdure.stores.sqlite import SqliteStore

        append, update = SqliteStore.append, Database.update

        def watched(store: SqliteStore, batch: Sequence[Append]) -> Any:
            answers = append(store, batch)
            for item, answer in zip(batch, answers, strict=True):
                lost = isinstance(answer, Conflict)
                if isinstance(answer, Exception) and not lost:
                    continue
                self.tell(event="save", free=item.token is None, lost=lost, retried=_retrying.get())
                if lost:
                    continue
                with self._lock:
                    self._saves += 1
                    here = self._saves == self._task.stop_at
                if here:
                    self.tell(event="here")
                    while True:
                        time.sleep(60)
            return answers

        def updating(db: Any, *args: Any, **options: Any) -> Any:
            token = _retrying.set(True)
            try:
                return update(db, *args, **options)
            finally:
                _retrying.reset(token)

        SqliteStore.append = watched  # type: ignore[method-assign]
        Database.update = updating  # type: ignore[method-assign]


def _about(agent: Agent) -> dict[str, Any]:
    from perdure.agent.models.recorded import RecordedModel
    from perdure.agent.models.scripted import ScriptedModel

    return {
        "kind": "agent",
        "name": agent.name,
        "model": agent.model.name,
        "offline": isinstance(agent.model, (ScriptedModel, RecordedModel)),
        "bounded": agent.window.max_tokens is not None or agent.janitor is not None,
        "checkpoints": agent.checkpoints,
    }


def _sizes(url: str) -> dict[str, int]:
    """How large each part of each session's state is, in characters of JSON."""
    import perdure

    found: dict[str, int] = {}
    with perdure.open(url, maintain=False) as db:
        for row in db.sessions(limit=100):
            if row.heads:
                state = db.read(row.id, migrate=False).plain()
                found |= {f"{row.id}: {k}": len(json.dumps(v, default=repr)) for k, v in state.items()}
    return found


def main(fd: str, task: str) -> int:
    """Run a trial; what goes wrong in the app is told, and is not this program's failure."""
    trial = Trial(Task(*json.loads(task)), int(fd))
    try:
        trial.go()
    except Exception as e:  # whatever it is, it is the app's, and worth a finding
        trial.tell(event="error", kind=type(e).__name__, words=str(e)[:1000])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
