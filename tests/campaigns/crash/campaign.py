"""The long runs: ``make crash``, ``make crash-servers``, ``make powerloss``. Exits 1 when anything was lost."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from tests.campaigns.crash.kills import SERVERS, STORES, Tally, kill_at_points, kill_at_random, scratch_folder
from tests.campaigns.crash.points import never_reached
from tests.campaigns.reporting import REPORTS, write_last_run
from tests.servers import shared

if TYPE_CHECKING:
    from collections.abc import Callable

SERVERS_REPORT = REPORTS / "crash-servers.md"


class Progress:
    """One line on standard error that says how far each part of a campaign is."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet or not sys.stderr.isatty()
        self._said: dict[str, str] = {}
        self._lock = threading.Lock()
        self._last = 0.0

    def __call__(self, name: str, text: str) -> None:
        """Say how far one part is."""
        with self._lock:
            self._said[name] = text
            now = time.monotonic()
            if not self._quiet and now - self._last > 0.2:
                self._last = now
                line = " | ".join(f"{k}: {v}" for k, v in self._said.items())
                print(f"\r{line[:150]:150}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the line."""
        if not self._quiet:
            print(file=sys.stderr)


def at_once(parts: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Do several things in threads; an error in one is raised when all have ended."""
    results: dict[str, Any] = {}
    errors: list[BaseException] = []

    def do(name: str, part: Callable[[], Any]) -> None:
        try:
            results[name] = part()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=do, args=item) for item in parts.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def kill(args: argparse.Namespace) -> tuple[bool, dict[str, Any]]:
    """Kills at every named point, and at random moments."""
    folder = args.folder or scratch_folder()
    progress = Progress(args.json)

    def say(tally: Tally) -> None:
        progress(f"{tally.store} {tally.kind}", f"{tally.kills} kills, {len(tally.problems)} problems")

    def both(store: str) -> list[Tally]:
        share = len(args.store)
        points = kill_at_points(store, folder, args.seed, -(-args.points // share), say)
        return [points, kill_at_random(store, folder, args.seed, -(-args.random // share), say)]

    found = at_once({store: lambda store=store: both(store) for store in args.store})
    progress.end()
    ok, report, _ = _sum_up(args, [tally for store in args.store for tally in found[store]])
    if ok and not args.folder:
        os.rmdir(folder)
    return ok, report


def servers(args: argparse.Namespace) -> tuple[bool, dict[str, Any]]:
    """The same on servers, and then the servers themselves are killed."""
    from tests.campaigns.crash.server_kills import kill_servers

    folder = args.folder or scratch_folder()
    progress = Progress(args.json)

    def say(tally: Tally) -> None:
        progress(f"{tally.store} {tally.kind}", f"{tally.kills} kills, {len(tally.problems)} problems")

    share = len(args.store)
    shared.begin()
    tallies: list[Tally] = []
    try:
        for store in args.store:
            # One after the other: clients and servers share the machine.
            tallies.append(kill_at_points(store, folder, args.seed, -(-args.points // share), say))
            tallies.append(kill_at_random(store, folder, args.seed, -(-args.random // share), say))
            tallies.append(kill_servers(store, folder, args.seed, -(-args.servers // share), say))
    finally:
        shared.end()
    progress.end()
    ok, report, lines = _sum_up(args, tallies)
    if ok and not args.folder:
        os.rmdir(folder)
    if ok and args.report:
        write_last_run(SERVERS_REPORT, [f"seed {args.seed}", *lines])
    return ok, report


def _sum_up(args: argparse.Namespace, tallies: list[Tally]) -> tuple[bool, dict[str, Any], list[str]]:
    """Whether all is well, the figures for programs, and those for people (which are printed)."""
    sums = {
        "kills": sum(t.kills for t in tallies),
        "acknowledged": sum(t.acknowledged for t in tallies),
        "lost": sum(t.lost for t in tallies),
        "duplicated": sum(t.duplicated for t in tallies),
        "half there": sum(t.half for t in tallies),
    }
    lines = [*map(str, tallies), ", ".join(f"{name} {count}" for name, count in sums.items())]
    if not args.json:
        print("\n".join(lines))
        for tally in tallies:
            for problem in tally.problems[:10]:
                print(f"  {tally.store} {tally.kind}: {problem['kind']}: {problem['what']}")
    unreached = {
        t.store: names for t in tallies if t.kind == "points" and (names := never_reached(t.store, set(t.points)))
    }
    if unreached and not args.json:
        print(f"points of the source that nothing was killed at: {unreached}")
    ok = not (unreached or sums["lost"] or sums["duplicated"] or sums["half there"])
    return ok, {"sums": sums, "unreached": unreached, "parts": [t.as_dict() for t in tallies]}, lines


def powerloss(args: argparse.Namespace) -> tuple[bool, dict[str, Any]]:
    """Power lost at every sync; each kind of store in a process of its own, because time and boot are global."""
    if len(args.store) > 1:
        return _in_processes(args)
    from tests.campaigns.crash.powerloss import campaign

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    losses = campaign(args.store[0], args.seed, args.rounds, args.variants, say)
    if not args.json:
        print(losses)
    return losses.ok, {"parts": [losses.as_dict()], "text": [str(losses)]}


def _in_processes(args: argparse.Namespace) -> tuple[bool, dict[str, Any]]:
    shared = ["--seed", str(args.seed), "--rounds", str(args.rounds), "--variants", str(args.variants), "--json"]
    commands = [
        [sys.executable, "-m", "tests.campaigns.crash.campaign", "powerloss", "--store", store, *shared]
        for store in args.store
    ]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    reports = [json.loads(child.communicate()[0]) for child in children]
    if not args.json:
        print("\n".join(text for report in reports for text in report["text"]))
    ok = all(report["ok"] for report in reports)
    return ok, {"parts": [part for report in reports for part in report["parts"]]}


def main() -> int:
    """Run one campaign."""
    if sys.argv[1:2] == ["tamper"]:
        from tests.campaigns.tamper import campaign

        del sys.argv[1]
        return campaign.main()
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.crash.campaign", description=__doc__)
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--seed", type=int, default=None, help="repeat a run (random moments stay random)")
    options.add_argument("--store", choices=(*STORES, *SERVERS), action="append", help="only this kind of store")
    options.add_argument("--json", action="store_true", help="print a report for programs")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("kill", parents=[options], help="kill -9 at named points and at random moments")
    one.add_argument("--points", type=int, default=2000, help="kills at named points, at least")
    one.add_argument("--random", type=int, default=400, help="kills at random moments")
    one.add_argument("--folder", help="where the stores are put, and kept")
    three = commands.add_parser("servers", parents=[options], help="kill clients of servers, then the servers")
    three.add_argument("--points", type=int, default=240, help="kills of a client at named points, at least")
    three.add_argument("--random", type=int, default=120, help="kills of a client at random moments")
    three.add_argument("--servers", type=int, default=60, help="kills and restarts of servers")
    three.add_argument("--folder", help="where journals are put, and kept")
    three.add_argument("--report", action="store_true", help=f"write the figures into {SERVERS_REPORT.name}")
    two = commands.add_parser("powerloss", parents=[options], help="lose power at every sync")
    two.add_argument("--rounds", type=int, default=4, help="workloads, each on what the last loss has left")
    two.add_argument("--variants", type=int, default=7, help="what may survive, per sync")
    commands.add_parser("tamper", help="change stored bytes")
    args = parser.parse_args()
    args.seed = secrets.randbelow(1 << 30) if args.seed is None else args.seed
    args.store = args.store or list(SERVERS if args.command == "servers" else STORES)
    if not args.json:
        print(f"seed {args.seed}", flush=True)
    start = time.monotonic()
    ok, report = {"kill": kill, "servers": servers, "powerloss": powerloss}[args.command](args)
    seconds = round(time.monotonic() - start, 1)
    if args.json:
        print(json.dumps({"suite": args.command, "seed": args.seed, "ok": ok, "seconds": seconds, **report}, indent=1))
    else:
        print(f"{'ok' if ok else 'FAILED'} in {seconds} s (seed {args.seed})")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
