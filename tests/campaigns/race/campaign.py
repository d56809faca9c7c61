"""The long race: ``make race``. Exits 1 unless each version had exactly one winner."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.campaigns.race.racing import FREELY, LOCKSTEP, race
from tests.campaigns.reporting import REPORTS, write_last_run
from tests.servers import shared
from tests.store_urls import STORES, url_of

REPORT = REPORTS / "race.md"


def main() -> int:
    """Race on every store."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.race.campaign", description=__doc__)
    parser.add_argument("--store", choices=STORES, action="append", help="only this kind of store")
    parser.add_argument("--tries", type=int, default=10_000, help="tries per store and way of racing")
    parser.add_argument("--report", action="store_true", help=f"write the result into {REPORT.name}")
    args = parser.parse_args()
    shared.begin()
    began = time.monotonic()
    lines: list[str] = []
    ok = True
    try:
        with tempfile.TemporaryDirectory(prefix="perdure-race-") as folder:
            for store in args.store or STORES:
                for how in (LOCKSTEP, FREELY):
                    outcome = race(store, url_of(store, Path(folder), f"{store} {how}"), how, args.tries)
                    lines.append(str(outcome))
                    print(outcome, flush=True)
                    for problem in outcome.problems[:10]:
                        print(f"  {problem}")
                    ok = ok and not outcome.problems
    finally:
        shared.end()
    lines.append(f"{'ok' if ok else 'FAILED'} in {time.monotonic() - began:.1f} s")
    print(lines[-1])
    if args.report and ok:
        write_last_run(REPORT, lines)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
