"""Locks of our SQLite files that nothing else in the process can drop, and a look at whether the files are still ours.

The work is done in C (``own_locks.c``, which says why); here it is told which files are ours. Where it was not built,
or the system has no such locks, SQLite locks files in its own way, and :data:`WEAKNESS` says why: then Python code that
is about to open such a file beside us is refused, and what opens it by other means can lose commits.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import sys
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import apsw

from perdure.errors import ForkedProcess, Misuse, Unavailable
from perdure.system.flow import SPAWN

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libown_locks.so")
FILES = ("", "-wal", "-shm")
"""What the names of a database's files end with: the database, its log, the log's index."""
DATABASE, INDEX = 1, 3
"""The numbers of the first and the last one, counted from 1."""
CUT, WRITTEN_OVER, PUT_BACK = IN_PLACE = (4, 5, 6)
"""Told of a log, of the database, and of the log's index: it is the same file, and was cut or written over in place."""
LOG_ASIDE, RESCUED = ".log-", ".rescued-"
"""How the names go on of a log that was set aside, and of a copy with what only one process still had."""
KEEP_OUT_TRIES = 200
"""So many milliseconds somebody may take who is just opening the database."""


def _load() -> tuple[Any, str]:
    """The library, its functions in SQLite's table of system calls; or why there is none."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None, "perdure was installed without its compiled part: install a C compiler and perdure again"
    if number := library.perdure_prepare():
        return None, f"this system has no locks of open files ({os.strerror(number)})"
    calls = (ctypes.c_void_p * 8).in_dll(library, "perdure_system_calls")
    # The table belongs to all of SQLite's own file systems; this one is only a way to reach it.
    table = apsw.VFS("perdure-own-locks", base="unix")
    replaced = [
        table.xSetSystemCall(ctypes.string_at(name or 0).decode(), function)
        for name, function in zip(calls[::2], calls[1::2], strict=True)
    ]
    table.unregister()
    if not all(replaced):
        return None, "this SQLite does not let its system calls be replaced: install apsw from its wheel"
    for function in ("own", "alone", "left_of_log", "log_is_empty", "unmark", "refused"):
        getattr(library, f"perdure_{function}").argtypes = [ctypes.c_char_p]
    library.perdure_moved_to.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int]
    for function in ("astray", "keep_out"):
        getattr(library, f"perdure_{function}").argtypes = [ctypes.c_char_p, ctypes.c_int]
    return library, ""


_library, WEAKNESS = _load()
"""Why locks are only SQLite's; empty when they are ours."""
PROMISE = (
    "Nothing else in the process that opens, copies or closes the file can drop the locks that this rests on."
    if not WEAKNESS
    else "Its locks hold while nothing else in the process opens the file and closes it again: what Python opens by "
    "its path (open(), sqlite3.connect()) is refused; what is attached, opened relative to a descriptor, or opened by "
    f"other libraries is not seen ({WEAKNESS})."
)
"""What that means for what was committed."""


class OwnFile:
    """One database that is about to be opened; its path is the one that SQLite will use."""

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)
        self._name = os.fsencode(self.path)
        if _library is not None:
            number = _library.perdure_own(self._name)
            if number and number != errno.EBUSY:
                raise Unavailable(f"{path}: {os.strerror(number)}")
            inherited = number == errno.EBUSY
        else:
            inherited = self.path in _inherited
            _watch()
        if inherited:
            raise ForkedProcess(
                f"{path} was open in the process that this one was forked from, so it cannot be opened here: {SPAWN}"
            )
        self._known: list[tuple[int, int] | None] = []
        self._moved = 0
        self._after: Callable[[int], int] = partial(_library.perdure_astray, self._name) if _library else self._look
        self.astray: Callable[[], int] = partial(self._after, 0)
        """The number of the first of its files, counted from 1, that was removed or replaced since it was opened; or
        one of those that speak of a change in place; 0 when all is well."""
        _open[self.path] = _open.get(self.path, 0) + 1

    def name(self, number: int) -> str:
        """The name of one of its files, by the number that was told."""
        return self.path + FILES[{CUT: 2, WRITTEN_OVER: DATABASE, PUT_BACK: INDEX}.get(number, number) - 1]

    @contextmanager
    def others_kept_out(self) -> Generator[bool]:
        """Nobody else opens the database meanwhile; False when that cannot be had."""
        if _library is None:
            yield True
            return
        kept_out = False
        for _ in range(KEEP_OUT_TRIES):
            if kept_out := not _library.perdure_keep_out(self._name, 1):
                break
            time.sleep(0.001)
        try:
            if kept_out:
                # Whoever was just opening it has made the files by now that are looked for.
                time.sleep(0.002)
            yield kept_out
        finally:
            if kept_out:
                _library.perdure_keep_out(self._name, 0)

    def alone(self) -> bool:
        """Whether nobody else has gone on without us: the database is as it was when all was well last, and nobody has
        written anything in the place of a file that is gone. Of all of them, because somebody may have had another log
        that is gone by now as well."""
        if _library is not None:
            return bool(_library.perdure_alone(self._name))
        for number in range(1, len(FILES) + 1):
            if self._after(number - 1) == number and (number == 1 or os.path.exists(self.name(number))):
                return False
        return os.stat(self.path).st_mtime_ns == self._moved

    def moved_to(self) -> str:
        """Where the database is now, when it was renamed together with its log; "" when it was not."""
        there = ctypes.create_string_buffer(4096)
        found = _library is not None and _library.perdure_moved_to(self._name, there, len(there))
        return os.fsdecode(there.value) if found else ""

    def log_is_empty(self) -> bool:
        """Whether all that was in our log is in the database: somebody who has the same one has moved it."""
        return _library is not None and bool(_library.perdure_log_is_empty(self._name))

    def let_others_in(self) -> None:
        """What only our log had is safe: others, who were refused because of it, may open the database."""
        if _library is not None:
            _library.perdure_unmark(self._name)

    def take_log_away(self) -> None:
        """The database was replaced, and what our log had is safe: whoever opens the new one shall not find it."""
        for number in range(2, len(FILES) + 1):
            if self._after(number - 1) != number:
                with suppress(OSError):
                    os.unlink(self.name(number))

    def take_index_away(self) -> None:
        """Our index is not what it was: whoever opens the database makes another one, from all that is in the log."""
        if self._after(INDEX - 1) != INDEX:
            with suppress(OSError):
                os.unlink(self.name(INDEX))

    def left_of_log(self) -> tuple[bool, bool]:
        """Of a log that was cut or written over: whether nobody may find what is left of it beside the database, which
        would become older by it; and whether all that was committed is in the database."""
        found = 0 if _library is None else _library.perdure_left_of_log(self._name)
        return bool(found & 1), bool(found & 2)

    def set_log_aside(self) -> str:
        """Whoever opens the database next shall not find our log beside it. Where it went; "" when it is gone."""
        if self._after(1) == 2:
            return ""
        aside = f"{self.path}{LOG_ASIDE}{os.getpid()}-{os.urandom(4).hex()}"
        self.take_index_away()
        try:
            os.rename(self.path + FILES[1], aside)
        except OSError:
            return ""
        return aside

    def refusal(self) -> str:
        """Why SQLite could not open the log, if that was because somebody else has another one; "" otherwise."""
        if _library is None or not _library.perdure_refused(self._name):
            return ""
        holders = _processes_with({f"{self.path}{suffix} (deleted)" for suffix in FILES})
        who = f"process {' and '.join(holders)}" if holders else "another process"
        return (
            f"{self.path}: it, or its log, was removed or replaced while {who} had it open, or it has a second name (a "
            "hard link). Whoever has it finds that out when it next reads or writes, or closes it, and saves what only "
            "it has: try again then. Who is killed before that loses it. Nothing was written"
        )

    def _look(self, after: int) -> int:
        now = [_identity(self.path + suffix) for suffix in FILES]
        known = self._known or now
        self._known = [a or b for a, b in zip(known, now, strict=True)]
        files = enumerate(zip(known, now, strict=True), 1)
        gone = next((number for number, (a, b) in files if number > after and a and a != b), 0)
        if not (gone or after):
            self._moved = os.stat(self.path).st_mtime_ns
        return gone

    def close(self) -> None:
        """It is open no longer."""
        _open[self.path] -= 1
        if not _open[self.path]:
            del _open[self.path]


def _processes_with(links: set[str]) -> list[str]:
    """The processes that can be seen to have one of these files open, by what the system calls them."""
    found: list[str] = []
    for pid in filter(str.isdecimal, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        # They come and go, and those of others are not shown.
        with suppress(OSError):
            if any(os.readlink(f"/proc/{pid}/fd/{fd}") in links for fd in os.listdir(f"/proc/{pid}/fd")):
                found.append(pid)
    return sorted(found, key=int)


# -- where there are no such locks ----------------------------------------------------------------------------------

_open: dict[str, int] = {}
"""Paths of databases that are open in this process, and how often."""
_inherited: set[str] = set()
"""Those that were open when this process was forked."""
_watching = False


def _watch() -> None:
    """From now on nothing written in Python opens a database beside us in this process."""
    global _watching  # noqa: PLW0603 - an audit hook stays for good, so one is enough
    if not _watching:
        _watching = True
        os.register_at_fork(after_in_child=lambda: (_inherited.update(_open), _open.clear()))
        sys.addaudithook(_refuse)


def _in_uri(name: str) -> str:
    if not name.startswith("file:"):
        return ""
    name = re.split("[?#]", name.removeprefix("file:"), maxsplit=1)[0]
    if name.startswith("//"):
        name = "/" + name[2:].partition("/")[2]
    return unquote(name)


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    if event not in ("open", "sqlite3.connect") or not _open:
        return
    given = ""
    with suppress(TypeError):  # a descriptor that is open already
        given = os.fsdecode(args[0])
    # Whether what looks like a URI is taken for one is not told.
    for name in {given, _in_uri(given)} - {""}:
        real = os.path.realpath(name)
        if any(real == path + suffix for path in _open for suffix in FILES):
            raise Misuse(
                f"{name} is open as a database of this process, and closing it again would drop its locks: use "
                f"db.backup(...) for a copy, or read it in another process ({WEAKNESS})"
            )


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
