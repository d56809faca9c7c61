"""The long run: ``make client``. Exits 1 unless everything was as without a disturbance."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.campaigns.crash.kills import scratch_folder
from tests.campaigns.crash.zygote import Zygote
from tests.campaigns.model_server import killing, reading
from tests.campaigns.model_server.breaking import cut_off, parallel_calls, sent_away
from tests.campaigns.model_server.proxy import Proxy
from tests.campaigns.model_server.scene import APIS
from tests.campaigns.reporting import REPORTS, conclude
from tests.servers import shared
from tests.servers.llmock import start_llmock
from tests.servers.process import stop

if TYPE_CHECKING:
    from collections.abc import Callable

REPORT = REPORTS / "client.md"
LIFE = "tests.campaigns.model_server.life"
STORES = ("sqlite", "postgres", "redis")
PACE = ("--stream-chunk-delay-ms", "15")


class Printed:
    """Lines that are shown at once and kept for the report."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.fine = True

    def add(self, lines: list[str], fine: bool, why: list[object] | None = None) -> None:
        """A part of the run, whether it was fine, and what was not."""
        self.fine = self.fine and fine
        self.lines += [*lines, ""]
        print("\n".join(lines), "\n", flush=True)
        for problem in () if fine else why or ():
            print(f"  {problem}")


def broken(out: Printed, rng: random.Random, answers: int) -> None:
    """The client alone."""
    server = start_llmock()
    try:
        for api in APIS:
            parts = [
                parallel_calls(server, api, answers, rng),
                sent_away(server, api, [0.3, 1.0, 2.5]),
                cut_off(server, api, [1, 3, 6]),
            ]
            out.add([f"{api}: streams and refusals", *map(str, parts)], all(p.ok for p in parts))
    finally:
        stop(server)


def killed(out: Printed, folder: Path, rng: random.Random, rounds: int) -> None:
    """Kill and go on."""
    server, zygote = start_llmock(), Zygote(LIFE)
    try:
        with Proxy(server.port) as proxy:
            for api in APIS:
                bench = killing.Bench(server, proxy, zygote, folder, api)
                bench.undisturbed()
                every = [bench.kill(moment) for moment in bench.moments]
                every += [bench.kill(*rng.choices(bench.moments, k=rng.randint(2, 4))) for _ in range(rounds)]
                out.add(killing.lines(api, bench, every), all(k.ok for k in every), [k for k in every if not k.ok])
    finally:
        zygote.close()
        stop(server)


def read_along(out: Printed, folder: Path, rng: random.Random, rounds: int) -> None:
    """Readers elsewhere."""
    server, workers, readers = start_llmock(*PACE), Zygote(LIFE), Zygote(LIFE)
    try:
        for store in STORES:
            bench = reading.Bench(server, folder, store, workers, readers)
            every = [bench.read(n, 1 + n % 3, rng) for n in range(rounds)]
            out.add(reading.lines(store, every), all(r.ok for r in every), [r for r in every if not r.ok])
    finally:
        workers.close()
        readers.close()
        stop(server)


def main() -> int:
    """Break, kill, read along."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.model_server.campaign", description=__doc__)
    parser.add_argument("--answers", type=int, default=100, help="streamed answers with several calls, per API")
    parser.add_argument("--rounds", type=int, default=20, help="conversations with several kills, and readers")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--report", action="store_true", help=f"write the result into {REPORT.name}")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    shared.begin()
    began = time.monotonic()
    folder = Path(scratch_folder())
    rng = random.Random(args.seed)
    out = Printed()
    parts: list[Callable[[], None]] = [
        lambda: broken(out, rng, args.answers),
        lambda: killed(out, folder, rng, args.rounds),
        lambda: read_along(out, folder, rng, args.rounds),
    ]
    try:
        for part in parts:
            part()
    finally:
        shutil.rmtree(folder)
        shared.end()
    return conclude(REPORT if args.report else None, out.lines, out.fine, began, args.seed)


if __name__ == "__main__":
    sys.exit(main())
