"""The long run: ``make throughput`` prints steps per second in a table."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import perdure
from perdure.protocols import NewWork
from tests.campaigns.fleet_throughput.app import CALLS
from tests.campaigns.reporting import REPORTS, write_last_run
from tests.fleet.harness import Fleet, board, until
from tests.servers import shared
from tests.store_urls import url_of

REPORT = REPORTS / "throughput.md"
STORES = ("sqlite", "postgres")
AT_ONCE = (1, 10, 100, 1000)
WORKERS = (1, 2, 4)
MEMORY = Path("/dev/shm")
STEPS = 2 * CALLS + 1
"""Steps of one session: an answer and an outcome for each call, and the last answer."""


class Cell(NamedTuple):
    """One measurement."""

    rate: float
    busy: float
    """Share of the machine's processors that was not idle."""
    server: float
    """Share of what was used that was the database server's."""

    worker: float
    """How much of one processor each worker used: an interpreter cannot use more."""

    def limit(self, kind: str) -> str:
        """What kept it from being more."""
        if self.busy >= 0.85:
            return "server CPU" if self.server > 0.5 else "CPU"
        if self.worker >= 0.85:
            return "one core each"
        # Half idle: a step waits for the disk, or for the server (and its disk), before the next can begin.
        return "fsync" if kind == "sqlite" else "server"


def main() -> int:
    """Measure every combination."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.fleet_throughput.campaign", description=__doc__)
    parser.add_argument("--store", choices=STORES, action="append", help="only this kind of store")
    parser.add_argument("--quick", action="store_true", help="small numbers: shows that everything runs")
    parser.add_argument("--report", action="store_true", help=f"write the result into {REPORT.name}")
    args = parser.parse_args()
    shared.begin()
    lines: list[str] = []
    try:
        for kind in args.store or STORES:
            lines += table(kind, (1, 10) if args.quick else AT_ONCE, (1, 2) if args.quick else WORKERS)
    finally:
        shared.end()
    print("\n".join(lines))
    if args.report:
        write_last_run(REPORT, lines)
    return 0


def table(kind: str, at_once: tuple[int, ...], workers: tuple[int, ...]) -> list[str]:
    """Steps per second by sessions at once and workers."""
    lines = [f"{kind}: steps per second (share of the processors used; what limits it)"]
    lines.append("sessions at once  " + "".join(f"{f'{w} workers':>28}" for w in workers))
    for many in at_once:
        lines.append(f"{many:>16}  " + "".join(f"{show(kind, many, number):>28}" for number in workers))
    if kind == "sqlite" and MEMORY.is_dir():
        # Names the limit by taking it away: files in memory, where a sync costs nothing.
        lines.append("the same with nothing to wait for (files in memory)")
        for many in at_once[:3]:
            shown = (show(kind, many, number, MEMORY) for number in workers)
            lines.append(f"{many:>16}  " + "".join(f"{cell:>28}" for cell in shown))
    return lines


def show(kind: str, many: int, number: int, place: Path | None = None) -> str:
    """One measurement, as the table has it."""
    with tempfile.TemporaryDirectory(prefix="perdure-throughput-", dir=place) as folder:
        cell = measure(kind, Path(folder), many, number)
    print(f"{kind} {many} at once, {number} workers: {cell}", file=sys.stderr, flush=True)
    limit = f"; {cell.limit(kind)}" if place is None else ""
    return f"{cell.rate:.0f} ({100 * cell.busy:.0f} %{limit})"


def measure(kind: str, folder: Path, many: int, workers: int) -> Cell:
    """Let so many sessions be open at once on so many workers, several times over, and count steps."""
    url = url_of(kind, folder, f"t{many}x{workers}")
    rounds = max(1, min(40, 400 // many))
    each = -(-many // workers)
    fleet = Fleet(url, folder, app="tests.campaigns.fleet_throughput.app", lease=10.0)
    with perdure.open(url) as db:
        fleet.start(workers, "--concurrency", str(each))
        try:
            until(lambda: len(board(db).workers()) == workers, fleet)
            asyncio.run(_submit(url, [f"warm{i}" for i in range(workers)]))
            _until_done(db, fleet, workers)
            pids = [str(worker.pid) for worker in fleet.workers]
            before, spent, began = Load(), sum(map(_ticks, pids)), time.monotonic()
            asyncio.run(_submit(url, [f"s{i}" for i in range(many * rounds)]))
            _until_done(db, fleet, many * rounds + workers)
            seconds = time.monotonic() - began
            busy, server = Load().since(before)
            spent = sum(map(_ticks, pids)) - spent
        finally:
            fleet.stop()
    worker = spent / os.sysconf("SC_CLK_TCK") / seconds / workers
    return Cell(many * rounds * STEPS / seconds, busy, server, worker)


async def _submit(url: str, names: list[str]) -> None:
    async with perdure.open_async(url) as db:
        for at in range(0, len(names), 200):
            part = names[at : at + 200]
            await asyncio.gather(*(db.create(name, agent="stepper") for name in part))
            await asyncio.gather(*(db.post(name, "go", key="go") for name in part))
        # All at once: what is measured is their work, not how they came.
        board(db).put([NewWork(name, "stepper") for name in names])  # pyright: ignore[reportArgumentType]


def _until_done(db: perdure.Database, fleet: Fleet, number: int) -> None:
    def done() -> bool:
        states = board(db).counts()
        return states.get(("stepper", "waiting"), 0) == number

    until(done, fleet, 600)


class Load:
    """What the processors have done so far, and what of it a database server has."""

    def __init__(self) -> None:
        fields = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        self.total, self.idle = sum(fields), fields[3] + fields[4]
        self.server = sum(_ticks(pid) for pid in _servers())

    def since(self, before: Load) -> tuple[float, float]:
        """Share of the processors that was used since then, and the server's share of that."""
        total = max(self.total - before.total, 1)
        used = total - (self.idle - before.idle)
        return used / total, (self.server - before.server) / max(used, 1)


def _servers() -> list[str]:
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "comm").read_text().strip() == "postgres":
                found.append(entry.name)
        except OSError:
            continue
    return found


def _ticks(pid: str) -> int:
    try:
        fields = (Path("/proc") / pid / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


if __name__ == "__main__":
    sys.exit(main())
