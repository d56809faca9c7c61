"""Starts programs of ours in a tenth of the time: most of what a short process costs is reading its modules.

A process that has read them all waits beside the tests, with nothing open and no thread. Whoever starts one of our
programs, as ``subprocess.Popen([sys.executable, "-m", "perdure.cli", ...])`` does, gets a fork of it: a process with a
number of its own, a child of whoever asked, killed and waited for like any other. What cannot be had by a fork (an
option of the interpreter, another clock loaded into the process, a program that looks at what is loaded) is started
anew, and so is everything where there is no such fork to be had (not on Linux). Run as ``python -m tests.quick_start
FD`` it is the process that waits.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
READ = (
    "asyncio", "concurrent.futures.thread", "multiprocessing", "pydantic.type_adapter", "pytest", "rich.console",
    "rich.table", "zoneinfo", "perdure.agent", "perdure.aio", "perdure.blobs.local", "perdure.cli.program",
    "perdure.doctor.app_process", "perdure.doctor.commit_process", "perdure.fleet.supervisor", "perdure.fleet.worker",
    "perdure.opening", "perdure.stores.file.store", "perdure.stores.sqlite.board", "perdure.stores.sqlite.store",
    "perdure.telemetry.logs",
)  # fmt: skip
"""What the process that waits has read."""
FRESH = ("sys.modules", "pytest", "tests.servers", "tests.quick_start")
"""A program with one of these in it is started anew: it is about what is loaded, or stays for the whole run."""
SETTLED = ("PYTHON", "LD_", "LC_", "LANG")
"""What an interpreter reads of its surroundings when it starts: must be as it is here, but for ..."""
GIVEN = {"PYTHONPATH", "PYTHONUNBUFFERED"}
"""... these, which a fork is given."""
PYTHON = sys.executable
SUBREAPER = 36
"""What Linux calls a process to which children are given whose parent has ended."""
LOW = 200
"""A fork's own files have numbers from here on; those it is given keep theirs, below."""
MOST = 16
WORTH_IT = 2
"""So many programs a fork starts itself before it has one wait for it, too."""


# -- in the tests ----------------------------------------------------------------------------------------------------


def works() -> bool:
    """Whether a fork can be had here: it is Linux's, and this is how Python 3.11 starts processes."""
    return sys.platform == "linux" and sys.version_info[:2] == (3, 11)


_anew: list[bool] = []
"""Not empty while everything is to be started anew."""


@contextlib.contextmanager
def anew() -> Iterator[None]:
    """Meanwhile, everything is started anew: forks of one process share the order of their sets, for one thing."""
    _anew.append(True)
    try:
        yield
    finally:
        _anew.pop()


def install(after: int = 0) -> None:
    """From now on, programs of ours are forked wherever this process starts them, but for the first ``after``."""
    if not works():
        return
    plain = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    waiting = _Waiting()
    left = after

    def start(self: Any, args: Any, executable: Any, *rest: Any) -> None:
        nonlocal left
        job = None if _anew else _asked(args, executable, *rest)
        left -= job is not None
        if job is None or left >= 0:
            plain(self, args, executable, *rest)
            return
        with self._waitpid_lock:
            self.pid = waiting.fork(*job)
            self._child_created = True
        self._close_pipe_fds(*rest[8:14])

    subprocess.Popen._execute_child = start  # type: ignore[attr-defined]


def _asked(
    args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: tuple[int, ...], cwd: Any, env: Any,
    _startupinfo: Any, _creationflags: Any, shell: Any, p2cread: int, _p2cwrite: int, _c2pread: int, c2pwrite: int,
    _errread: int, errwrite: int, restore_signals: bool, gid: Any, gids: Any, uid: Any, umask: int,
    start_new_session: bool, process_group: int,
) -> tuple[dict[str, Any], list[int]] | None:  # fmt: skip
    """What the process that waits is to become, with its streams; None where it cannot become that."""
    if isinstance(args, (str, bytes)) or len(args) < 2:
        return None
    line = [os.fspath(word) for word in args]
    if line[0] != PYTHON or executable is not None or preexec_fn or shell or not restore_signals:
        return None
    if (
        (gid, gids, uid) != (None, None, None)
        or umask >= 0
        or process_group != -1
        or not close_fds
        or len(pass_fds) > MOST
    ):
        return None
    option, what, *_ = [*(line[3:] if line[1] == "-W" else line[1:]), "", ""]
    ours = (option == "-m" and what.partition(".")[0] in ("perdure", "tests")) or (option == "-c" and "perdure" in what)
    if not ours or any(word in what for word in FRESH):
        return None
    told = dict(os.environ if env is None else env)
    for name in {*told, *os.environ}:
        if name.startswith(SETTLED) and name not in GIVEN and told.get(name) != os.environ.get(name):
            return None
    if any(fd >= LOW for fd in pass_fds):
        return None
    job = {
        "line": line[1:], "env": told, "cwd": os.fspath(cwd or os.getcwd()), "session": start_new_session,
        "files": [0, 1, 2, *pass_fds],
    }  # fmt: skip
    streams = [p2cread if p2cread != -1 else 0, c2pwrite if c2pwrite != -1 else 1, errwrite if errwrite != -1 else 2]
    return job, [*streams, *pass_fds]


class _Waiting:
    """The process that waits, from outside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._line: socket.socket | None = None

    def fork(self, job: dict[str, Any], streams: list[int]) -> int:
        """Have a process made; its number."""
        with self._lock:
            if self._line is None or self._owner != os.getpid():
                self._line, self._owner = self._begin(), os.getpid()
            # Whose parent ends is given to the nearest one that asks for it: only while this is under way.
            libc = ctypes.CDLL(None)
            libc.prctl(SUBREAPER, 1, 0, 0, 0)
            try:
                data = json.dumps(job).encode()
                socket.send_fds(self._line, [len(data).to_bytes(8, "little")], streams)
                self._line.sendall(data)
                answer = self._line.recv(8)
            finally:
                libc.prctl(SUBREAPER, 0, 0, 0, 0)
            if len(answer) != 8:
                raise RuntimeError("the process that starts others has ended")
            return int.from_bytes(answer, "little")

    @staticmethod
    def _begin() -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.set_inheritable(True)
            # From the folder of the tests, wherever this one stands: ``-m`` looks there.
            surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
            command = [PYTHON, "-m", "tests.quick_start", str(theirs.fileno())]
            quiet = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
            os.posix_spawn(PYTHON, command, surroundings, file_actions=quiet)
        return ours


# -- in the process that waits ---------------------------------------------------------------------------------------


def wait(line: socket.socket) -> dict[str, Any]:
    """Make a fork for whoever asks, until nobody can ask any more; what a fork is to become is returned in it."""
    # Some modules open a file of their own, which is to be in nobody's way.
    taken = [os.dup(0)]
    while taken[-1] < LOW:
        taken.append(os.dup(0))
    for name in READ:
        importlib.import_module(name)
    for fd in taken:
        os.close(fd)
    gc.collect()
    gc.freeze()
    while True:
        head, files, _, _ = socket.recv_fds(line, 8, 3 + MOST)
        if not head:
            sys.exit(0)
        data = b""
        size = int.from_bytes(head, "little")
        while len(data) < size:
            data += line.recv(size - len(data))
        held, go = os.pipe()
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid:
                os.write(tell, pid.to_bytes(8, "little"))
                os._exit(0)
            for fd in (go, told, tell):
                os.close(fd)
            # Nothing is done before its parent is who asked for it.
            os.read(held, 1)
            os.close(held)
            line.close()
            job = json.loads(data)
            above = [fcntl.fcntl(fd, fcntl.F_DUPFD, LOW) for fd in files]
            for fd in files:
                os.close(fd)
            for number, fd in zip(job["files"], above, strict=True):
                os.dup2(fd, number)
                os.close(fd)
            return job
        os.waitpid(between, 0)
        line.sendall(os.read(told, 8))
        for fd in (held, go, told, tell, *files):
            os.close(fd)


def become(job: dict[str, Any]) -> None:
    """Be what Python would be had it been started with these words."""
    if job["session"]:
        os.setsid()
    # Each once, as Python has them.
    before = len({entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry})
    os.environ.clear()
    os.environ.update(job["env"])
    os.chdir(job["cwd"])
    time.tzset()
    found = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    words = job["line"]
    if words[0] == "-W":
        sys.warnoptions.append(words[1])
        warnings._processoptions(words[1:2])  # type: ignore[attr-defined]
        words = words[2:]
    option, what, *more = words
    sys.path[: 1 + before] = [job["cwd"] if option == "-m" else "", *found]
    importlib.invalidate_caches()
    _streams(bool(os.environ.get("PYTHONUNBUFFERED")))
    sys.argv = [option, *more]
    sys.orig_argv = [sys.executable, *job["line"]]
    install(WORTH_IT)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if option == "-m":
        if not hasattr(sys.modules.get(what), "__path__"):
            sys.modules.pop(what, None)
        runpy._run_module_as_main(what)  # type: ignore[attr-defined]
    else:
        exec(compile(what, "<string>", "exec"), main.__dict__)  # noqa: S102  (what `python -c` is)


def _streams(unbuffered: bool) -> None:
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old: Any = getattr(sys, name)
        raw: Any = io.FileIO(number, "rb" if number == 0 else "wb", closefd=False)
        if number == 0:
            raw = io.BufferedReader(raw)
        elif not unbuffered:
            raw = io.BufferedWriter(raw)
        lines = not unbuffered and (number == 2 or os.isatty(number))
        text = io.TextIOWrapper(raw, old.encoding, old.errors, line_buffering=lines, write_through=unbuffered)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def end(job: dict[str, Any]) -> NoReturn:
    """Become it, and end as Python ends, but for taking apart all that was read: that costs more than reading it."""
    try:
        become(job)
        code: Any = 0
    except SystemExit as ended:
        code = ended.code
        if not (code is None or isinstance(code, int)):
            print(code, file=sys.stderr)
            code = 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
        if isinstance(error, KeyboardInterrupt):
            code = -signal.SIGINT
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    job = wait(socket.socket(fileno=int(sys.argv[1])))
    end(job)
