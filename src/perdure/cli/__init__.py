"""The command line: options, printing and exit codes over the library. Read ``program`` first: it has the groups.

Nothing of it is imported before :func:`main` is called.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and end the process with its exit code."""
    from perdure.cli.program import run

    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))
