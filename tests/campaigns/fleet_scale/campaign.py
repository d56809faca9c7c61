"""The long run: ``make scale``. Exits 1 unless every interrupted session was resumed."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.campaigns.fleet_scale.run import Outcome, Plan, run
from tests.campaigns.reporting import REPORTS, write_last_run
from tests.servers import shared
from tests.servers.postgres import postgres_url, start_postgres
from tests.servers.process import stop
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Iterator

REPORT = REPORTS / "scale.md"
STORES = ("sqlite", "postgres")


def lines_of(kind: str, found: Outcome) -> list[str]:
    """The outcome for people."""
    share = 100 * found.resumed / max(found.interrupted, 1)
    rate = found.sessions / max(found.seconds, 0.001)
    return [
        f"{kind}: sessions {found.sessions}, finished {found.finished}, kills {found.kills}",
        f"  interrupted in mid-step {found.interrupted}, resumed {found.resumed} ({share:.2f} %)",
        f"  messages lost {found.lost}, orders charged twice {found.doubled}, never {found.uncharged}",
        f"  {found.seconds:.0f} s, {rate:.0f} sessions a second, kills included",
    ]


@contextmanager
def store_in(kind: str, folder: Path) -> Iterator[str]:
    """The URL of a store that stays where it is when the run is stopped, so that the next one goes on with it."""
    if kind != "postgres":
        yield url_of(kind, folder, "scale")
        return
    # A server's files belong to another user, who may not enter this folder: only their place is kept here.
    note = folder / "server"
    known = note.read_text() if note.exists() else None
    server = start_postgres(folder=known if known and Path(known).exists() else None)
    note.write_text(server.folder)
    keep = True
    try:
        yield f"{postgres_url(server)}?schema=scale"
        keep = False
    finally:
        stop(server, keep=keep)


def main() -> int:
    """Run on every store."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.fleet_scale.campaign", description=__doc__)
    parser.add_argument("--store", choices=STORES, action="append", help="only this kind of store")
    parser.add_argument("--sessions", type=int, default=50_000)
    parser.add_argument("--interrupt", type=int, default=10_000, help="sessions to interrupt in mid-step, at least")
    parser.add_argument("--folder", type=Path, help="keep everything there; run again with it to go on")
    parser.add_argument("--report", action="store_true", help=f"write the result into {REPORT.name}")
    args = parser.parse_args()
    shared.begin()
    lines: list[str] = []
    fine = True
    try:
        with tempfile.TemporaryDirectory(prefix="perdure-scale-") as scratch:
            for kind in args.store or STORES:
                folder = (args.folder or Path(scratch)) / kind
                folder.mkdir(parents=True, exist_ok=True)
                began = time.monotonic()

                def say(text: str, kind: str = kind, began: float = began) -> None:
                    print(f"{kind} {time.monotonic() - began:6.0f} s  {text}", file=sys.stderr, flush=True)

                with store_in(kind, folder) as url:
                    found = run(url, folder, Plan(args.sessions, args.interrupt), say)
                lines += lines_of(kind, found)
                print("\n".join(lines_of(kind, found)), flush=True)
                fine = fine and found.ok
    finally:
        shared.end()
    lines.append("ok" if fine else "FAILED")
    print(lines[-1])
    if args.report and fine:
        write_last_run(REPORT, lines)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
