"""The run itself: it may be killed and started again in the same folder, and goes on where it was."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import perdure
from perdure.protocols import Filter, NewWork
from tests.fleet.harness import Fleet, board

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from perdure.aio import AsyncDatabase
    from perdure.model import SessionRow

AGENT = "desk"
CHUNK = 500


class Plan(NamedTuple):
    """What is to be done."""

    sessions: int
    interrupt: int
    """So many sessions are interrupted in mid-step, at least."""
    workers: int = 4
    concurrency: int = 60
    seed: int = 1


class Outcome(NamedTuple):
    """What came of it."""

    sessions: int
    finished: int
    kills: int
    interrupted: int
    resumed: int
    lost: int
    """Messages that were not answered exactly once."""
    doubled: int
    """Orders that were charged more than once."""
    uncharged: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing at all was lost or done twice."""
        whole = self.finished == self.sessions and self.resumed == self.interrupted
        return whole and not (self.lost or self.doubled or self.uncharged)


class Diary:
    """What was done to the workers, in a file, so that a run that was stopped knows it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "diary.jsonl"
        self.kills = 0
        self.hit: set[str] = set()
        self.seconds = 0.0
        if self._path.exists():
            for line in self._path.read_text().splitlines():
                self._learn(json.loads(line))

    def write(self, **said: Any) -> None:
        """Write down what happened."""
        with self._path.open("a") as file:
            file.write(json.dumps(said) + "\n")
        self._learn(said)

    def _learn(self, said: dict[str, Any]) -> None:
        self.kills += "hit" in said
        self.hit |= set(said.get("hit", ()))
        self.seconds += said.get("seconds", 0.0)


def name_of(number: int) -> str:
    """A session's id; its order is called the same."""
    return f"s{number:06}"


def run(url: str, folder: Path, plan: Plan, say: Callable[[str], None]) -> Outcome:
    """Submit, let work, kill, until all is done; then look at every session and at the ledger."""
    diary = Diary(folder)
    fleet = Fleet(url, folder, FLEET_PAUSE="0.25")
    try:
        asyncio.run(_submit(url, plan, say))
        with perdure.open(url, maintain=False) as db:
            options = ("--concurrency", str(plan.concurrency))
            fleet.start(plan.workers, *options)
            _storm(db, fleet, plan, diary, say, options)
    finally:
        fleet.stop()
    with perdure.open(url, maintain=False) as db:
        return _judge(db, fleet, plan, diary)


async def _submit(url: str, plan: Plan, say: Callable[[str], None]) -> None:
    async with perdure.open_async(url) as db:
        on_board = board(db)  # pyright: ignore[reportArgumentType]
        last = on_board.works(Filter(), limit=1, after=name_of(plan.sessions - 2))
        if last:
            return
        for at in range(0, plan.sessions, CHUNK):
            names = [name_of(i) for i in range(at, min(at + CHUNK, plan.sessions))]
            await asyncio.gather(*(_one(db, name) for name in names))
            on_board.put([NewWork(name, AGENT, f"owner-{i % 97}") for i, name in enumerate(names, at)])
            if at % 10_000 == 0:
                say(f"{at + len(names)} submitted")


async def _one(db: AsyncDatabase, name: str) -> None:
    await db.create(name, agent=AGENT)
    await db.post(name, f"charge {name}", key="only")


def _storm(
    db: perdure.Database, fleet: Fleet, plan: Plan, diary: Diary, say: Callable[[str], None], options: Iterable[str]
) -> None:
    dice, told = random.Random(plan.seed + diary.kills), time.monotonic()
    while True:
        time.sleep(dice.uniform(0.3, 0.9))
        left = plan.sessions - len(fleet.charges())
        if time.monotonic() - told > 15:
            # As it goes along: a run that is stopped has used this time all the same.
            diary.write(seconds=round(time.monotonic() - told, 1))
            told = time.monotonic()
            say(f"{left} left, {diary.kills} kills, {len(diary.hit)} sessions interrupted")
        if not left and _settled(db, plan):
            break
        if len(diary.hit) < plan.interrupt:
            alive = [w for w in fleet.workers if w.poll() is None]
            victim = dice.choice(alive)
            # One that is just starting has nothing in hand: a kill of it would show nothing.
            inside = sum(_mid_step(db, s, victim.pid) for s in _claimed(db, victim)[:20])
            if inside >= 10 or inside >= left > 0:
                diary.write(hit=_kill(db, victim))
                fleet.start(1, *options)
    diary.write(seconds=round(time.monotonic() - told, 1))


def _claimed(db: perdure.Database, worker: subprocess.Popen[bytes]) -> list[str]:
    works = board(db).works(Filter(state="working"), limit=100_000)
    return [w.session for w in works if w.worker.split("/")[1] == str(worker.pid)]


def _kill(db: perdure.Database, worker: subprocess.Popen[bytes]) -> list[str]:
    """Kill a worker; the sessions it had in mid-step: it held their lease, and they were not done."""
    held = [s for s in _claimed(db, worker) if _mid_step(db, s, worker.pid)]
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    # What it finished while we looked was not interrupted.
    return [s for s in held if _is_open(db.look(s))]


def _mid_step(db: perdure.Database, session: str, pid: int) -> bool:
    row = db.look(session)
    holder = row.lease.holder.split("/")
    return len(holder) > 1 and holder[1] == str(pid) and _is_open(row)


def _is_open(row: SessionRow) -> bool:
    return row.status == "running" or row.pending > 0


def _settled(db: perdure.Database, plan: Plan) -> bool:
    idle = sum(n for status, _, _, n in db.counts() if status == "idle")
    states = {state for _, state in board(db).counts()}
    return idle >= plan.sessions and not states & {"queued", "working"}


def _judge(db: perdure.Database, fleet: Fleet, plan: Plan, diary: Diary) -> Outcome:
    finished, lost, resumed = 0, 0, 0
    for number in range(plan.sessions):
        name = name_of(number)
        messages = db.read(name).plain()["messages"]
        asked = [m["content"] for m in messages if m["role"] == "user"]
        told = [m["content"] for m in messages if m["role"] == "assistant" and m["content"]]
        fine = asked == [f"charge {name}"] and told == [f"done: charged {name}"]
        finished += fine
        lost += not fine
        resumed += fine and name in diary.hit
    charges = fleet.charges()
    doubled = sum(n > 1 for n in charges.values())
    uncharged = sum(charges[name_of(i)] == 0 for i in range(plan.sessions))
    return Outcome(
        plan.sessions, finished, diary.kills, len(diary.hit), resumed, lost, doubled, uncharged, diary.seconds
    )
