"""The long run: ``make statements``. Exits 1 unless every statement was so and every falsified one was noticed."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.campaigns.reporting import REPORTS, conclude
from tests.campaigns.statements.judging import Judged, judge
from tests.campaigns.statements.mutations import MUTATIONS, caught
from tests.campaigns.statements.search import EXPECTED, never_together, situations, values

REPORT = REPORTS / "statements.md"


MEMORY = Path("/dev/shm")
"""Where files are kept in memory: what is said does not depend on the disk."""


def quiet() -> None:
    """What a refused run says of itself is judged, not read."""
    logging.getLogger("perdure").setLevel(logging.CRITICAL)


def main() -> int:
    """Search, judge, falsify."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.statements.campaign", description=__doc__)
    parser.add_argument("--deep", type=int, default=3, help="operations behind each root")
    parser.add_argument("--report", action="store_true", help=f"write the result into {REPORT.name}")
    args = parser.parse_args()
    quiet()
    began = time.monotonic()
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    memory = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="perdure-statements-", dir=memory) as name:
        folder = Path(name)
        found = situations(folder, args.deep, told=lambda line: print(line, flush=True))
        reached = values(found)
        for dimension, known in EXPECTED.items():
            never = ", ".join(sorted(known - reached[dimension])) or "-"
            tell(f"{dimension:10} {len(reached[dimension]):3} values reached   never: {never}")
        for dimension in ("status", "board"):
            for value, never in never_together(found, dimension).items():
                others = "; ".join(f"{other} {', '.join(these)}" for other, these in never.items())
                tell(f"{dimension} {value} never with: {others}")
        judged: list[Judged] = []
        with ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), quiet) as pool:
            for one in pool.map(partial(judge, folder), found.values(), chunksize=4):
                judged.append(one)
                for wrong in one.wrong:
                    print(wrong, flush=True)
                if len(judged) % 500 == 0:
                    print(f"judged {len(judged)} of {len(found)}", flush=True)
        false = sum(len(j.wrong) for j in judged)
        tell(
            f"situations {len(found)}   statements {sum(j.statements for j in judged)}   "
            f"actions carried out {sum(j.actions for j in judged)}   false {false}"
        )
        noticed = [(m.says, caught(folder, m)) for m in MUTATIONS]
        for says, what in noticed:
            tell(f"{'caught' if what else 'MISSED'}  {says}")
    return conclude(REPORT if args.report else None, lines, not false and all(w for _, w in noticed), began)


if __name__ == "__main__":
    sys.exit(main())
