"""How many files somebody visits who follows a commit, an opening and a message: ``python -m tests.campaigns.walks``.

Every function of the library that is begun during a walk is written down, in all threads and processes of it.
"""

from __future__ import annotations

import argparse
import inspect
import json
import multiprocessing
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import tomllib
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx

import perdure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from types import FrameType

SOURCE = str(Path(perdure.__file__).parent) + os.sep
PROJECT = Path(__file__).parents[2] / "pyproject.toml"
UPKEEP = re.compile(r"heartbeat|housekeep|supervis|lookout|metrics")
"""Names of threads that keep things in order beside the walk: shown apart."""
LIMIT = 60.0
"""Seconds after which what never comes is a failure."""
SETTLE = 1.0
"""Seconds after the answer in which the worker puts the session down."""
TALK = 2.0
"""Seconds that an answer takes: long enough to be read while it is made."""
TOKEN = "a-token-for-walks-only"
SESSION = "trip-42"
ANSWERS = ["Lisbon is on the sea.", "So is Porto, a little further to the north, where the river ends."]
APP = f"""from perdure import Agent, ScriptedModel

guide = Agent("guide", model=ScriptedModel({ANSWERS!r}, delay={TALK}))
"""


class Visit(NamedTuple):
    """A file, and its functions in the order in which they were first begun."""

    file: str
    functions: list[str]


class Part(NamedTuple):
    """A stretch of a walk, or one process of it."""

    name: str
    visits: list[Visit]
    upkeep: list[Visit]
    """What threads beside the walk did meanwhile: not counted."""


class Walk(NamedTuple):
    """One walk in all its parts."""

    name: str
    about: str
    parts: list[Part]

    @property
    def files(self) -> list[str]:
        """The distinct files, in the order of the first visit."""
        return list(dict.fromkeys(visit.file for part in self.parts for visit in part.visits))

    @property
    def functions(self) -> int:
        """How many distinct functions were begun."""
        return len({(v.file, f) for part in self.parts for v in part.visits for f in v.functions})


# -- writing down ---------------------------------------------------------------------------------------------------


class Recorder:
    """Hears of every call in all threads that are started after it, and keeps those of the library while it is on."""

    def __init__(self) -> None:
        self.on = False
        self._seen: dict[tuple[bool, str, str], None] = {}
        self._thread = threading.local()
        threading.setprofile(self._heard)
        sys.setprofile(self._heard)

    def _heard(self, frame: FrameType, event: str, _: object) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        if code.co_name == "<module>":
            # What runs while a module is imported is no step of a walk, whoever is first to need it.
            self._thread.imports = getattr(self._thread, "imports", 0) + (1 if event == "call" else -1)
        elif (
            self.on
            and event == "call"
            and code.co_filename.startswith(SOURCE)
            and not code.co_name.startswith("<")
            and code.co_flags & inspect.CO_OPTIMIZED  # the body of a class is not
            and not getattr(self._thread, "imports", 0)
            and _is_begun(frame)
        ):
            aside = UPKEEP.search(threading.current_thread().name) is not None
            name = code.co_qualname.replace(".<locals>", "")
            self._seen.setdefault((aside, code.co_filename.removeprefix(SOURCE), name))

    def take(self, name: str) -> Part:
        """What was written down since the last time."""
        self.on = False
        seen, self._seen = self._seen, {}
        return Part(name, _visits(seen, aside=False), _visits(seen, aside=True))

    @contextmanager
    def recording(self, name: str, parts: list[Part]) -> Iterator[None]:
        """Write down what is done inside, as a part of a walk."""
        self.on = True
        yield
        parts.append(self.take(name))


def _is_begun(frame: FrameType) -> bool:
    """Whether a function begins, and is no coroutine or generator that goes on: the last byte of RESUME says so."""
    code = frame.f_code
    goes_on = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    return not code.co_flags & goes_on or code.co_code[frame.f_lasti + 1] & 3 == 0


def _visits(seen: dict[tuple[bool, str, str], None], *, aside: bool) -> list[Visit]:
    files: dict[str, list[str]] = {}
    for beside, file, function in seen:
        if beside == aside:
            files.setdefault(file, []).append(function)
    return [Visit(file, functions) for file, functions in files.items()]


# -- a commit, and an opening ---------------------------------------------------------------------------------------


def _say(s: perdure.Session, text: str) -> None:
    s.messages.append({"role": "user", "content": text})


def commit(url: str) -> Walk:
    """Follow the third commit of a handle."""
    parts: list[Part] = []
    recorder = Recorder()
    with perdure.open(url) as db, db.session(SESSION) as s:
        for text in ("Where is Lisbon?", "And Porto?"):
            _say(s, text)
            s.commit()
        _say(s, "And Faro?")
        with recorder.recording("commit", parts):
            s.commit()
    return Walk("commit", "s.commit() of one appended message on SQLite, the handle's third", parts)


def write_history(url: str) -> None:
    """Leave a session behind of which the older part is packed and the newer one is not."""
    for steps in (20, 4):
        with perdure.open(url) as db, db.session(SESSION) as s:
            for n in range(steps):
                _say(s, f"message {n}")
                s.commit()


def hydrate(url: str) -> Walk:
    """Follow the opening of a database and of a session in it, in a process that has done nothing yet."""
    parts: list[Part] = []
    opened = perdure.open
    recorder = Recorder()
    with recorder.recording("open the database", parts):
        db = opened(url)
    with db:
        with recorder.recording("open the session", parts):
            s = db.session(SESSION)
        with s:
            assert len(s.messages) == 24, len(s.messages)
    return Walk("hydrate", "perdure.open(url) and db.session(id) of a session with 24 commits on SQLite", parts)


# -- a message ------------------------------------------------------------------------------------------------------


def _run_command(wire: Connection, log: str, args: list[str]) -> None:
    """A command of the library in a process of its own, which writes down as it is told over the wire."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
    recorder = Recorder()

    def listen() -> None:
        while True:
            try:
                told = wire.recv()
            except EOFError:
                return
            if told:
                wire.send(recorder.take(told))
            else:
                recorder.on = True
                wire.send(None)

    threading.Thread(target=listen, daemon=True).start()
    command = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["scripts"]["perdure"]
    EntryPoint("perdure", command, "console_scripts").load()(args)


class Command:
    """A process with a command of the library."""

    def __init__(self, name: str, folder: Path, *args: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self._log = folder / f"{name}.log"
        self._wire, end = context.Pipe()
        self._process = context.Process(target=_run_command, args=(end, str(self._log), [name, *args]))
        self._process.start()
        end.close()

    def begin(self) -> None:
        """Have it write down from now on."""
        self._wire.send("")
        self._wire.recv()

    def end(self) -> Part:
        """What it has written down."""
        self._wire.send(self.name)
        return self._wire.recv()

    def said(self) -> str:
        """What it has printed, when it is not there any more."""
        return "" if self._process.is_alive() else f"{self.name} has ended:\n{self._log.read_text('utf-8')[-3000:]}"

    def stop(self) -> None:
        """Tell it to go, and wait until it has."""
        if self._process.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGTERM)
            self._process.join(LIMIT)
            self._process.kill()
        self._process.join()


def _until(what: Callable[[], bool], commands: list[Command]) -> None:
    end = time.monotonic() + LIMIT
    while not what():
        said = "".join(command.said() for command in commands)
        if said or time.monotonic() > end:
            raise RuntimeError(said or "it never came to that")
        time.sleep(0.05)


def _answers(http: httpx.Client) -> bool:
    try:
        return http.get("/readyz").status_code == 200
    except httpx.HTTPError:
        return False


def _read_answer(answer: httpx.Response, text: str) -> list[str]:
    """Read events until one brings the whole answer; the kinds of all that came."""
    kinds: list[str] = []
    kind = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            kinds.append(kind)
            if kind == "committed" and json.loads(line.removeprefix("data: "))["text"] == text:
                return kinds
    raise RuntimeError(f"the stream has ended without the answer: {kinds}")


def _exchange(http: httpx.Client, message: str, text: str) -> None:
    """Read along in the session, say something, and read until it is answered."""
    path = f"/api/v1/sessions/{SESSION}"
    with http.stream("GET", f"{path}/events") as events:
        events.raise_for_status()
        http.post(f"{path}/messages", json={"message": message}).raise_for_status()
        kinds = _read_answer(events, text)
    if "delta" not in kinds:
        raise RuntimeError(f"the answer was not streamed: {kinds}")


def message(folder: Path) -> Walk:
    """Follow a message from its arrival at the server until its answer has been read there."""
    url = f"sqlite:///{folder}/message.db"
    app = folder / "walks_app.py"
    app.write_text(APP, "utf-8")
    with perdure.open(url):
        pass
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    commands = [
        Command("serve", folder, "--store", url, "--port", str(port), "--token", TOKEN),
        Command("worker", folder, str(app), "--store", url),
    ]
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=bearer, timeout=LIMIT) as http:
            _until(lambda: _answers(http), commands)
            http.post("/api/v1/sessions", json={"id": SESSION, "agent": "guide"}).raise_for_status()
            # The first exchange is not followed: what is done once in a process, or in a session, is done by then.
            _exchange(http, "Where is Lisbon?", ANSWERS[0])
            time.sleep(SETTLE)
            for command in commands:
                command.begin()
            _exchange(http, "And Porto?", ANSWERS[1])
            time.sleep(SETTLE)
            parts = [command.end() for command in commands]
    finally:
        for command in commands:
            command.stop()
    return Walk("message", "a message over HTTP to the answer streamed over SSE, made by a worker on SQLite", parts)


# -- telling --------------------------------------------------------------------------------------------------------


def _lines(walks: list[Walk]) -> Iterator[str]:
    """All walks as Markdown."""
    yield "# Walks through the source"
    yield ""
    yield "| walk | files | functions | |"
    yield "|---|---|---|---|"
    for walk in walks:
        yield f"| {walk.name} | {len(walk.files)} | {walk.functions} | {walk.about} |"
        if len(walk.parts) > 1:
            for part in walk.parts:
                yield f"| – {part.name} | {len(part.visits)} | {sum(len(v.functions) for v in part.visits)} | |"
    for walk in walks:
        yield ""
        yield f"## {walk.name}: {len(walk.files)} files"
        for part in walk.parts:
            yield from _listed(f"{part.name}: {len(part.visits)} files", part.visits)
            yield from _listed(f"{part.name}, upkeep beside it (not counted)", part.upkeep)


def _listed(title: str, visits: list[Visit]) -> Iterator[str]:
    if visits:
        yield ""
        yield f"### {title}"
        yield ""
        for visit in visits:
            yield f"- {visit.file}: {', '.join(visit.functions)}"


def _as_json(walks: list[Walk]) -> str:
    def listed(visits: list[Visit]) -> list[dict[str, Any]]:
        return [visit._asdict() for visit in visits]

    told = [
        {
            "name": walk.name,
            "about": walk.about,
            "count": len(walk.files),
            "functions": walk.functions,
            "files": walk.files,
            "parts": [
                {"name": p.name, "count": len(p.visits), "visits": listed(p.visits), "upkeep": listed(p.upkeep)}
                for p in walk.parts
            ],
        }
        for walk in walks
    ]
    return json.dumps({"walks": told}, indent=2)


def main() -> int:
    """Take the walks and tell of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.walks", description=__doc__)
    names = ("commit", "hydrate", "message")
    parser.add_argument("--walk", choices=names, action="append", help="only this one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all of it there as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write all of it there as Markdown")
    args = parser.parse_args()
    chosen: list[str] = args.walk or list(names)
    walks: list[Walk] = []
    with (
        tempfile.TemporaryDirectory(prefix="perdure-walks-") as folder,
        # Each walk has a process of its own: nothing is ready because another one needed it.
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as fresh,
    ):
        if "commit" in chosen:
            walks.append(fresh.submit(commit, f"sqlite:///{folder}/commit.db").result())
        if "hydrate" in chosen:
            url = f"sqlite:///{folder}/hydrate.db"
            fresh.submit(write_history, url).result()
            walks.append(fresh.submit(hydrate, url).result())
        if "message" in chosen:
            walks.append(message(Path(folder)))
    text = "\n".join(_lines(walks)) + "\n"
    print(text, end="")
    if args.markdown is not None:
        args.markdown.write_text(text, "utf-8")
    if args.json is not None:
        args.json.write_text(_as_json(walks) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
