"""One chaos run: customers talk, a person decides, things go wrong; then everything must come to rest."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import perdure
from perdure.errors import StoreError
from perdure.upkeep.verify import verify
from tests.campaigns.fleet_chaos.crew import Crew
from tests.campaigns.fleet_chaos.customers import LEDGERED, Customers
from tests.campaigns.fleet_chaos.faults import Faults
from tests.campaigns.fleet_chaos.stage import Disk, Servers
from tests.fleet.harness import board

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from perdure.protocols import Work

REST = 90.0
"""Seconds without any session coming to rest after which those that are left are stuck."""


class Plan(NamedTuple):
    """What is to be done."""

    kind: str
    seconds: float
    seed: int
    workers: int = 3
    rate: float = 2.0
    """New sessions a second."""
    outage: float = 12.0
    """Seconds that the database server is away at most: more than its clients wait for it."""


class Outcome(NamedTuple):
    """What came of it."""

    sessions: int
    messages: int
    turns: int
    faults: Counter[str]
    lost: list[str]
    """Messages that are not there exactly once, or were not answered exactly once."""
    doubled: list[str]
    undone: list[str]
    """Orders that were to be charged, shipped or refunded, and were not."""
    repeated: int
    """Requests that were made again under the key they had."""
    stuck: list[str]
    quit: list[int]
    """How workers ended that should not have ended."""
    findings: list[str]
    """What is damaged in the store."""
    recovered: int
    refused: int
    rest: float
    how: str
    problem: str

    @property
    def ok(self) -> bool:
        """Whether nothing was lost, doubled, left undone, stuck or damaged."""
        wrong = (self.lost, self.doubled, self.undone, self.stuck, self.quit, self.findings, self.problem)
        return bool(self.sessions) and not any(wrong)


def run(plan: Plan, folder: Path, say: Callable[[str], None]) -> Outcome:
    """Run it."""
    stage = Disk(folder) if plan.kind == "sqlite" else Servers(folder)
    crew: Crew | None = None
    person: subprocess.Popen[bytes] | None = None
    try:
        with perdure.open(stage.url, maintain=False) as db:
            board(db)
            crew = Crew(stage.url, folder, plan.workers)
            crew.refill()
            person = _person(stage.url, plan.seed, folder)
            customers = Customers(db, plan.rate, plan.seed)
            faults = Faults(crew, stage, plan.seed, plan.outage)
            customers.start()
            try:
                _storm(db, crew, faults, plan, say)
            finally:
                faults.end()
                customers.stop()
            say(f"{len(customers.said)} sessions, faults end")
            rest = _come_to_rest(db, crew, customers, say)
            found = _judge(db, crew, customers, faults, rest, stage.how)
            # A write that fails for another reason than a full disk ends a worker, as it should.
            return found if stage.ends_as_told else found._replace(quit=[])
    finally:
        if crew is not None:
            crew.stop()
        if person is not None:
            person.kill()
            person.wait()
        stage.close()


def _person(url: str, seed: int, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.campaigns.fleet_chaos.person", url, str(seed)]
    with (folder / "person.log").open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)


def _storm(db: perdure.Database, crew: Crew, faults: Faults, plan: Plan, say: Callable[[str], None]) -> None:
    dice = random.Random(plan.seed + 1)
    _until_begun(db, crew)
    end = time.monotonic() + plan.seconds
    while (now := time.monotonic()) < end:
        pause = min(end, now + dice.uniform(0.3, 1.6))
        while time.monotonic() < pause:
            faults.tend()
            _see(db, crew)
            time.sleep(0.05)
        if kind := faults.strike():
            say(kind)


def _see(db: perdure.Database, crew: Crew) -> None:
    try:
        crew.begun |= {row.pid for row in board(db).workers()}
    except StoreError:
        # It cannot be asked now; nobody has begun meanwhile.
        return


def _until_begun(db: perdure.Database, crew: Crew) -> None:
    end = time.monotonic() + REST
    while not crew.begun:
        _see(db, crew)
        if time.monotonic() > end:
            raise RuntimeError(f"no worker has begun\n{crew.said()}")
        time.sleep(0.05)


def _come_to_rest(db: perdure.Database, crew: Crew, customers: Customers, say: Callable[[str], None]) -> float:
    """Wait until nothing is left to do; how many seconds that took."""
    began = told = moved = time.monotonic()
    fewest = len(customers.said) + 1
    while time.monotonic() - moved < REST:
        crew.refill()
        _see(db, crew)
        left = _unrested(db, customers)
        if not left:
            break
        if len(left) < fewest:
            fewest, moved = len(left), time.monotonic()
        if time.monotonic() - told > 5:
            told = time.monotonic()
            say(f"{len(left)} sessions left: {left[0]}")
        time.sleep(0.2)
    return time.monotonic() - began


def _unrested(db: perdure.Database, customers: Customers) -> list[str]:
    """Sessions that are not done, and how they stand."""
    now = db.kernel.clock.wall()
    works = board(db).works(limit=100_000)
    busy = {w.session: w for w in works if w.queued or w.worker or w.parked}
    due = {w.session: f", looked at in {((w.due or now) - now) / 1000:.1f} s" for w in works}
    found = [f"{s}: {_standing(w)}" for s, w in busy.items()]
    for session in customers.said:
        row = db.look(session)
        if session not in busy and (row.status != "idle" or row.pending or row.lease.holder):
            held = f"held by {row.lease.holder}" if row.lease.holder else "held by nobody"
            found.append(f"{session}: {row.status}, {row.pending} waiting, {held}{due.get(session, '')}")
    return found


def _standing(work: Work) -> str:
    if work.parked:
        return f"parked: {work.parked}"
    where = f"at work in {'/'.join(work.worker.split('/')[:2])}" if work.worker else "queued"
    return f"{where}, try {work.tries}"


def _judge(db: perdure.Database, crew: Crew, customers: Customers, faults: Faults, rest: float, how: str) -> Outcome:
    stuck = _unrested(db, customers)
    recovered = sum(w.recovered for w in board(db).workers())
    # Workers are stopped first: nothing moves while it is judged.
    crew.stop()
    lost: list[str] = []
    turns, wanted = 0, Counter[tuple[str, str]]()
    for session, said in customers.said.items():
        messages = db.read(session).plain()["messages"]
        turns += sum(m["role"] == "assistant" for m in messages)
        heard = Counter(m["content"] for m in messages if m["role"] == "user")
        answers = (m["content"] for m in messages if m["role"] == "assistant" and not m.get("tool_calls"))
        told = Counter(name for text in answers for name in text.split()[1:])
        reminders = [f"w{text.split()[0]} woken" for text in said if text.split()[1] == "remind"]
        for text in (*said, *reminders):
            if heard.pop(text, 0) != 1 or told.pop(text.split()[0], 0) != 1:
                lost.append(f"{session}: {text}")
        lost += [f"{session}: {text} (nobody said that)" for text in heard]
        for text in said:
            _, verb, *orders = text.split()
            if verb in LEDGERED:
                wanted.update((verb, order) for order in orders)
    lines = [words for words in crew.lines() if words[0] in LEDGERED]
    keys = {(words[0], words[1], words[2]) for words in lines}
    done = Counter((what, order) for what, order, _ in keys)
    doubled = [f"{what} {order}" for (what, order), n in done.items() if n > 1 or (what, order) not in wanted]
    undone = [f"{what} {order}" for what, order in wanted if not done[what, order]]
    report = verify(db.kernel)
    return Outcome(
        len(customers.said), sum(map(len, customers.said.values())), turns, faults.made, lost, doubled, undone,
        len(lines) - len(keys), stuck, crew.quit, [str(f) for f in report.findings], recovered, customers.refused,
        rest, how, customers.problem,
    )  # fmt: skip
