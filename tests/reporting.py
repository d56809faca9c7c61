"""Puts the output of a long run into its report: the text around it is written by hand, the figures are not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


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
