"""Starts writing programs, kills them, and compares what they were told with what is there: a round."""

from __future__ import annotations

import glob
import multiprocessing
import os
import random
import re
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import perdure
from perdure.errors import NotFound, PerdureError
from tests.campaigns.foreign.program import BOTH, STEP_LIMIT, Life, come_and_go, live, unharmed, url_of
from tests.servers.place import memory

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS_OF_A_STORE = 8
"""Then a new one is begun: what is there is compared after each round, and grows."""
STEPS = 60
"""Of one life, which most do not live to the end of."""
LONGEST = 1.2
"""Seconds after which, at the latest, a program is killed."""
LEFT_TO_END = 4
"""Every so many lives is not killed."""
_one_at_a_time = threading.Lock()
"""Whoever starts a process asks all others how they ended, and what two threads ask at once only one is told."""
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.campaigns.foreign.program", "perdure.stores.sqlite.store"])


class Tally:
    """What was seen of one way of locking, with so many writers."""

    def __init__(self, locks: str, writers: int) -> None:
        self.locks = locks
        self.writers = writers
        self.rounds = self.kills = self.stores = self.acknowledged = self.removed = self.rescued = 0
        self.lost = self.doubled = self.hung = self.damaged = self.astray = 0
        self.steps: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.problems: list[str] = []

    def problem(self, kind: str, what: str, count: int = 1) -> None:
        """Something is not as it must be."""
        setattr(self, kind, getattr(self, kind) + count)
        self.problems.append(f"{kind}: {what}")

    def __str__(self) -> str:
        refused = ", ".join(f"{kind} {count}" for kind, count in sorted(self.refused.items())) or "none"
        return (
            f"{self.locks:18} writers {self.writers}   rounds {self.rounds:3}   kills {self.kills:3}   "
            f"acknowledged {self.acknowledged:6}   lost {self.lost}   doubled {self.doubled}   hung {self.hung}   "
            f"files damaged {self.damaged}   otherwise wrong {self.astray}\n"
            f"{'':18} stores {self.stores}, files removed or replaced {self.removed}, rescued copies {self.rescued}\n"
            f"{'':18} refusals: {refused}"
        )


class Victim:
    """One store that goes through round after round."""

    def __init__(self, tally: Tally, rng: random.Random) -> None:
        self._tally = tally
        self._rng = rng
        self._lives = 0
        self.folder = tempfile.mkdtemp(prefix="perdure-foreign-", dir=memory())
        os.mkdir(f"{self.folder}/data")
        self.broken = False
        self._removed = False
        self._copies = 0
        self._tried: dict[str, set[int]] = defaultdict(set)
        self._acknowledged: dict[str, set[int]] = defaultdict(set)
        tally.stores += 1

    def end(self) -> None:
        """Nothing was wrong: it is not looked at again."""
        if not self.broken:
            shutil.rmtree(self.folder)

    def round(self) -> None:
        """Programs live, and are killed; then everything they were told is looked for."""
        running = [self._start(writer) for writer in range(self._tally.writers)]
        visitor = None
        if self._rng.random() < 0.5:
            life = Life(self.folder, self._tally.locks, 0, 0, self._rng.randrange(1 << 30), 0)
            visitor = _processes.Process(target=come_and_go, args=(life,), daemon=True)
            with _one_at_a_time:
                visitor.start()
        while running:
            for one in running[:]:
                if self._over(*one):
                    running.remove(one)
            time.sleep(0.005)
        if visitor is not None:
            with _one_at_a_time:
                visitor.kill()
                visitor.join()
        self._tally.rounds += 1
        self._judge()

    def _start(self, writer: int) -> tuple[Life, Any, float]:
        self._lives += 1
        rng = self._rng
        writers = self._tally.writers
        life = Life(self.folder, self._tally.locks, self._lives, writer, rng.randrange(1 << 30), STEPS, writers)
        process = _processes.Process(target=live, args=(life,), daemon=False)
        with _one_at_a_time:
            process.start()
        until = 1e9 if rng.randrange(LEFT_TO_END) == 0 else rng.random() * LONGEST
        return life, process, time.monotonic() + until

    def _over(self, life: Life, process: Any, until: float) -> bool:
        """Whether a program has ended, by itself or now."""
        try:
            quiet = time.time() - os.stat(life.notes).st_mtime
        except FileNotFoundError:
            quiet = 0.0
        with _one_at_a_time:
            alive = process.is_alive()
        if alive and quiet > STEP_LIMIT:
            last = Path(life.notes).read_text("utf-8").splitlines()[-3:]
            self._tally.problem("hung", f"life {life.number} of {life.folder} after {last}")
            self.broken = True
            process.kill()
        elif alive and time.monotonic() < until:
            return False
        elif alive:
            with unharmed(self.folder, killing=True):
                process.kill()
        with _one_at_a_time:
            process.join()
        if process.exitcode == -signal.SIGKILL:
            self._tally.kills += 1
        elif process.exitcode:
            last = Path(life.notes).read_text("utf-8").splitlines()[-3:] if os.path.exists(life.notes) else []
            ended = f"life {life.number} in {life.folder} ended with {process.exitcode} after {last}"
            self._tally.problem("astray", ended)
            self.broken = True
        self._hear(life)
        return True

    def _hear(self, life: Life) -> None:
        tally = self._tally
        for line in Path(life.notes).read_text("utf-8").splitlines() if os.path.exists(life.notes) else ():
            match line.split(maxsplit=2):
                case ["try", session, value]:
                    self._tried[session].add(int(value))
                case ["ack", session, value]:
                    self._acknowledged[session].add(int(value))
                    tally.acknowledged += 1
                case ["refused", kind, _]:
                    tally.refused[kind] += 1
                case ["step", *step]:
                    tally.steps[" ".join(step)] += 1
                case ["removed", *_]:
                    self._removed = True
                    tally.removed += 1
                case ["hung", *_]:
                    tally.problem("hung", f"a child of life {life.number} in {life.folder}")
                case ["let", what]:
                    tally.problem("astray", f"the child of a fork could {what}: life {life.number} in {life.folder}")
                case ["unnoticed"]:
                    tally.problem("astray", f"a file was gone unnoticed: life {life.number} in {life.folder}")
                case _:
                    pass

    def _judge(self) -> None:
        """Everything acknowledged is in the database, or where a rescue has put it; once, in order, undamaged."""
        main = f"{self.folder}/data/agents.db"
        copies = [p for p in glob.glob(f"{glob.escape(main)}.rescued-*") if not p.endswith(("-wal", "-shm"))]
        self._tally.rescued = self._tally.rescued + len(copies) - self._copies
        self._copies = len(copies)
        if copies and not self._removed:
            self._wrong("astray", f"a rescue without any need: {copies}")
        found: dict[str, set[int]] = defaultdict(set)
        for path in (main, *copies):
            self._read(path, found)
        for session, values in sorted(self._acknowledged.items()):
            if lost := values - found[session]:
                self._wrong("lost", f"{len(lost)} of {session}, {sorted(lost)[:5]}", len(lost))

    def _read(self, path: str, found: dict[str, set[int]]) -> None:
        try:
            with perdure.open(url_of(path), maintain=False) as db:
                for session, tried in self._tried.items():
                    try:
                        values: list[int] = db.read(session).messages.plain()
                    except NotFound:
                        continue
                    found[session] |= set(values)
                    if len(values) != len(set(values)):
                        twice = [v for v, count in Counter(values).items() if count > 1]
                        self._wrong("doubled", f"{session} in {path}: {twice[:5]}", len(twice))
                    if strange := set(values) - tried:
                        self._wrong("astray", f"{session} in {path} has what nobody wrote: {sorted(strange)[:5]}")
                    if session != BOTH and values != sorted(values):
                        self._wrong("astray", f"{session} in {path} is out of order: {values}")
                report = db.verify()
                if report.findings:
                    self._wrong("damaged", f"{path}: {report.findings[:3]}")
        except PerdureError as error:
            self._wrong("damaged", f"{path}: {type(error).__name__}: {error}")

    def _wrong(self, kind: str, what: str, count: int = 1) -> None:
        self._tally.problem(kind, f"{what} (in {self.folder})", count)
        self.broken = True


def campaign(locks: str, writers: int, rounds: int, seed: int, say: Callable[[Tally], None]) -> Tally:
    """So many rounds; a store in which something was wrong is kept, and another one begun."""
    tally = Tally(locks, writers)
    rng = random.Random(f"{seed}/{locks}/{writers}")
    victim = Victim(tally, rng)
    for number in range(rounds):
        if number and (victim.broken or number % ROUNDS_OF_A_STORE == 0):
            victim.end()
            victim = Victim(tally, rng)
        victim.round()
        say(tally)
    victim.end()
    return tally


def discard(tally: Tally) -> None:
    """Losses that were meant to be are not kept for anybody to look at."""
    for problem in tally.problems:
        if found := re.search(r"\S+/perdure-foreign-\w+", problem):
            shutil.rmtree(found[0].lstrip("("), ignore_errors=True)
