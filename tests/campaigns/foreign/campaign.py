"""The long run: ``make foreign``. Exits 1 when anything acknowledged was lost, or a sabotage was not noticed."""

from __future__ import annotations

import argparse
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.campaigns.foreign.program import FALLBACK, NO_LOCKS, NO_LOOK, OURS
from tests.campaigns.foreign.rounds import Tally, campaign, discard
from tests.campaigns.reporting import REPORTS, conclude

REPORT = REPORTS / "foreign.md"
SAY_EVERY = 20
AT_ONCE = 3


def _progress(tally: Tally) -> None:
    if tally.rounds % SAY_EVERY == 0:
        print(f"  {tally.locks}, writers {tally.writers}: {tally.rounds} rounds, lost {tally.lost}", flush=True)


def main() -> int:
    """All ways of locking, one and two writers."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.foreign.campaign", description=__doc__)
    parser.add_argument("--rounds", type=int, default=500, help="with our locks, half of them with two writers")
    parser.add_argument("--weak", type=int, default=40, help="with SQLite's locks, where losses are only counted")
    parser.add_argument("--sabotage", type=int, default=24, help="of each kind")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--report", type=Path, nargs="?", const=REPORT, help=f"write the result into {REPORT.name}")
    args = parser.parse_args()
    began = time.monotonic()
    lines: list[str] = []
    fine = True
    parts = [
        (OURS, 1, args.rounds - args.rounds // 2),
        (OURS, 2, args.rounds // 2),
        (FALLBACK, 1, args.weak - args.weak // 2),
        (FALLBACK, 2, args.weak // 2),
        (NO_LOCKS, 1, args.sabotage),
        (NO_LOOK, 1, args.sabotage),
    ]
    # Most of a round is waiting.
    with ThreadPoolExecutor(AT_ONCE) as pool:
        begun = [
            pool.submit(campaign, locks, writers, rounds, args.seed, _progress)
            for locks, writers, rounds in parts
            if rounds
        ]
        for part in begun:
            tally = part.result()
            lines.append(str(tally))
            print(tally, flush=True)
            if tally.locks in (NO_LOCKS, NO_LOOK):
                fine = fine and tally.lost > 0
                discard(tally)
                continue
            for problem in tally.problems[:20]:
                print(f"  {problem}", flush=True)
            fine = fine and not (tally.problems if tally.locks == OURS else tally.hung)
    return conclude(args.report, lines, fine, began, args.seed)


if __name__ == "__main__":
    sys.exit(main())
