"""The long run: ``make messages``. Exits 1 unless every message was answered once."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.campaigns.reporting import REPORTS, conclude
from tests.campaigns.two_messages.meeting import meet
from tests.servers import shared
from tests.store_urls import url_of

REPORT = REPORTS / "messages.md"
STORES = ("sqlite", "postgres")


def main() -> int:
    """Meet on every store."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.two_messages.campaign", description=__doc__)
    parser.add_argument("--store", choices=STORES, action="append", help="only this kind of store")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--report", action="store_true", help=f"write the result into {REPORT.name}")
    args = parser.parse_args()
    shared.begin()
    began = time.monotonic()
    lines: list[str] = []
    fine = True
    try:
        with tempfile.TemporaryDirectory(prefix="perdure-messages-") as folder:
            for store in args.store or STORES:
                outcome = meet(store, url_of(store, Path(folder), "talks"), args.rounds)
                lines.append(str(outcome))
                print(outcome, flush=True)
                fine = fine and outcome.ok
    finally:
        shared.end()
    return conclude(REPORT if args.report else None, lines, fine, began)


if __name__ == "__main__":
    sys.exit(main())
