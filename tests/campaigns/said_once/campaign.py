"""The long run: ``make said-once``. Exits 1 unless every message was said once, and answered to whoever said it."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.campaigns.crash.kills import scratch_folder
from tests.campaigns.reporting import REPORTS, conclude
from tests.campaigns.said_once.rounds import STORES, Campaign, zygotes
from tests.servers import shared

if TYPE_CHECKING:
    from collections.abc import Iterator

REPORT = REPORTS / "said-once.md"


def summary(campaign: Campaign) -> Iterator[str]:
    """What a campaign has seen, for people."""
    every = campaign.verdicts

    def line(what: str, count: int | str) -> str:
        return f"  {what:58}{count}"

    yield f"{campaign.store}: {campaign.rounds} rounds in {len(every)} sessions"
    yield line("callers killed, servers killed", f"{campaign.kills}, {campaign.server.kills if campaign.server else 0}")
    yield line("messages", sum(v.messages for v in every))
    yield line("said twice", sum(len(v.twice) for v in every))
    yield line("lost", sum(len(v.lost) for v in every))
    yield line("callers who got something else than their own answer", sum(len(v.wrong) for v in every))
    yield line("callers who came to no answer", sum(len(v.stranded) for v in every))
    yield line("callers killed before they were told a key", sum(v.unknown for v in every))
    yield line("  and their message had not been said", sum(v.unsaid for v in every))
    yield line("typed again without a key after it had been answered", sum(len(v.anew) for v in every))
    ends = ", ".join(f"{way} {n}" for way, n in sorted(campaign.ways.items()))
    yield from textwrap.wrap(f"callers: {ends}", 108, initial_indent="  ", subsequent_indent="    ")
    where = ", ".join(f"{point} {n}" for point, n in sorted(campaign.points.items()))
    yield from textwrap.wrap(f"callers killed at: {where}", 108, initial_indent="  ", subsequent_indent="    ")


def main() -> int:
    """Speak on every store."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.said_once.campaign", description=__doc__)
    parser.add_argument("--store", choices=STORES, action="append", help="only this kind of store")
    parser.add_argument("--rounds", type=int, help="rounds per store")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--report", action="store_true", help=f"write the result into {REPORT.name}")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    shared.begin()
    began = time.monotonic()
    lines: list[str] = []
    fine = True
    try:
        for store in args.store or STORES:
            folder = scratch_folder()
            try:
                with zygotes() as started:
                    campaign = Campaign(store, Path(folder), started, args.seed)
                    campaign.speak(args.rounds or STORES[store])
                lines += [*summary(campaign), ""]
                print("\n".join(summary(campaign)), "\n", flush=True)
                for verdict in (v for v in campaign.verdicts if not v.ok):
                    print(f"  {verdict}")
                    fine = False
            finally:
                shutil.rmtree(folder)
    finally:
        shared.end()
    return conclude(REPORT if args.report else None, lines, fine, began, args.seed)


if __name__ == "__main__":
    sys.exit(main())
