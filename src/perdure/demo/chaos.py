"""The workers of the night, and what goes wrong with them.

Workers are processes that are started, watched, and replaced like a cluster replaces pods. They are killed, evicted and
frozen, always while they have steps in flight; how soon others went on with those steps is counted here, too.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.agent.requests import AGENT
from perdure.model import MAIN, Status
from perdure.protocols import Filter
from perdure.state.document import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from perdure.database import Database
    from perdure.demo.crowd import Talk
    from perdure.history.checkpoint import Reading
    from perdure.protocols import Board, Work

STARTING, UP, FROZEN, LEAVING, DEAD = "starting", "up", "frozen", "leaving", "dead"
WORKING = Filter(state="working")
PAGE = 500
LEASE, GRACE = 1.0, 5.0
CONCURRENCY = 40


def pid_of(holder: str) -> int:
    """The process behind the name of a worker or of a lease's holder; 0 when it has none."""
    parts = holder.split("/")
    return int(parts[1]) if len(parts) > 2 and parts[1].isdigit() else 0


class Member:
    """One worker process."""

    def __init__(self, number: int, process: subprocess.Popen[bytes]) -> None:
        self.number = number
        self.process = process
        self.state = STARTING
        self.busy = 0

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid

    def send(self, what: signal.Signals) -> None:
        """Send a signal; one that has ended hears nothing."""
        if self.process.poll() is None:
            os.kill(self.pid, what)


class Workforce:
    """As many workers as wanted: whatever happens to one, another one takes its place."""

    def __init__(self, board: Board, env: dict[str, str], count: int, log: Path) -> None:
        self._board = board
        self._env = env
        self._count = count
        self._log = log
        self._lock = threading.Lock()
        self.members: list[Member] = []
        self.started = 0
        self.unexpected: list[str] = []
        """Ends that nobody brought about."""

    def begin(self) -> None:
        """Start all of them."""
        for _ in range(self._count):
            self.add()

    def add(self) -> Member:
        """Start one more."""
        command = [sys.executable, "-m", "perdure.cli", "worker", "perdure.demo.desk"]
        command += ["--concurrency", str(CONCURRENCY), "--lease", str(LEASE), "--grace", str(GRACE)]
        with self._lock, self._log.open("ab") as log:
            self.started += 1
            process = subprocess.Popen(
                command, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            member = Member(self.started, process)
            self.members.append(member)
            return member

    def replace(self, member: Member) -> None:
        """Start another one in its place."""
        with self._lock:
            self.members.remove(member)
        self.add()

    def works(self) -> list[Work]:
        """What is being worked on, by anybody."""
        found: list[Work] = []
        while True:
            page = self._board.works(WORKING, after=found[-1].session if found else None, limit=PAGE)
            found += page
            if len(page) < PAGE:
                return found

    def look(self) -> None:
        """See who is up and how busy, and replace whoever has ended by itself."""
        rows = {row.pid: row for row in self._board.workers()}
        for member in list(self.members):
            row = rows.get(member.pid)
            if row is not None and member.state in (STARTING, UP):
                member.state, member.busy = UP, row.busy
            code = member.process.poll()
            if code is not None and member.state in (STARTING, UP):
                self.unexpected.append(f"worker {member.number} ended by itself with {code}")
                member.state = DEAD
                self.replace(member)

    def wait_until_up(self, patience: float, stop: Callable[[], bool]) -> bool:
        """Wait until all serve; False when they do not in time."""
        until = time.monotonic() + patience
        while time.monotonic() < until and not stop():
            self.look()
            if all(m.state == UP for m in self.members):
                return True
            time.sleep(0.05)
        return False

    def end(self, grace: float) -> None:
        """Tell all to go, and see to it that they do."""
        with self._lock:
            members = list(self.members)
        for member in members:
            member.send(signal.SIGCONT)
            member.send(signal.SIGTERM)
        until = time.monotonic() + grace
        for member in members:
            try:
                member.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()


KILL, EVICT, FREEZE = "SIGKILL", "SIGTERM", "SIGSTOP"
KINDS = (KILL, EVICT, FREEZE)
FROZEN_FOR = 2.0
"""Lease periods for which a worker is frozen."""
LAST = 0.93
"""By then, as a part of all answers, the last stroke is due: something must be left to be interrupted."""


class Stroke(NamedTuple):
    """Something that is to happen once so much was answered (0 to 1)."""

    kind: str
    at: float


class Hit(NamedTuple):
    """A session in mid-step in a worker that was struck."""

    kind: str
    session: str
    at: int
    """When the signal was sent, in ms."""
    over: int
    """When the worker could certainly do nothing more (killed), or something again (frozen)."""
    step: int
    """How far the session had come."""
    tokens: int = 0
    """Of the answers that were committed by then."""


class Event(NamedTuple):
    """Something that happened, for people to read."""

    kind: str
    worker: int
    sessions: int
    """How many it had in mid-step."""
    seconds: float
    """Since the beginning of the night."""
    more: str = ""


def plan(seed: int, kills: int) -> list[Stroke]:
    """When what happens: so many kills, and an eviction for every fourth and a freeze for every eighth of them.

    >>> sorted({s.kind for s in plan(1, 8)}), len(plan(1, 8)), plan(1, 8) == plan(1, 8)
    (['SIGKILL', 'SIGSTOP', 'SIGTERM'], 11, True)
    """
    chance = random.Random(f"{seed}/chaos")
    kinds = [KILL] * kills + [EVICT] * -(-kills // 4) + [FREEZE] * -(-kills // 8)
    chance.shuffle(kinds)
    every = len(kinds)
    return [Stroke(kind, LAST * (i + chance.uniform(0.3, 1.0)) / every) for i, kind in enumerate(kinds)]


class Chaos:
    """Strikes as planned, in a thread of its own, and writes down whom it hit."""

    def __init__(
        self, db: Database, force: Workforce, strokes: list[Stroke], seed: int, progress: Callable[[], float]
    ) -> None:
        self._db = db
        self._force = force
        self._strokes = strokes
        self._chance = random.Random(f"{seed}/victims")
        self._progress = progress
        self._stop = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="perdure-chaos", daemon=True)
        self.next = strokes[0].at if strokes else 1.0
        """When the next stroke is due, as a part of all answers."""
        self.struck: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.planned: dict[str, int] = {kind: sum(s.kind == kind for s in strokes) for kind in KINDS}
        self.hits: list[Hit] = []
        self.events: list[Event] = []
        self.problems: list[str] = []

    def begin(self) -> None:
        """Begin."""
        self._began = time.monotonic()
        self._thread.start()

    def end(self) -> None:
        """Stop; what was not played is not played any more."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        try:
            for stroke in self._strokes:
                self.next = stroke.at
                if not self._strike(stroke):
                    return
            self.next = 1.0
            while not self._stop.wait(0.2):
                self._force.look()
        except Exception as e:  # it is a thread: whoever waits for the end must hear of it
            self.problems.append(f"the chaos itself failed with {type(e).__name__}: {e}")

    def _strike(self, stroke: Stroke) -> bool:
        """Wait for the moment and for somebody to strike, and strike; False when the night is over."""
        while True:
            self._force.look()
            due = self._progress() >= stroke.at
            # Right before: a worker that has claimed sessions may have none of them in mid-step.
            if due and (victim := self._victim()) is not None and (before := self._in_step(victim.pid)):
                break
            if self._stop.wait(0.05):
                return False
        {KILL: self._kill, EVICT: self._evict, FREEZE: self._freeze}[stroke.kind](victim, before)
        self.struck[stroke.kind] += 1
        return True

    def _victim(self) -> Member | None:
        """A worker with steps in flight, while another one is up to take them over."""
        at_work = {pid_of(w.worker) for w in self._force.works()}
        up = [m for m in self._force.members if m.state == UP]
        found = [m for m in up if m.pid in at_work]
        if not found or (len(up) < 2 and len(self._force.members) > 1):
            return None
        return self._chance.choice(found)

    # -- strokes --------------------------------------------------------------------------------------------------

    def _kill(self, victim: Member, before: dict[str, int]) -> None:
        at = self._now()
        victim.process.kill()
        victim.process.wait()
        over = self._now()
        victim.state = DEAD
        # Right after: what it held is unanswered, and no further than before, so it was cut in the middle.
        left = self._unanswered(before.keys())
        hits = [Hit(KILL, session, at, over, step) for session, step in left.items() if step == before[session]]
        self._force.replace(victim)
        self._tell(KILL, victim, len(hits), "killed")
        self.hits += [h._replace(tokens=tokens_of(self._db.read(h.session, h.step))) for h in hits]

    def _evict(self, victim: Member, before: dict[str, int]) -> None:
        at = self._now()
        victim.send(signal.SIGTERM)
        victim.state = LEAVING
        # As a cluster does it: the next pod starts while the old one goes.
        self._force.replace(victim)
        try:
            code = victim.process.wait(GRACE + 10)
        except subprocess.TimeoutExpired:
            victim.process.kill()
            victim.process.wait()
            code = None
        victim.state = DEAD
        if code != 0:
            self.problems.append(f"worker {victim.number} was told to go and ended with {code}")
        self._tell(EVICT, victim, len(before), f"gone after {(self._now() - at) / 1000:.1f} s")

    def _freeze(self, victim: Member, _: dict[str, int]) -> None:
        at = self._now()
        victim.send(signal.SIGSTOP)
        victim.state = FROZEN
        try:
            hits = [Hit(FREEZE, session, at, at, step) for session, step in self._in_step(victim.pid).items()]
            # Long enough for the others to notice, take over and get further.
            self._stop.wait(LEASE * FROZEN_FOR)
        finally:
            over = self._now()
            victim.send(signal.SIGCONT)
            victim.state = UP
        self.hits += [h._replace(over=over) for h in hits]
        self._tell(FREEZE, victim, len(hits), f"woken after {(over - at) / 1000:.1f} s")

    # -- whom it hit ----------------------------------------------------------------------------------------------

    def _in_step(self, pid: int) -> dict[str, int]:
        """The sessions a worker has in mid-step: it holds their lease, and what it was asked is unanswered."""
        claimed = [w.session for w in self._force.works() if pid_of(w.worker) == pid]
        return self._unanswered(claimed, pid)

    def _unanswered(self, sessions: Iterable[str], held_by: int | None = None) -> dict[str, int]:
        """Those of some sessions that have something to answer, with the step they have reached."""
        found: dict[str, int] = {}
        for session in sorted(sessions):
            row = self._db.look(session)
            if held_by is not None and pid_of(row.lease.holder) != held_by:
                continue
            if row.pending or row.status == Status.RUNNING:
                found[session] = next(h.step for h in row.heads if h.branch == MAIN)
        return found

    def _tell(self, kind: str, victim: Member, sessions: int, more: str) -> None:
        self.events.append(Event(kind, victim.number, sessions, time.monotonic() - self._began, more))

    def _now(self) -> int:
        return self._db.kernel.clock.wall()


def tokens_of(reading: Reading) -> int:
    """Tokens of all answers that were committed by then, as the model counted them."""
    book: Any = reading.book.get(AGENT) or {}
    spent: list[Any] = plain(book.get("total", []))
    return int(spent[0] + spent[1]) if spent else 0


class Recoveries:
    """Follows the hits of the night until each session has moved on; cheap enough to be asked all the time."""

    def __init__(self, talks: Mapping[str, Talk]) -> None:
        self._talks = talks
        self._seen = 0
        self._open: list[Hit] = []
        self.times: list[float] = []
        """Seconds from SIGKILL to the next commit of the session, which is another worker's."""
        self.taken_over = 0
        """Sessions that somebody else went on with while their worker was frozen."""

    def update(self, hits: Sequence[Hit]) -> None:
        """Take note of new hits, and of commits that were seen meanwhile."""
        fresh = hits[self._seen :]
        self._seen += len(fresh)
        self.taken_over += sum(h.kind == FREEZE and self._went_on(h) for h in fresh)
        still: list[Hit] = []
        for hit in (*self._open, *(h for h in fresh if h.kind == KILL)):
            # The dead could not write any more by then, whatever was on its way.
            at = next((c.at for c in self._talks[hit.session].commits if c.at > hit.over), None)
            if at is None:
                still.append(hit)
            else:
                self.times.append((at - hit.at) / 1000)
        self._open = still

    def _went_on(self, hit: Hit) -> bool:
        return any(hit.at < c.at < hit.over for c in self._talks[hit.session].commits)

    @property
    def missing(self) -> int:
        """Sessions that were cut and have not moved since."""
        return len(self._open)

    @property
    def resumes(self) -> int:
        """Runs that were cut, or whose worker was frozen, and that another worker took up."""
        return len(self.times) + self.taken_over

    @property
    def median(self) -> float | None:
        """In seconds."""
        return statistics.median(self.times) if self.times else None

    @property
    def slowest(self) -> float | None:
        """In seconds."""
        return max(self.times, default=None)
