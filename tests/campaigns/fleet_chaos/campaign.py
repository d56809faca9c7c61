"""The long run: ``make chaos``. Exits 1 when anything was lost, doubled, stuck or damaged."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.campaigns.fleet_chaos.run import Plan, run
from tests.campaigns.fleet_chaos.stage import enter_namespace
from tests.campaigns.reporting import REPORTS, conclude

if TYPE_CHECKING:
    from tests.campaigns.fleet_chaos.run import Outcome

REPORT = REPORTS / "chaos.md"
STORES = ("sqlite", "tiered")
SHOWN = 10


def lines_of(kind: str, seconds: float, found: Outcome) -> list[str]:
    """The outcome for people."""
    lines = [
        f"{kind}: {seconds:.0f} s of faults; {found.how}",
        f"  sessions {found.sessions}, messages {found.messages}, turns {found.turns}",
        "  faults: " + ", ".join(f"{name} {n}" for name, n in sorted(found.faults.items())),
        f"  lost messages {len(found.lost)}, orders charged, shipped or refunded twice {len(found.doubled)}, "
        f"never {len(found.undone)} (requests repeated under their key: {found.repeated})",
        f"  stuck sessions {len(found.stuck)}, workers that gave up by themselves {len(found.quit)}, "
        f"damage found by verify {len(found.findings)}",
        f"  at rest {found.rest:.1f} s after the last fault; customers had to ask again {found.refused} times",
    ]
    wrong = [*found.lost, *found.doubled, *found.undone, *found.stuck, *map(str, found.quit), *found.findings]
    lines += [f"  ! {text}" for text in wrong[:SHOWN]]
    if found.problem:
        lines.append(f"  ! {found.problem}")
    return lines


def main() -> int:
    """Run on every store."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.fleet_chaos.campaign", description=__doc__)
    parser.add_argument("--store", choices=STORES, action="append", help="only this kind of store")
    parser.add_argument("--seconds", type=float, default=330.0, help="of faults, on each store")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rate", type=float, default=2.0, help="new sessions a second")
    parser.add_argument("--outage", type=float, default=12.0, help="seconds that PostgreSQL is away at most")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--no-mount", action="store_true", help="do without a disk of its own")
    parser.add_argument("--keep", type=Path, help="put the logs of workers there")
    parser.add_argument("--report", action="store_true", help=f"write the result into {REPORT.name}")
    args = parser.parse_args()
    if not args.no_mount:
        enter_namespace("tests.campaigns.fleet_chaos.campaign", [*sys.argv[1:], "--seed", str(args.seed)])
    print(f"seed {args.seed}", flush=True)
    began, lines, fine = time.monotonic(), list[str](), True
    for kind in args.store or STORES:
        with tempfile.TemporaryDirectory(prefix="perdure-chaos-") as scratch:
            start = time.monotonic()

            def say(text: str, kind: str = kind, start: float = start) -> None:
                print(f"{kind} {time.monotonic() - start:6.1f} s  {text}", file=sys.stderr, flush=True)

            plan = Plan(kind, args.seconds, args.seed, args.workers, args.rate, args.outage)
            found = run(plan, Path(scratch), say)
            lines += lines_of(kind, args.seconds, found)
            print("\n".join(lines_of(kind, args.seconds, found)), flush=True)
            fine = fine and found.ok
            if args.keep is not None:
                _keep(Path(scratch), args.keep / kind)
    return conclude(REPORT if args.report else None, lines, fine, began, args.seed)


def _keep(scratch: Path, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name in ("workers.log", "person.log", "ledger"):
        if (scratch / name).exists():
            (place / name).write_bytes((scratch / name).read_bytes())


if __name__ == "__main__":
    sys.exit(main())
