"""The command line: options, printing and exit codes over the library. Read ``program`` first: it has the groups.

Nothing of it is imported before :func:`main` is called.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C has ended."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and end the process with its exit code."""
    ours = argv is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        # Nothing is under way yet; an exception in the middle of an import may come out as any other.
        signal.signal(signal.SIGINT, _leave)
    from perdure.cli.program import run

    try:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run(list(sys.argv[1:] if argv is None else argv))
        if ours:
            # All is done and said.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


def _leave(*_: Any) -> None:
    os._exit(INTERRUPTED)
