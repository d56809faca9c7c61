"""The long run: ``make compactor``. Exits 1 unless the window was what it promises to be."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import time
from pathlib import Path

from perdure.agent.context.compactor import Compactor
from tests.campaigns.crash.kills import scratch_folder
from tests.campaigns.long_conversation.long_talk import REFUSED, talk
from tests.campaigns.reporting import REPORTS, conclude
from tests.servers.llmock import start_llmock
from tests.servers.process import stop

REPORT = REPORTS / "compactor.md"
COMPACTORS = {"when the window is full": None, "every 25 turns": 25}


def main() -> int:
    """Talk for long."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.long_conversation.campaign", description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--report", action="store_true", help=f"write the result into {REPORT.name}")
    args = parser.parse_args()
    began = time.monotonic()
    lines: list[str] = []
    fine = True
    folder = Path(scratch_folder())
    server = start_llmock("--context-window", str(REFUSED))
    try:
        for how, every in COMPACTORS.items():
            compactor = Compactor(every=every, max_tokens=200)
            talked = asyncio.run(talk(server, folder, args.steps, f"compactor {how}", compactor))
            lines += [*talked.lines(), ""]
            print("\n".join(talked.lines()), "\n", flush=True)
            for problem in talked.orphans:
                print(f"  {problem}")
            fine = fine and talked.ok and talked.steps == args.steps
    finally:
        stop(server)
        shutil.rmtree(folder)
    return conclude(REPORT if args.report else None, lines, fine, began)


if __name__ == "__main__":
    sys.exit(main())
