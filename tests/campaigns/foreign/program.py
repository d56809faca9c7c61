"""A program that writes a SQLite database while others get at its files, in the same process and from outside.

What it was told is durable it writes down in a file apart from the store before it goes on. It is killed at some
moment, except between the removal of a file of its database and the commit that finds that out: what is promised holds
from that commit on, so whoever kills waits for :func:`unharmed`.
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import perdure
from perdure.errors import NotFound, PerdureError
from perdure.stores.sqlite import own_locks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEP_LIMIT = 40
"""Seconds after which a step that takes milliseconds counts as hanging."""
LEASE = 1.0
"""Seconds for which a lease outlives a handle that could not let it go."""
PER_LIFE = 10_000
"""More values than one life of a program writes."""
OURS, FALLBACK, NO_LOCKS, NO_LOOK = "our locks", "SQLite's locks", "sabotage: no locks", "sabotage: no look"
BOTH = "both"
"""The session that all programs write, without a lease; each has one of its own besides."""


class Life(NamedTuple):
    """What a program is told."""

    folder: str
    locks: str
    number: int
    """Of all lives on this store: values grow with it."""
    writer: int
    seed: int
    steps: int
    writers: int = 1

    @property
    def path(self) -> str:
        """The database."""
        return f"{self.folder}/data/agents.db"

    @property
    def notes(self) -> str:
        """What it says, one event per line."""
        return f"{self.folder}/notes-{self.number}"

    @property
    def session(self) -> str:
        """Its own session."""
        return f"w{self.writer}"


def url_of(path: str) -> str:
    """The URL of a SQLite file."""
    return f"sqlite:///{path}"


@contextmanager
def _flock(path: str, how: int) -> Iterator[None]:
    # Opened anew each time: a child of a fork in between would hold on to what is locked.
    with open(path, "a", encoding="ascii") as file:
        fcntl.flock(file, how)
        yield


@contextmanager
def unharmed(folder: str, *, killing: bool) -> Iterator[None]:
    """For a kill: no file of the database is missing meanwhile that its writers do not know of."""
    with _flock(f"{folder}/harm", fcntl.LOCK_EX if killing else fcntl.LOCK_SH):
        yield


@contextmanager
def door(folder: str) -> Iterator[None]:
    """Nobody opens the database while its files are replaced: two that do not belong together are no database."""
    with _flock(f"{folder}/door", fcntl.LOCK_EX):
        yield


def weaken(locks: str) -> None:
    """Have this process do without what keeps its commits, for good."""
    module: Any = own_locks
    if locks in (FALLBACK, NO_LOCKS):
        module._library = None
    if locks == NO_LOCKS:
        module._watch = lambda: None
    if locks in (NO_LOCKS, NO_LOOK):
        made = module.OwnFile.__init__

        def blind(self: Any, path: str) -> None:
            made(self, path)
            self.astray = lambda: 0

        module.OwnFile.__init__ = blind


LOOK = """
import sqlite3, sys
other = sqlite3.connect(sys.argv[1], timeout=10)
other.execute("select count(*) from sqlite_schema").fetchone()
other.close()
"""
EMPTY_LOG = """
import sqlite3, sys
other = sqlite3.connect(sys.argv[1], timeout=10)
other.execute("pragma wal_checkpoint(truncate)").fetchone()
other.close()
"""
SPAWNED = """
import os, sys, perdure
notes = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
with perdure.open(sys.argv[1]) as db, db.session(sys.argv[3]) as s:
    value = int(sys.argv[4])
    os.write(notes, b"try %s %d\\n" % (s.id.encode(), value))
    s.messages.append(value)
    s.commit()
    os.write(notes, b"ack %s %d\\n" % (s.id.encode(), value))
"""


class Program:
    """One life of a writing program."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self._rng = random.Random(life.seed)
        self._notes = os.open(life.notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._value = life.number * PER_LIFE
        self._held: list[sqlite3.Connection] = []
        self._children: list[int] = []

    def note(self, *words: object) -> None:
        """Write down what happened, in one write that a kill does not divide."""
        os.write(self._notes, (" ".join(map(str, words)) + "\n").encode())

    def live(self) -> None:
        """Do steps in a random order until the life is over."""
        self._open()
        self.note("up")
        # Where nobody looks whether a file is gone, that is one sabotage; what locks are for is another.
        steps = [step for step in STEPS if self.life.locks != NO_LOCKS or step != "remove"]
        weights = [STEPS[step][0] for step in steps]
        for step in self._rng.choices(steps, weights, k=self.life.steps):
            self.note("step", step)
            try:
                STEPS[step][1](self)
            except (PerdureError, sqlite3.Error, OSError) as refusal:
                self._refused(step, refusal)
        while self._held:
            self._held.pop().close()
        self._close()
        self.note("end")

    def _refused(self, step: str, refusal: BaseException) -> None:
        self.note("refused", type(refusal).__name__, step, "-", str(refusal).replace("\n", " ")[:300])

    # -- its own work ---------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Again while it is refused: a handle that found its files gone could not give its lease back, and who still
        has one of them open keeps others from reading the new ones."""
        deadline = time.monotonic() + STEP_LIMIT / 2
        while True:
            db = None
            try:
                with door(self.life.folder):
                    db = perdure.open(url_of(self.life.path), maintain=self._rng.random() < 0.5, lease_ttl=LEASE)
                self.db, self.s = db, db.session(self.life.session)
                return
            except PerdureError as refusal:
                if time.monotonic() > deadline:
                    raise
                self._refused("open", refusal)
                if db is not None:
                    self._let_go(db)
                time.sleep(0.1)

    def _close(self) -> None:
        with suppress(PerdureError):
            self.s.release()
        self._let_go(self.db)

    def _let_go(self, db: perdure.Database) -> None:
        # Whoever closes is told as well of what nobody was told before.
        try:
            db.close()
        except PerdureError as refusal:
            self._refused("close", refusal)

    def reopen(self) -> None:
        """Close everything that has the database open, and open it again."""
        while self._held:
            self._held.pop().close()
        self._close()
        self._open()

    def _commit(self, session: str) -> None:
        """One value, until it is there: one that was refused is looked for by a new handle, and written again."""
        self._value += 1
        value = self._value
        self.note("try", session, value)
        for _ in range(5):
            try:
                if session == BOTH:
                    self.db.update(BOTH, lambda s: s.messages.append(value))
                else:
                    self.s.messages.append(value)
                    self.s.commit()
            except PerdureError as refusal:
                self._refused("commit", refusal)
                self.reopen()
                if value in self._stored(session):
                    return
            else:
                self.note("ack", session, value)
                return

    def _stored(self, session: str) -> list[Any]:
        try:
            return self.db.read(session).messages.plain()
        except NotFound:
            return []

    def commits(self) -> None:
        """A few commits to the session of its own."""
        for _ in range(self._rng.randint(1, 4)):
            self._commit(self.life.session)

    def shared(self) -> None:
        """One to the session of all."""
        self._commit(BOTH)

    # -- others in the same process -------------------------------------------------------------------------------

    def sqlite3_reads(self) -> None:
        """The standard library's SQLite opens the file, reads and closes."""
        mode = self._rng.choice(["ro", "rw"])
        with closing(sqlite3.connect(f"file:{self.life.path}?mode={mode}", uri=True, timeout=1)) as other:
            other.execute("select count(*) from sqlite_schema").fetchone()

    def sqlite3_stays(self) -> None:
        """It stays open with a statement half read, while commits go on; an earlier one is closed."""
        while len(self._held) > 1:
            self._held.pop(0).close()
        other = sqlite3.connect(self.life.path, timeout=1)
        self._held.append(other)
        other.execute("select name from sqlite_schema").fetchone()

    def sqlite3_locks(self) -> None:
        """It takes the writers' lock for a moment, writes nothing, and closes."""
        with closing(sqlite3.connect(self.life.path, timeout=1, isolation_level=None)) as other:
            other.execute("begin immediate")
            other.execute("rollback")

    def others_move(self) -> None:
        """It moves the log into the database, or rewrites that, while copies of all files take its locks from it."""
        over = threading.Event()
        what = self._rng.choice(["pragma wal_checkpoint(truncate)", "pragma wal_checkpoint", "vacuum"])

        def moves() -> None:
            while not over.wait(0.002):
                with (
                    suppress(sqlite3.Error, PerdureError),
                    closing(sqlite3.connect(self.life.path, timeout=0.2, isolation_level=None)) as other,
                ):
                    other.execute(what).fetchall()

        def copies() -> None:
            while not over.wait(0.002):
                for suffix in own_locks.FILES:
                    with suppress(OSError, PerdureError), open(self.life.path + suffix, "rb") as file:
                        file.read()

        threads = [threading.Thread(target=work) for work in (moves, copies)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(3):
                self.commits()
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def copies(self) -> None:
        """A file, or the whole folder, is copied."""
        aside = f"{self.life.folder}/copy-{self.life.writer}"
        if self._rng.random() < 0.3:
            with suppress(shutil.Error, FileNotFoundError):  # a name that went while it was copied
                shutil.copytree(os.path.dirname(self.life.path), aside)
            shutil.rmtree(aside, ignore_errors=True)
            return
        with suppress(FileNotFoundError):
            shutil.copy(self.life.path + self._rng.choice(own_locks.FILES), aside)
        with suppress(FileNotFoundError):
            os.unlink(aside)

    def by_other_means(self) -> None:
        """Something that is not Python opens the files and closes them."""
        libc = ctypes.CDLL(None)
        for suffix in own_locks.FILES:
            number = libc.open((self.life.path + suffix).encode(), os.O_RDWR)
            if number >= 0:
                libc.close(number)

    # -- children -------------------------------------------------------------------------------------------------

    def _fork(self, work: Callable[[], None]) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            signal.alarm(STEP_LIMIT)
            work()
        finally:
            os._exit(0)

    def _wait(self, pid: int) -> None:
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) == -signal.SIGALRM:
            self.note("hung", "child")

    def child_uses(self) -> None:
        """A child uses what its parent had open, opens it anew, and lets go of it: all of that is refused."""
        value = self._value = self._value + 1

        def commit() -> None:
            self.s.messages.append(value)
            self.s.commit()

        def work() -> None:
            for what, do in (
                ("commit", commit),
                ("read", lambda: self.db.read(self.life.session)),
                ("open", lambda: perdure.open(url_of(self.life.path))),
                ("close", self.db.close),
            ):
                try:
                    do()
                except PerdureError as refusal:
                    self._refused(f"child's {what}", refusal)
                else:
                    if what != "close":
                        self.note("let", what)

        self._wait(self._fork(work))

    def child_reads_by_sqlite3(self) -> None:
        """A child reads it by another SQLite."""

        def work() -> None:
            try:
                self.sqlite3_reads()
            except (PerdureError, sqlite3.Error) as refusal:
                self._refused("child's sqlite3", refusal)

        self._wait(self._fork(work))

    def child_stays(self) -> None:
        """A child lives on for a while, whatever becomes of its parent."""
        while self._children:
            self._wait(self._children.pop())
        pause = self._rng.random() / 3
        self._children.append(self._fork(lambda: time.sleep(pause)))

    def child_spawns(self) -> None:
        """A child starts a program of its own, which may open the database."""
        value = self._value = self._value + 1
        session = f"child-{self.life.number}-{value}"
        command = [sys.executable, "-c", SPAWNED, url_of(self.life.path), self.life.notes, session, str(value)]

        def work() -> None:
            with door(self.life.folder):
                done = subprocess.run(command, capture_output=True, timeout=STEP_LIMIT, check=False)
            if done.returncode:
                said = done.stderr.decode().strip().splitlines()[-1:] or [""]
                kind = said[0].partition(":")[0].rpartition(".")[2]
                self.note("refused", kind, "spawned", "-", said[0][:300])

        self._wait(self._fork(work))

    # -- from outside ---------------------------------------------------------------------------------------------

    def visit(self) -> None:
        """Another process that knows SQLite alone comes and goes: with no locks in its way, it removes the log."""
        script = self._rng.choice([LOOK, LOOK, EMPTY_LOG])
        with door(self.life.folder):
            subprocess.run(
                [sys.executable, "-S", "-E", "-c", script, self.life.path],
                timeout=STEP_LIMIT, check=False, capture_output=True,
            )  # fmt: skip

    def back_up(self) -> None:
        """A copy is made that may be put in the place of the database later on."""
        older = f"{self.life.folder}/older"
        new = f"{older}-{self.life.number}"
        with closing(sqlite3.connect(f"file:{self.life.path}?mode=ro", uri=True, timeout=5)) as other:
            other.execute("vacuum into ?", (new,))
        os.replace(new, older)

    def remove(self) -> None:
        """Somebody removes or replaces files of the database; then commits go on until that is found out."""
        path, older = self.life.path, f"{self.life.folder}/older"
        with unharmed(self.life.folder, killing=False):
            how = self._rng.choice(["-wal", "-shm", "-wal -shm", "empty log", "database"])
            if how == "database" and not os.path.exists(older):
                how = "-wal"
            with door(self.life.folder):
                self.note("removed", how)
                if how == "database":
                    # First: with the log gone before, a thread of ours could still move all into what is replaced then.
                    shutil.copy(older, f"{older}-put-back")
                    os.replace(f"{older}-put-back", path)
                for suffix in how.split() if how[0] == "-" else ["-wal", "-shm"]:
                    with suppress(FileNotFoundError):
                        os.unlink(path + suffix)
                if how == "empty log":
                    open(f"{older}-none", "wb").close()
                    os.replace(f"{older}-none", f"{path}-wal")
            if self._rng.random() < 0.3:
                self.visit()
            self._until_poisoned()

    def _until_poisoned(self) -> None:
        before = self.db
        for _ in range(4):
            self._commit(self.life.session)
            if self.db is not before:
                return
        self.note("unnoticed")


STEPS: dict[str, tuple[int, Callable[[Program], None]]] = {
    "commit": (40, Program.commits),
    "shared": (10, Program.shared),
    "reopen": (2, Program.reopen),
    "sqlite3 reads": (8, Program.sqlite3_reads),
    "sqlite3 stays": (5, Program.sqlite3_stays),
    "sqlite3 locks": (3, Program.sqlite3_locks),
    "others move": (4, Program.others_move),
    "copies": (8, Program.copies),
    "by other means": (4, Program.by_other_means),
    "child uses": (3, Program.child_uses),
    "child reads by sqlite3": (3, Program.child_reads_by_sqlite3),
    "child stays": (3, Program.child_stays),
    "child spawns": (1, Program.child_spawns),
    "visit": (8, Program.visit),
    "back up": (3, Program.back_up),
    "remove": (3, Program.remove),
}
"""How often each is done, against the others, and what it is."""


def live(life: Life) -> None:
    """One life, in a process of its own."""
    # Edits that a refused handle had are made again; what cannot be compacted says why at the next commit, too.
    warnings.simplefilter("ignore")
    logging.disable()
    weaken(life.locks)
    Program(life).live()


def come_and_go(life: Life) -> None:
    """Another process that opens the database and closes it, again and again, until it is ended."""
    rng = random.Random(life.seed)
    logging.disable()
    weaken(life.locks)
    while True:
        db = None
        with suppress(PerdureError):
            with door(life.folder):
                db = perdure.open(url_of(life.path), maintain=False)
            with suppress(NotFound):
                db.read(BOTH).messages.plain()
        if db is not None:
            with suppress(PerdureError):
                db.close()
        time.sleep(rng.random() / 10)
