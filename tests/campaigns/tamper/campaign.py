"""The campaign: thousands of mutations of stored bytes, each on a fresh copy, each judged, counted by kind.

``make tamper``, or ``python -m tests.campaigns.tamper.campaign --count 10000 --seed 1 --jobs 2`` with ``--json`` or
``--report``; ends with 1 when any outcome is "other".
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.campaigns.reporting import REPORTS, conclude
from tests.campaigns.tamper.building import Original, build
from tests.campaigns.tamper.bytes_level import ANY_FILE, Target
from tests.campaigns.tamper.frame_level import RECORDS
from tests.campaigns.tamper.judging import CORRUPTED, LOST, ORIGINAL, OTHER, Verdict, judge
from tests.campaigns.tamper.sql_level import ROWS
from tests.servers.place import memory

if TYPE_CHECKING:
    from collections.abc import Iterable

STORES = (("sqlite", "msgpack"), ("sqlite", "json"), ("file", "msgpack"), ("file", "json"))
REPORT = REPORTS / "tamper.md"
LIVE_INDEX = "index under a reader"


class Outcome(NamedTuple):
    """One mutation and what came of it."""

    store: str
    mutation: str
    what: str
    verdict: Verdict


def tamper(original: Original, mutation: str, rng: random.Random, folder: Path) -> Outcome | None:
    """Mutate a copy of a store and judge it; None when this mutation had nothing to change."""
    image = rng.choice(["closed", "live"])
    if mutation == LIVE_INDEX:
        image = "live"
    shutil.copytree(original.folder / image, folder)
    try:
        if mutation == LIVE_INDEX:
            what, verdict = _under_a_reader(original, rng, folder)
        else:
            level = ROWS if original.kind == "sqlite" else RECORDS
            what = (ANY_FILE.get(mutation) or level[mutation])(Target(original, image, folder, rng))
            if not what:
                return None
            verdict = judge(original, folder)
        return Outcome(original.name, mutation, f"{image}: {what}", verdict)
    finally:
        shutil.rmtree(folder)


def _under_a_reader(original: Original, rng: random.Random, folder: Path) -> tuple[str, Verdict]:
    """SQLite builds its -shm file anew when nobody has it open: so it is changed while somebody has."""
    said: list[str] = []
    opened: list[int] = []

    def change() -> None:
        # Closing this before SQLite closes its own would take its locks away.
        fd = os.open(folder / "agents.db-shm", os.O_RDWR)
        opened.append(fd)
        size = os.fstat(fd).st_size
        at = rng.choice([rng.randrange(136), rng.randrange(size)])
        data = rng.choice([bytes(1), b"\xff", rng.randbytes(4), rng.randbytes(64), bytes(136)])
        os.pwrite(fd, data[: size - at], at)
        said.append(f"{len(data)} bytes of -shm at {at}")

    verdict = judge(original, folder, change)
    for fd in opened:
        os.close(fd)
    return (said or ["could not be opened"])[0], verdict


def mutations(kind: str) -> list[str]:
    """All mutations of a kind of store."""
    return [*ANY_FILE, *ROWS, LIVE_INDEX] if kind == "sqlite" else [*ANY_FILE, *RECORDS]


def run(seed: int, count: int, folder: Path) -> Iterable[Outcome]:
    """So many mutations, spread evenly over stores and kinds of mutation."""
    rng = random.Random(seed)
    originals = [build(kind, codec, folder / f"{kind}-{codec}", seed) for kind, codec in STORES]
    done = turn = 0
    while done < count:
        original = originals[turn % len(originals)]
        known = mutations(original.kind)
        mutation = known[turn // len(originals) % len(known)]
        turn += 1
        outcome = tamper(original, mutation, rng, folder / "copy")
        if outcome is not None:
            done += 1
            yield outcome


def run_job(seed: int, count: int) -> list[Outcome]:
    """One process's share."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-tamper-", dir=memory()))
    try:
        found = list(run(seed, count, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    # What was accepted is only counted; only what was not is worth its words.
    return [o if o.verdict.outcome == OTHER else o._replace(verdict=Verdict(o.verdict.outcome), what="") for o in found]


def table(outcomes: list[Outcome]) -> dict[str, dict[str, dict[str, int]]]:
    """Counts by store, mutation and outcome."""
    counts: dict[str, dict[str, Counter[str]]] = {}
    for o in outcomes:
        counts.setdefault(o.store, {}).setdefault(o.mutation, Counter())[o.verdict.outcome] += 1
    return {s: {m: dict(c) for m, c in sorted(by.items())} for s, by in sorted(counts.items())}


def lines_of(counts: dict[str, dict[str, dict[str, int]]]) -> list[str]:
    """The counts for people."""
    names = (ORIGINAL, CORRUPTED, LOST, OTHER)
    lines = [f"{'store':16}{'mutation':24}" + "".join(f"{name:>11}" for name in names)]
    total: Counter[str] = Counter()
    for store, by in counts.items():
        for mutation, c in by.items():
            lines.append(f"{store:16}{mutation:24}" + "".join(f"{c.get(name, 0):11}" for name in names))
            total.update(c)
    return [*lines, f"{'all':40}" + "".join(f"{total[name]:11}" for name in names) + f"   of {total.total()}"]


def main(argv: list[str] | None = None) -> int:
    """Run a campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=12_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--report", type=Path, nargs="?", const=REPORT, help=f"write the result into {REPORT.name}")
    given = parser.parse_args(argv)
    started = time.monotonic()
    shares = [(given.seed * 1000 + job, given.count // given.jobs) for job in range(given.jobs)]
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        outcomes = [o for found in pool.starmap(run_job, shares) for o in found]
    others = [o for o in outcomes if o.verdict.outcome == OTHER]
    counts = table(outcomes)
    if given.json:
        told = [{"store": o.store, "mutation": o.mutation, "what": o.what, "why": o.verdict.why} for o in others]
        print(json.dumps({"seed": given.seed, "count": len(outcomes), "counts": counts, "other": told}, indent=1))
        return 1 if others else 0
    lines = lines_of(counts)
    print("\n".join(lines))
    for o in others:
        print(f"other: {o.store}: {o.mutation}: {o.what}\n    {o.verdict.why[:500]}")
    return conclude(given.report, lines, not others, started, given.seed)


if __name__ == "__main__":
    sys.exit(main())
