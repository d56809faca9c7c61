"""Benchmarks: ``perdure bench kernel``, ``stores`` and ``cold``. Reports, never tests: a missed goal is shown.

Every figure is a ratio whose two sides were measured in the same run, in turns, on the same disk.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.system.disk import Disk, make_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.bench.plan import Plan
    from perdure.bench.report import Result

    Part = Callable[[Any, Plan], list[Result]]
    """Measures something in a folder, or on servers."""

SUITES = ("kernel", "cold", "stores")
_IN_MEMORY = ("tmpfs", "ramfs")


def main(argv: list[str]) -> int:
    """Run a suite and print its report; 0 also when a goal was missed."""
    given = _parser().parse_args(argv)
    if given.out:
        # Before hours of measuring.
        make_folder(Disk(), str(given.out.absolute()))
    from perdure.bench.plan import FULL, QUICK

    report = run(
        given.suite, QUICK if given.quick else FULL, where=given.dir, peers=not given.without_peers, only=given.only
    )
    from perdure.bench.report import as_markdown, as_text

    text = json.dumps(report, indent=2)
    print(text if given.json else as_text(report))
    if given.out:
        (given.out / f"bench-{given.suite}.json").write_text(text + "\n", encoding="utf-8")
        (given.out / f"bench-{given.suite}.md").write_text(as_markdown(report), encoding="utf-8")
    return 0


def run(
    suite: str, plan: Plan, *, where: Path | None = None, peers: bool = True, only: list[str] | None = None
) -> dict[str, Any]:
    """Measure a suite and return its report."""
    from perdure.bench.report import as_json, machine
    from perdure.bench.stores import find_servers

    # The messages are there before anything is timed, and no garbage collection looks at them again.
    plan.messages(plan.session if suite == "cold" else max(plan.steps, plan.saves))
    gc.collect()
    gc.freeze()
    results: list[Result] = []
    with ExitStack() as opened:
        made = tempfile.TemporaryDirectory(prefix="perdure-bench-", dir=where or _disk())
        folder = Path(opened.enter_context(made))
        facts = machine(folder)
        servers = opened.enter_context(find_servers()) if suite == "stores" else None
        for name, part in _parts(suite, peers).items():
            if only and name not in only:
                continue
            room = folder / name
            room.mkdir()
            for result in part(servers or room, plan):
                results.append(result)
                _progress(result)
    gc.unfreeze()
    return as_json(suite, plan, facts, results)


def _parts(suite: str, peers: bool) -> dict[str, Part]:
    from perdure.bench import cold_start, saves, stores

    if suite == "stores":
        return stores.PARTS
    cold: dict[str, Part] = {"imports": cold_start.imports}
    if suite == "cold" or (peers and cold_start.PEERS.exists()):
        cold = {"resume": partial(cold_start.resume, peers=peers), **cold}
    return cold if suite == "cold" else {**saves.PARTS, **cold}


def _disk() -> str:
    """A folder on a real disk: on one that is only memory every sync is free, and so is every ratio."""
    from perdure.system.disk import filesystem

    for folder in (tempfile.gettempdir(), "/var/tmp", "."):
        if Path(folder).is_dir() and filesystem(folder) not in _IN_MEMORY:
            return folder
    return tempfile.gettempdir()


def _progress(result: Result) -> None:
    value = "not measured" if result.value is None else f"{result.value:.3f}"
    print(f"  {result.name}: {value} (goal {result.goal})", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    about = (
        "Measure this machine; a report, not a test. Figures are ratios against a bare write of the same data at the "
        "same durability, taken in the same run."
    )
    parser = argparse.ArgumentParser(prog="perdure bench", description=about)
    parser.add_argument("suite", choices=SUITES, help="kernel, stores (on servers), or cold starts")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--quick", action="store_true", help="a few operations each: shows that everything runs")
    parser.add_argument("--dir", type=Path, help="measure in this folder (default: a temporary one on a disk)")
    parser.add_argument("--out", type=Path, help="also write bench-<suite>.json and .md into this folder")
    parser.add_argument("--only", nargs="+", metavar="PART", help="some parts: sync async late reads fleet file ...")
    parser.add_argument("--without-peers", action="store_true", help="leave the comparison with LangGraph out")
    return parser
