"""The long run: ``make resume``. Exits 1 unless every session ended as without a crash."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.campaigns.reporting import REPORTS, conclude
from tests.campaigns.resume_or_restart.measuring import measure
from tests.servers import shared

REPORT = REPORTS / "resume.md"
STORES = ("sqlite", "postgres")


def main() -> int:
    """Measure on every store."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.resume_or_restart.campaign", description=__doc__)
    parser.add_argument("--store", choices=STORES, action="append", help="only this kind of store")
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--seed", type=int, default=847)
    parser.add_argument("--report", action="store_true", help=f"write the result into {REPORT.name}")
    args = parser.parse_args()
    shared.begin()
    began = time.monotonic()
    lines: list[str] = []
    fine = True
    try:
        for store in args.store or STORES:
            with tempfile.TemporaryDirectory(prefix="perdure-resume-") as folder:
                measured = measure(store, Path(folder), args.sessions, args.seed)
                lines += [*measured.lines(), ""]
                print("\n".join(measured.lines()), "\n", flush=True)
                for crash in (c for c in measured.crashes if not c.same or not c.killed or c.problems):
                    print(f"  {crash}")
                fine = fine and measured.ok
    finally:
        shared.end()
    return conclude(REPORT if args.report else None, lines, fine, began, args.seed)


if __name__ == "__main__":
    sys.exit(main())
