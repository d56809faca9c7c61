"""The long run: ``make interrupts``. Exits 1 when something was lost, doubled or hung, or sabotage not noticed."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.campaigns.interrupts.delivery import KINDS, SABOTAGE, STORES, interrupt
from tests.campaigns.reporting import REPORTS, conclude
from tests.servers.place import memory
from tests.store_urls import url_of

REPORT = REPORTS / "interrupts.md"
A_PROCESS = 250
"""Interrupts that one program gets; then another one is started, on a store of its own."""


def main() -> int:
    """All kinds of programs on all embedded stores."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.interrupts.campaign", description=__doc__)
    parser.add_argument("--interrupts", type=int, default=6750, help="in all, that arrive in the middle of a turn")
    parser.add_argument("--sabotage", type=int, default=1500, help="of each kind, at the most")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this kind of program")
    parser.add_argument("--store", choices=STORES, action="append", help="only this kind of store")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--report", type=Path, nargs="?", const=REPORT, help=f"write the result into {REPORT.name}")
    args = parser.parse_args()
    began = time.monotonic()
    lines: list[str] = []
    fine = True
    scenes = [(store, kind) for store in args.store or STORES for kind in args.kind or KINDS]
    folder = Path(tempfile.mkdtemp(prefix="perdure-interrupts-", dir=memory()))
    total = 0
    for store, kind in scenes:
        left, number, outcome = -(-args.interrupts // len(scenes)), 0, None
        while left > 0:
            url = url_of(store, folder, f"{kind}-{number}")
            more = interrupt(kind, store, url, min(left, A_PROCESS), args.seed + number)
            outcome = more if outcome is None else outcome + more
            for problem in more.problems[:10]:
                print(f"  {problem}", flush=True)
            left, number = left - A_PROCESS, number + 1
        assert outcome is not None
        total += outcome.seen["interrupts"]
        fine = fine and not outcome.problems
        lines.append(str(outcome))
        print(outcome, flush=True)
    lines.append(f"interrupts in the middle of a turn {total}")
    for sabotage in SABOTAGE:
        if sabotage and args.sabotage:
            said = _noticed(folder, sabotage, args.sabotage, args.seed)
            fine = fine and "not noticed" not in said
            lines.append(said)
            print(said, flush=True)
    if fine:
        shutil.rmtree(folder)
    return conclude(args.report, lines, fine, began, args.seed)


def _noticed(folder: Path, sabotage: str, most: int, seed: int) -> str:
    """After how many interrupts a sabotage is noticed, and how."""
    kind = "threads" if sabotage == "open gate" else "handle"
    sent = 0
    for number in range(-(-most // A_PROCESS)):
        url = url_of("sqlite", folder, f"{sabotage.replace(' ', '-')}-{number}")
        outcome = interrupt(kind, "sqlite", url, A_PROCESS, seed + number, sabotage)
        sent += outcome.seen["interrupts"]
        if outcome.problems:
            # An error that a sabotage led to is told by its last line, and only where it is all there is.
            said = min(outcome.problems, key=lambda problem: problem.startswith("wrong")).splitlines()[-1]
            return f"sabotage: {sabotage:10} noticed within {sent:4} interrupts: {said}"
    return f"sabotage: {sabotage:10} not noticed by {sent} interrupts"


if __name__ == "__main__":
    sys.exit(main())
