"""The long run: ``make ambiguous``. Exits 1 when anything was lost, doubled or otherwise wrong."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

from tests.campaigns.lost_answers.suites import everything, places
from tests.campaigns.reporting import REPORTS, write_last_run
from tests.servers import shared

REPORT = REPORTS / "ambiguous.md"


def main() -> int:
    """Every fault, on every server."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.lost_answers.campaign", description=__doc__)
    parser.add_argument("--store", choices=places(), action="append", help="only this one")
    parser.add_argument("--report", action="store_true", help=f"write the figures into {REPORT.name}")
    args = parser.parse_args()
    # That leases could not be renewed is what these faults are about.
    logging.getLogger("perdure").setLevel(logging.ERROR)
    began = time.monotonic()
    lines: list[str] = []
    sums: dict[str, int] = dict.fromkeys(
        ("attempts", "cut", "lost", "duplicated", "other", "done", "unknown", "unavailable"), 0
    )
    shared.begin()
    try:
        with tempfile.TemporaryDirectory(prefix="perdure-ambiguous-") as folder:
            for name in args.store or places():
                for tally in everything(name, Path(folder)):
                    print(tally, flush=True)
                    for _, what in tally.problems[:10]:
                        print(f"  {what}")
                    lines.append(str(tally))
                    for key, count in tally.figures.items():
                        sums[key] += count
    finally:
        shared.end()
    ok = not (sums["lost"] or sums["duplicated"] or sums["other"])
    lines.append(", ".join(f"{name} {count}" for name, count in sums.items()))
    lines.append(f"{'ok' if ok else 'FAILED'} in {time.monotonic() - began:.1f} s")
    print("\n".join(lines[-2:]))
    if args.report and ok:
        write_last_run(REPORT, lines)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
