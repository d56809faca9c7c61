"""Puts the output of a long run into its report: the text around it is written by hand, the figures are not."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

REPORTS = Path(__file__).resolve().parents[2] / "docs" / "reports"


def conclude(report: Path | None, lines: list[str], fine: bool, began: float, seed: int | None = None) -> int:
    """Say how a long run that began then has ended, and put it into its report if it was fine; the exit code."""
    with_seed = "" if seed is None else f", seed {seed}"
    lines.append(f"{'ok' if fine else 'FAILED'} in {time.monotonic() - began:.0f} s{with_seed}")
    print(lines[-1])
    if report is not None and fine:
        write_last_run(report, lines)
    return 0 if fine else 1


def write_last_run(report: Path, lines: Sequence[str]) -> None:
    """Replace what stands between the fences after "Last long run"."""
    text = report.read_text("utf-8")
    block = "\n".join(line.rstrip() for line in lines)
    new, count = re.subn(
        r"(Last long run[^\n]*\n\n```\n).*?(\n```)", lambda found: found[1] + block + found[2], text, flags=re.DOTALL
    )
    if count != 1:
        raise ValueError(f"{report.name} has no place for the figures")
    report.write_text(new, "utf-8")
