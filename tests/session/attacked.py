"""Programs that are attacked by ``test_attacks``, each in a process of its own: they commit and say what came of it.

Run as ``python -m tests.session.attacked NAME DATABASE ...``: what it says is one JSON value per line.
"""

from __future__ import annotations

import contextlib
import dis
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import perdure
from perdure.system import disk

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from types import FrameType

PATIENCE = 300
"""Seconds after which a program that does not end is ended: something is wrong with it, or with who started it."""
HANGS = 20.0
"""Seconds after which something that takes milliseconds counts as hanging."""
HOME = os.path.dirname(os.path.abspath(perdure.__file__)) + os.sep


def url_of(database: str) -> str:
    """The URL of a SQLite file."""
    return f"sqlite:///{database}"


def say(value: Any) -> None:
    """Tell whoever started this process."""
    os.write(1, json.dumps(value).encode() + b"\n")


# -- another SQLite library, or none, opens the file in this process ------------------------------------------------


def _by_sqlite3(database: str) -> None:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as other:
        other.execute("select count(*) from sqlite_schema").fetchone()


def _by_copy(database: str) -> None:
    shutil.copy(database, f"{database}.copy")


def _by_backup(database: str) -> None:
    folder = os.path.dirname(database)
    shutil.copytree(folder, f"{folder}.copy")


TOUCH: dict[str, Callable[[str], None]] = {"sqlite3": _by_sqlite3, "copy": _by_copy, "backup": _by_backup}


def touched(database: str, how: str) -> None:
    """Commits, has the file opened and closed by somebody else in this process, and commits on when told to."""
    db = perdure.open(url_of(database))
    s = db.session("s")

    def commit(numbers: range) -> None:
        for n in numbers:
            s.messages.append(n)
            s.commit()
            say(n)

    try:
        commit(range(3))
        # Where locks are only SQLite's, the touch itself is refused.
        with suppress(perdure.Misuse):
            TOUCH[how](database)
        say("touched")
        sys.stdin.readline()
        commit(range(3, 6))
        say("done")
    except perdure.PerdureError as refusal:
        say(f"refused: {refusal}")
    sys.stdin.readline()


# -- forks ----------------------------------------------------------------------------------------------------------


def _commit_in_child(database: str, said: Connection, go_on: Connection) -> None:
    signal.alarm(PATIENCE)
    try:
        with perdure.open(url_of(database)) as db, db.session("child") as s:
            for n in range(100):
                s.messages.append(n)
                s.commit()
                said.send(n)
                if n == 0:
                    go_on.recv()
    except perdure.PerdureError as refusal:
        said.send(f"refused: {refusal}")


def forked(database: str) -> None:
    """Forks a child that opens the database anew, and closes its own handle between two of the child's commits."""
    fork = multiprocessing.get_context("fork")
    db = perdure.open(url_of(database))
    with db.session("parent") as s:
        s.messages.append("parent")
        s.commit()
    (heard, said), (told, go_on) = fork.Pipe(duplex=False), fork.Pipe(duplex=False)
    child = fork.Process(target=_commit_in_child, args=(database, said, told))
    child.start()
    said.close()
    first = heard.recv()
    say(first)
    db.close()
    go_on.send("the parent has closed")
    try:
        while True:
            say(heard.recv())
    except EOFError:
        child.join()
    say({"child ended with": child.exitcode})


def _commit_once(database: str, number: int) -> None:
    signal.alarm(PATIENCE)
    # Refused at once is not hanging; a slow disk is not, either, so it is not waited for.
    with (
        suppress(perdure.PerdureError),
        perdure.open(url_of(database), synchronous="normal") as db,
        db.session(f"child-{number}") as s,
    ):
        s.messages.append(number)
        s.commit()


def forked_while_committing(database: str, children: int) -> None:
    """Forks again and again while a thread is committing; says how each child ended, up to the first that hangs."""
    fork = multiprocessing.get_context("fork")
    rng = random.Random(20261)
    busy, idle, stop = threading.Event(), threading.Event(), threading.Event()
    with perdure.open(url_of(database)) as db, db.session("parent") as s:

        def keep_committing() -> None:
            while not stop.is_set():
                if not busy.is_set():
                    idle.set()
                    busy.wait()
                s.messages.append("parent")
                s.commit()

        thread = threading.Thread(target=keep_committing)
        thread.start()
        for number in range(children):
            idle.wait()
            idle.clear()
            busy.set()
            stop.wait(rng.uniform(0.001, 0.005))
            child = fork.Process(target=_commit_once, args=(database, number))
            child.start()
            # Only the fork meets a commit: the child shall not have to compete for the file afterwards.
            busy.clear()
            child.join(HANGS)
            hangs = child.exitcode is None
            if hangs:
                child.kill()
                child.join()
            say("hangs" if hangs else child.exitcode)
            if hangs:
                break
        stop.set()
        busy.set()
        thread.join()


# -- between any two instructions of a commit -----------------------------------------------------------------------


class Place:
    """Does something at the n-th place of our code where Python looks for signals and lets other threads run.

    These are the starts of functions, the ends of calls into C, and the ends of loops. Between them nothing comes in
    between, so that ``with lock`` is whole although a tracer could part it.
    """

    def __init__(self, number: int, action: Callable[[], None]) -> None:
        self._left = number
        self._action = action
        self._counts = False
        self._last: tuple[FrameType, int] | None = None
        """The instruction before, if Python looks for signals right after it."""
        self.where = ""
        """Which place it was; empty when there are not so many."""

    def __enter__(self) -> Place:
        # From 3.12 on, instructions are traced only when some frame has asked for it by now.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def begin(self) -> None:
        """Count from here on. What is to be counted was done once before: 3.13 only then traces all of it."""
        self._counts = True

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        last, self._last = self._last, None
        if event in ("call", "opcode") and _looks(frame):
            self._last = frame, frame.f_lasti
        # Coming back from a function of Python is no place: then the last thing seen was its return.
        if event == "opcode" and self._counts and _is_ours(frame) and last is not None and last[0] is frame:
            if _handler(frame, last[1]) != _handler(frame, frame.f_lasti):
                # A signal would still belong to the block of the instruction before, where a tracer cannot raise.
                return self._trace
            self._left -= 1
            if self._left == 0:
                self.where = f"{frame.f_code.co_filename.removeprefix(HOME)}:{frame.f_lineno}"
                self._action()
        return self._trace


def _is_ours(frame: FrameType) -> bool:
    """Ours, or of what the standard library has for ``with`` statements of ours."""
    return frame.f_code.co_filename.startswith(HOME) or frame.f_code.co_filename == contextlib.__file__


def _handler(frame: FrameType, at: int) -> int | None:
    """Where an error of an instruction goes on in its function."""
    entries = dis._parse_exception_table(frame.f_code)  # type: ignore[attr-defined]
    return next((entry.target for entry in entries if entry.start <= at < entry.end), None)


def _looks(frame: FrameType) -> bool:
    """Whether Python looks for signals right after the instruction that a frame is at."""
    code, at = frame.f_code.co_code, frame.f_lasti
    name = dis.opname[code[at]]
    if name == "RESUME":
        return code[at + 1] & 3 < 2  # not while a result is only handed through by "yield from"
    if name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX"):
        return True
    return "JUMP_BACKWARD" in name and "NO_INTERRUPT" not in name


class Hanging(BaseException):
    """Something did not end."""


def _hanging(*_: Any) -> None:
    raise Hanging


def _interrupt() -> None:
    raise KeyboardInterrupt


class Prompt(contextlib.AbstractContextManager[None]):
    """Goes on after an interrupt as a prompt does: what was interrupted is kept, for whoever wants to look into it."""

    kept: ClassVar[list[BaseException]] = []

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, KeyboardInterrupt):
            return False
        self.kept.append(error)
        return True


def interrupted(database: str, patience: float) -> None:
    """Interrupts a commit at every place, goes on; says the place and what was stored, or that it hangs."""
    signal.signal(signal.SIGALRM, _hanging)
    db = perdure.open(url_of(database), synchronous="normal", maintain=False)
    number = 0
    while True:
        number += 1
        s = db.session(f"s{number}")
        place = Place(number, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, patience)
        try:
            with Prompt(), place:
                s.messages.append(1)
                s.commit()
                s.messages.append(2)
                place.begin()
                s.commit()
            s.messages.append(3)
            s.commit()
            s.release()
            stored = db.read(f"s{number}").messages.plain()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Hanging:
            stored = "hangs"
        if not place.where and stored != "hangs":
            break
        say([place.where, stored])
    db.close()


DOINGS: dict[str, Callable[[perdure.Database, perdure.Session], object]] = {
    "commit": lambda db, s: s.commit(),
    "read": lambda db, s: db.read(s.id),
    "post": lambda db, s: db.post(s.id, "hello"),
    "look": lambda db, s: db.history(s.id),
    "blob": lambda db, s: _blob(db, s.id),
}
"""What is done with a store, by whoever has a session with something to commit."""


def _blob(db: perdure.Database, content: str) -> None:
    """Puts a blob, renews it and deletes it."""
    data = content.encode()
    ref = hashlib.sha256(data).hexdigest()
    db.kernel.blobs.put(ref, data)
    db.kernel.blobs.put(ref, data)
    db.kernel.blobs.delete(ref, 1 << 60)


def held(url: str, stride: int, options: dict[str, Any]) -> None:
    """Interrupts what is done with a store at every place, or every so many; says what, the place, and who hangs then.

    Afterwards a thread and another handle, as another process has one, work on the same session.
    """
    disk.PATIENCE = HANGS / 3
    if url.startswith("redis"):
        from perdure.links import redis

        redis.CONNECTIONS = 1
    db, other = (perdure.open(url, maintain=False, **options) for _ in range(2))

    def work(handle: perdure.Database, id: str, done: threading.Event) -> None:
        handle.post(id, "and on")
        handle.read(id)
        _blob(handle, f"another of {id}")
        done.set()

    for name, do in DOINGS.items():
        number = 1 - stride
        while True:
            number += stride
            s = db.session(f"{name} {number}")
            s.messages.append(1)
            s.commit()
            place = Place(number, _interrupt)
            with Prompt(), place:
                s.messages.append(2)
                place.begin()
                do(db, s)
            if not place.where:
                break
            stuck: list[str] = []
            for who, handle in (("a thread", db), ("another handle", other)):
                done = threading.Event()
                threading.Thread(target=work, args=(handle, s.id, done), daemon=True).start()
                if not done.wait(HANGS):
                    stuck.append(who)
            say([name, place.where, stuck])
            if stuck:
                # Nothing more can be learnt from these two.
                db, other = (perdure.open(url, maintain=False, **options) for _ in range(2))
            else:
                s.release()


def _replace_all(s: perdure.Session) -> None:
    s.vars["table"] = {"a": [1], "b": {"c": 2}}


def _change_deep(s: perdure.Session) -> None:
    s.vars["table"]["b"]["c"] = 3


def _move_key(s: perdure.Session) -> None:
    del s.vars["old"]
    s.vars["old"] = "moved to the end"


def _cut(s: perdure.Session) -> None:
    s.messages[1:3] = ["cut"]


EDITS: dict[str, Callable[[perdure.Session], object]] = {
    "append": lambda s: s.messages.append({"n": 9}),
    "extend": lambda s: s.messages.extend([9, 10]),
    "insert": lambda s: s.messages.insert(1, 9),
    "pop": lambda s: s.messages.pop(0),
    "sort": lambda s: s.messages.sort(reverse=True),
    "cut": _cut,
    "set": _replace_all,
    "set deep": _change_deep,
    "move": _move_key,
    "update": lambda s: s.vars.update(old="changed", new="added"),
    "clear": lambda s: s.vars.clear(),
}
"""Edits of a state with messages 1, 2, 3 and 4 and two variables."""


def edited(database: str) -> None:
    """Interrupts each kind of edit at every place, commits; says edit, place, what the handle shows, what is stored."""
    db = perdure.open(url_of(database), synchronous="normal", maintain=False)
    for name, edit in EDITS.items():
        number = 0
        while True:
            number += 1
            s = db.session(f"{name} {number}")
            s.messages.extend([1, 2, 3, 4])
            s.vars.update(old="stored", table={"a": [1], "b": {"c": 2}})
            s.commit()
            place = Place(number, _interrupt)
            with Prompt(), place:
                # Once before, for the tracer; of a state that is not committed, which is another way.
                s.messages.append(5)
                place.begin()
                edit(s)
            if not place.where:
                break
            s.messages.append("after")
            s.vars["after"] = True
            s.commit()
            s.release()
            say([name, place.where, s.state.plain(), db.read(s.id).state.plain()])
    db.close()


MOVES: dict[str, Callable[[perdure.Session], object]] = {
    "reload": lambda s: s.reload(),
    "fork": lambda s: s.fork("b"),
    "rewind": lambda s: s.rewind(1),
    "switch": lambda s: s.switch("other"),
    "tag": lambda s: s.tag("t"),
    "merge": lambda s: s.merge("other"),
    "call": lambda s: s.call(_tell, "ana"),
    "take": lambda s: s.take(),
}
"""What else a handle does, on a session with two steps, a branch and a message that waits."""


def _tell(who: str) -> str:
    return f"told {who}"


def moved(database: str, stride: int) -> None:
    """Interrupts whatever else a handle does at every place, or every so many, and goes on as people would.

    Where that is refused they reload. Says what, the place, what the handle shows, and what is stored.
    """
    signal.signal(signal.SIGALRM, _hanging)
    db = perdure.open(url_of(database), synchronous="normal", maintain=False)
    for name, move in MOVES.items():
        number = 1 - stride
        while True:
            number += stride
            s = db.session(f"{name} {number}")
            s.messages.append(1)
            s.commit()
            s.fork("other")
            s.messages.append(2)
            s.commit()
            db.post(s.id, "hello", key="k")
            place = Place(number, _interrupt)
            signal.setitimer(signal.ITIMER_REAL, HANGS)
            try:
                with Prompt(), place:
                    place.begin()
                    move(s)
                if not place.where:
                    break
                try:
                    s.messages.append("after")
                    s.commit()
                except (perdure.Misuse, perdure.Conflict):
                    s.reload()
                    s.messages.append("after")
                    s.commit()
                shown, stored = s.state.plain(), db.read(s.id, branch=s.branch).state.plain()
                s.release()
            except Hanging:
                shown = stored = "hangs"
            signal.setitimer(signal.ITIMER_REAL, 0)
            say([name, place.where, shown, stored])
    signal.setitimer(signal.ITIMER_REAL, 0)
    db.close()


def shared(database: str) -> None:
    """Two threads share a handle: one edits and commits at every place of the other's commit.

    Says the place, the edits whose commits returned, and those that were stored. Being refused is no loss.
    """
    db = perdure.open(url_of(database), synchronous="normal", maintain=False)
    number = 0
    while True:
        number += 1
        s = db.session(f"s{number}")
        returned: list[str] = []
        edited = threading.Event()

        def edit_and_commit(
            s: perdure.Session = s, returned: list[str] = returned, edited: threading.Event = edited
        ) -> None:
            with suppress(perdure.PerdureError):
                s.messages.append("theirs")
                edited.set()
                s.commit()
                returned.append("theirs")
            edited.set()

        other = threading.Thread(target=edit_and_commit)

        def let_the_other_edit(other: threading.Thread = other, edited: threading.Event = edited) -> None:
            other.start()
            # Not for long: a handle may also have it wait until this commit is over.
            edited.wait(0.02)

        place = Place(number, let_the_other_edit)
        with suppress(perdure.PerdureError):
            with place:
                s.messages.append("first")
                s.commit()
                returned.append("first")
                s.messages.append("ours")
                place.begin()
                s.commit()
            returned.append("ours")
        if not place.where:
            break
        other.join()
        s.release()
        say([place.where, sorted(returned), sorted(db.read(f"s{number}").messages.plain())])
    db.close()


def main() -> None:
    """Be one of the programs."""
    name, database, *more = sys.argv[1:]
    assert Path(database).is_absolute() or "://" in database
    if name not in ("interrupted", "moved"):  # which need the alarm themselves
        signal.alarm(PATIENCE)
    match name:
        case "touched":
            touched(database, *more)
        case "forked":
            forked(database)
        case "forked_while_committing":
            forked_while_committing(database, int(more[0]))
        case "interrupted":
            interrupted(database, float(more[0]))
        case "held":
            held(database, int(more[0]), json.loads(more[1]))
        case "edited":
            edited(database)
        case "moved":
            moved(database, int(more[0]))
        case "shared":
            shared(database)
        case _:
            raise ValueError(name)


if __name__ == "__main__":
    main()
