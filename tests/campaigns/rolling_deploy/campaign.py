"""The rolling deploy and the long tool in one run: ``make fleet-proofs``. Exits 1 unless both went well."""

from __future__ import annotations

import argparse
import sys
import time

from tests.campaigns.reporting import REPORTS, conclude
from tests.campaigns.rolling_deploy import deploy
from tests.campaigns.rolling_deploy import long_tools as holding
from tests.servers import shared

REPORT = REPORTS / "fleet.md"


def main() -> int:
    """Run both."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.rolling_deploy.campaign", description=__doc__)
    parser.add_argument("--seconds", type=float, default=90.0, help="how long the tool computes")
    parser.add_argument("--report", action="store_true", help=f"write the result into {REPORT.name}")
    args = parser.parse_args()
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {text}", file=sys.stderr, flush=True)

    shared.begin()
    try:
        deployed, smooth = deploy.campaign(say)
        held, kept = holding.campaign(args.seconds, say)
    finally:
        shared.end()
    lines = [*deployed, *held]
    print("\n".join(lines))
    return conclude(REPORT if args.report else None, lines, smooth and kept, began)


if __name__ == "__main__":
    sys.exit(main())
