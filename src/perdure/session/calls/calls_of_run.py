"""How a resumed run finds the calls it has made before: one after another by their number, side by side by tool and
arguments, whichever is first."""

from __future__ import annotations

import threading
from itertools import count
from typing import TYPE_CHECKING

from perdure.session.calls.records import is_ahead, run_of
from perdure.session.strands import BESIDE

if TYPE_CHECKING:
    from perdure.session.journal import Journal


class CallsOfRun:
    """The calls of the run under way: those that are recorded of it, and those it has made or made again."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._numbers: set[int] = set()
        """Those of the calls that it has made."""
        self._recorded: dict[int, tuple[str, bool]] = {}
        """Of those that it had made and has not made again: what was asked, and whether others were at work beside."""

    def begin(self, run: str) -> None:
        """It begins anew: its calls are counted from the first one."""
        self._numbers.clear()
        effects = self._journal.book.get("effects", {}).items()
        made = sorted((is_ahead(r), int(s.rpartition(":")[2]), r) for s, r in effects if run_of(s) == run)
        # Of equal ones those with an outcome come first: whoever gets one without waits for all others.
        self._recorded = {n: (r.get("asked", r["digest"]), BESIDE in r) for _, n, r in made}

    def number(self, digest: str) -> int:
        """The number of its next call: of several side by side, the first of the same calls that it made."""
        left, strands = self._recorded, self._journal.strands
        with self._lock:
            number = len(self._numbers) + 1
            # Which of them is first may differ from what it was; so may this one be, and none is seen beside it yet.
            beside = number in self._numbers or any(beside for _, beside in left.values())
            if number in left:
                beside = left[number][1]
            if strands.are_several() or beside:
                same = next((n for n, (asked, _) in left.items() if asked == digest), 0)
                number = same or next(n for n in count(1) if n not in left and n not in self._numbers)
                strands.numbered.add(number)
            self._numbers.add(number)
            left.pop(number, None)
        return number
