"""A child process that commits until it is killed: with it :mod:`machine` tries what a disk promises.

Run as ``python -m perdure.doctor.commit_process URL SESSION [POINT]``. It prints the number of each commit once
that commit has returned. At the named point of its third commit, or without one after its third commit, it prints
"here" and waits for the signal that it will not survive. When nobody listens any more it ends, without a word.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import perdure
from perdure.system import faults

STOP_AT = 3


def work(url: str, session: str, point: str = "") -> None:
    """Commit one number after the other."""
    with perdure.open(url, maintain=False) as db, db.session(session, ttl=None) as s:
        for number in range(1, STOP_AT + 1):
            if point and number == STOP_AT:
                faults.hook = lambda name: _wait() if name == point else None
            s.vars["number"] = number
            s.messages.append({"role": "user", "content": f"message {number}"})
            s.commit()
            print(number, flush=True)
        _wait()


def _wait() -> None:
    print("here", flush=True)
    # Held by whoever kills us: it ends when they do.
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        work(*sys.argv[1:])
    # What could not be printed would only fail once more.
    os._exit(1)
