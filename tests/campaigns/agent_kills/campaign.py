"""The long run: ``make effects``. Exits 1 unless every order was paid exactly once."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.campaigns.agent_kills.killing import BOUNDARIES, STORES, kill_agents
from tests.campaigns.agent_kills.scenes import SCENES
from tests.campaigns.crash.kills import scratch_folder
from tests.campaigns.reporting import REPORTS, conclude
from tests.servers import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.campaigns.agent_kills.judging import Verdict
    from tests.campaigns.agent_kills.killing import Campaign

REPORT = REPORTS / "effects.md"
MUST_BE_NONE: dict[str, Callable[[Verdict], int]] = {
    "orders charged twice": lambda v: len(v.twice),
    "orders lost": lambda v: len(v.lost),
    "`ask` tools entered twice": lambda v: len(v.entered_twice),
    "read, retry, reconcile needed a person": lambda v: v.needed_person,
    "never started but in doubt": lambda v: len(v.never_begun),
    "other problems": lambda v: len(v.problems),
}


def summary(campaign: Campaign) -> Iterator[str]:
    """What a campaign has seen, for people."""
    every = campaign.verdicts
    yield f"{campaign.store}: {campaign.kills} kills in {len(every)} sessions, {campaign.drops} connections dropped"
    yield f"  {'sessions finished':40}{sum(v.finished for v in every)} of {len(every)}"
    for what, count in MUST_BE_NONE.items():
        yield f"  {what:40}{sum(count(v) for v in every)}"
    told_wrong = campaign.told_wrong()
    yield f"  {'calls told wrongly to the model':40}{len(told_wrong)}"
    doubts, needless = sum(v.doubts for v in every), sum(v.needless for v in every)
    yield f"  {'calls found in doubt':40}{doubts}"
    yield f"  {'  needlessly: the shop never saw them':40}{needless} of {doubts}"
    idle = [v for v in every if v.scene == "refusing"]
    of = f"{sum(v.needless for v in idle)} of {sum(v.doubts for v in idle)}"
    yield f"  {'    in refusing, which asks for nothing':40}{of}"
    raised, repeated = sum(v.raised for v in every), sum(v.repeated for v in every)
    yield f"  {'calls that charged and then raised':40}{raised}"
    yield f"  {'  repeated, and turned down by a person':40}{repeated}"
    yield f"  {'calls that said that nothing happened':40}{sum(v.refused for v in every)}"
    people = ", ".join(f"{s} {sum(v.people for v in every if v.scene == s)}" for s in SCENES)
    yield f"  {'a person had to find out':40}{people}"
    killed = Counter({p: n for p, n in campaign.points.items() if p.startswith(BOUNDARIES)})
    inside = sum(campaign.points.values()) - sum(killed.values())
    where = ", ".join(f"{p} {n}" for p, n in sorted(killed.items())) + f", inside the store {inside}"
    yield from textwrap.wrap(f"killed at: {where}", 108, initial_indent="  ", subsequent_indent="    ")


def is_fine(campaign: Campaign) -> bool:
    """Whether everything is as promised."""
    return all(v.ok for v in campaign.verdicts) and not campaign.told_wrong()


def main() -> int:
    """Kill on every store."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.agent_kills.campaign", description=__doc__)
    parser.add_argument("--store", choices=STORES, action="append", help="only this kind of store")
    parser.add_argument("--kills", type=int, default=500, help="kills per store")
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
                campaign = kill_agents(store, Path(folder), args.seed, args.kills)
                lines += [*summary(campaign), ""]
                print("\n".join(summary(campaign)), "\n", flush=True)
                for verdict in (v for v in campaign.verdicts if not v.ok):
                    print(f"  {verdict}")
                for problem in campaign.told_wrong():
                    print(f"  {problem}")
                fine = fine and is_fine(campaign)
            finally:
                shutil.rmtree(folder)
    finally:
        shared.end()
    return conclude(REPORT if args.report else None, lines, fine, began, args.seed)


if __name__ == "__main__":
    sys.exit(main())
