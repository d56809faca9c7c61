"""Instrumentation of the library in the child that runs an app: every save, call and answer is told, or stopped at.

Public functions are replaced, in that child process only. The hooks there are would not do: telemetry names no session
and comes after the fact, and fault points know neither who saves nor what; here a rival must save first, a tool must
stop before anybody knows that it has ended, and a finding needs the line of the app that led there.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# It looks at what the library does, from within.
from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
import json
import os
import sysconfig
import threading
import time
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import perdure

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from types import FrameType

    from perdure.system.flow import Flow

SAVE, TOOL, ANSWER, BEFORE, CALLING = "save", "tool", "answer", "before", "calling"
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_NOT_THEIRS = (_OURS, *(os.path.abspath(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")), "<")


class Stop(NamedTuple):
    """Where an app waits to be killed: after a save, at the end of a tool before anybody knows, inside an answer.

    ``tool NAME`` and ``before NAME`` are the end and the beginning of that tool alone.
    """

    what: str = ""
    number: int = 0


def theirs(frame: FrameType | None) -> str:
    """``FILE:LINE`` of the innermost code of the app that led here; "" when there is none."""
    while frame is not None:
        if is_theirs(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def is_theirs(filename: str) -> bool:
    """Whether a file is the app's own: neither ours, nor Python's, nor a library's."""
    return not filename.startswith(_NOT_THEIRS)


def defined(fn: Any) -> str:
    """``FILE:LINE`` of a function."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


class Instrumentation:
    """Tells what an app does, and stops it where it is to be killed."""

    def __init__(
        self, tell: Callable[..., None], url: str, stop: Stop, *, limit: int = 0, contend: bool = False
    ) -> None:
        self._tell, self._url, self._stop = tell, url, stop
        self._limit, self._contend = limit, contend
        self._lock = threading.RLock()
        self._counts: Counter[str] = Counter()
        self._places: dict[str, str] = {}
        self._edits: dict[int, tuple[Any, Counter[str]]] = {}
        """By document: how often each line of the app has added something since the last save. Held, as handles are
        below, so that Python gives no other one the same number."""
        self._sealed: dict[int, dict[str, Any]] = {}
        self._rivalled: dict[int, Any] = {}
        self._direct: Counter[str] = Counter()
        self._mine = threading.local()

    def install(self) -> None:
        """From now on; before the app is loaded."""
        self._redirect()
        self._watch_saves()
        self._watch_edits()
        self._watch_tools()
        self._watch_models()
        self._watch_refusals()

    def passed(self, what: str) -> None:
        """One more of these has happened: it may be the one to be killed at."""
        with self._lock:
            self._counts[what] += 1
            here = Stop(what, self._counts[what]) == self._stop
        if here:
            self._tell(event="here")
            doctor = os.getppid()
            while os.getppid() == doctor:
                time.sleep(0.5)
            # It was killed itself, and nobody comes to kill us.
            os._exit(1)

    # -- stores -------------------------------------------------------------------------------------------------

    def _redirect(self) -> None:
        """Whatever store the app names, it gets one in the scratch folder: nobody's real sessions are killed."""
        from perdure import opening

        kernel: Any = opening.build_kernel

        def scratch(url: Any, keys: Any, codec: str, schema: str, migrations: Any, blobs: Any, clock: Any,
                    options: dict[str, Any], kept: Any = 0) -> Any:  # fmt: skip
            if url == self._url or not (url is None or isinstance(url, str)) or (url or "").startswith("memory:"):
                return kernel(url, keys, codec, schema, migrations, blobs, clock, options, kept)
            with self._lock:
                number = len(self._places)
                ours = self._places.setdefault(url or "", self._url if not number else f"{self._url}-{number}.db")
            return kernel(ours, keys, codec, schema, migrations, None, clock, {}, kept)

        opening.build_kernel = scratch  # pyright: ignore[reportAttributeAccessIssue]

    # -- saves --------------------------------------------------------------------------------------------------

    def _watch_saves(self) -> None:
        from perdure.database import DatabaseHandle
        from perdure.errors import Conflict
        from perdure.session.journal import Journal

        send, seal = Journal.send, Journal.seal
        updating = DatabaseHandle.update_flow.__code__

        def sealed(s: Any, kind: str, ops: list[Any], *rest: Any) -> Any:
            made = seal(s, kind, ops, *rest)
            _, edits = self._edits.pop(id(s.document), (None, Counter[str]()))
            loop = edits.most_common(1)
            told = {"answers": _answers(ops), "loop": loop[0][1] if loop else 0, "at": loop[0][0] if loop else ""}
            self._sealed[id(s)] = told
            return made

        def sent(s: Any, pending: Any) -> Flow[None]:
            retried = _inside(inspect.currentframe(), updating)
            about = {
                "session": s.id, "free": s.lease is None and not retried, "retried": retried, "who": _who(),
                "where": theirs(inspect.currentframe()),
                "memory": s.kernel.store.url.startswith("memory:"), **self._sealed.pop(id(s), {}),
            }  # fmt: skip
            if getattr(self._mine, "rival", False):
                yield from send(s, pending)
                return
            if self._contend and about["free"] and id(s) not in self._rivalled:
                self._rivalled[id(s)] = s
                self._rival(s.id)
            try:
                yield from send(s, pending)
            except Conflict:
                self._tell(event=SAVE, lost=True, direct=[], **about)
                raise
            with self._lock:
                direct, self._direct = self._direct.most_common(), Counter()
            self._tell(event=SAVE, lost=False, direct=direct, **about)
            self.passed(SAVE)

        Journal.seal = sealed  # type: ignore[method-assign]
        Journal.send = sent  # type: ignore[method-assign]

    def _rival(self, session: str) -> None:
        """Somebody else saves the session first."""

        def touch(s: Any) -> None:
            s.vars["doctor"] = s.vars.get("doctor", 0) + 1

        self._mine.rival = True
        try:
            with perdure.open(self._url, maintain=False) as db:
                db.update(session, touch)
        finally:
            self._mine.rival = False

    def _watch_edits(self) -> None:
        """See which line of the app adds to a state again and again."""
        from perdure.state.document import TrackedDict, TrackedList

        def watched(change: Callable[..., None]) -> Callable[..., None]:
            @functools.wraps(change)
            def changed(node: Any, *args: Any) -> None:
                change(node, *args)
                caller = _caller()
                if is_theirs(caller.f_code.co_filename):
                    place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
                    self._edits.setdefault(id(node.document), (node.document, Counter()))[1][place] += 1

            return changed

        TrackedList.append = watched(TrackedList.append)  # type: ignore[method-assign]
        TrackedDict.__setitem__ = watched(TrackedDict.__setitem__)  # type: ignore[method-assign]

    def _watch_refusals(self) -> None:
        """What is no JSON is told even when the app takes no notice."""
        from perdure.errors import NotJson
        from perdure.state.values import refusal

        made = NotJson.__init__

        def told(error: NotJson, path: Sequence[str | int], what: str, hint: str = "", *, where: str = "") -> None:
            made(error, path, what, hint, where=where)
            frame = inspect.currentframe()
            while frame is not None:
                if frame.f_code is refusal.__code__:
                    # Merely a question: what is recorded in the end is looked at by itself.
                    return
                frame = frame.f_back
            self._tell(event="refused", words=str(error), where=theirs(inspect.currentframe()))

        NotJson.__init__ = told  # type: ignore[method-assign]

    # -- calls --------------------------------------------------------------------------------------------------

    def _watch_tools(self) -> None:
        from perdure.session.tools import declaration, running

        call = declaration.Tool.__call__

        def direct(tool: declaration.Tool, *args: Any, **kwargs: Any) -> Any:
            caller = _caller()
            if is_theirs(caller.f_code.co_filename) and not tool.read:
                with self._lock:
                    self._direct[f"{caller.f_code.co_filename}:{caller.f_lineno}"] += 1
            return call(tool, *args, **kwargs)

        running.around = self._watched
        declaration.Tool.__call__ = direct  # type: ignore[method-assign]

    def _watched(self, tool: Any) -> Callable[..., Any]:
        """A tool's function, with its beginning and its end told."""
        fn: Callable[..., Any] = tool.fn

        @contextlib.contextmanager
        def told() -> Generator[None]:
            self.passed(f"{BEFORE} {tool.name}")
            self._tell(event=CALLING, name=tool.name)
            yield
            self._tell(event=TOOL, name=tool.name, where=defined(fn), cached_read=tool.read and tool.cache is not None)
            self.passed(f"{TOOL} {tool.name}")
            self.passed(TOOL)

        async def awaited(**kwargs: Any) -> Any:
            with told():
                return await fn(**kwargs)

        def blocking(**kwargs: Any) -> Any:
            with told():
                return fn(**kwargs)

        return awaited if inspect.iscoroutinefunction(fn) else blocking

    def _watch_models(self) -> None:
        """See what is asked of models, and refuse what is too long for the one that is played."""
        from perdure.agent import models
        from perdure.errors import ContextTooLong

        async def watched(
            model: models.ChatModel, request: models.Request, on_delta: Callable[[models.Delta], None] | None
        ) -> models.Answer:
            size = len(json.dumps([request.messages, request.tools], default=repr)) // 4
            self._tell(event=ANSWER, size=size, refused=bool(self._limit and size > self._limit))
            if self._limit and size > self._limit:
                raise ContextTooLong(f"{size} tokens do not fit into {self._limit}")
            begun = False

            def heard(delta: models.Delta) -> None:
                nonlocal begun
                if on_delta is not None:
                    on_delta(delta)
                if not begun:
                    begun = True
                    self.passed(ANSWER)

            found = await model.answer(request, heard if on_delta is not None else None)
            if not begun:
                self.passed(ANSWER)
            return found

        models.around = watched


def _answers(ops: list[Any]) -> int:
    """How many answers of a model one save adds."""
    from perdure.state.delta import APPEND, SPLICE

    added: list[Any] = []
    for op in ops:
        if list(op[1]) == ["s", "messages"]:
            added += op[2] if op[0] == APPEND else op[4] if op[0] == SPLICE else []
    return sum(isinstance(m, dict) and m.get("role") == "assistant" for m in added)


def _caller() -> FrameType:
    """Who called the function that asks."""
    here = inspect.currentframe()
    caller = here and here.f_back and here.f_back.f_back
    assert caller is not None
    return caller


def _inside(frame: FrameType | None, code: Any) -> bool:
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False


_thread = threading.local()
_tasks: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_numbers = itertools.count(1)


def _who() -> str:
    """Which of the app's processes, threads and tasks this is: what Python calls them is used again."""
    try:
        task: Any = asyncio.current_task()
    except RuntimeError:
        task = None
    if task is not None:
        return f"{os.getpid()}/{_tasks.setdefault(task, next(_numbers))}"
    if not hasattr(_thread, "number"):
        _thread.number = next(_numbers)
    return f"{os.getpid()}/{_thread.number}"
