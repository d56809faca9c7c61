"""What an interrupted program counts, and what it compares in the end: shared by all of its forms."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import perdure
from perdure.errors import Busy, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable
    from multiprocessing.connection import Connection
    from types import FrameType, TracebackType

HOME = os.path.dirname(os.path.abspath(perdure.__file__)) + os.sep
STUCK = 60
"""So many turns that are refused one after the other: the handle does not go on."""


ENOUGH = "enough"
"""A program has had its interrupts; the same answer says that there will be no more."""


def no_more(pipe: Connection) -> None:
    """Have whoever sends interrupts stop."""
    pipe.send(ENOUGH)
    pipe.recv()


class Stuck(Exception):
    """A handle refuses everything, for ever."""


def is_ours(frame: FrameType) -> bool:
    """Whether a frame is one of the library."""
    return frame.f_code.co_filename.startswith(HOME)


def came_through_us(trace: TracebackType | None) -> bool:
    """Whether an error has come out of the library."""
    while trace is not None:
        if is_ours(trace.tb_frame):
            return True
        trace = trace.tb_next
    return False


class Seen:
    """Counts of one program; sent to whoever started it as a dictionary."""

    def __init__(self) -> None:
        self.interrupts = 0
        """Those that were raised in the middle of a turn."""
        self.inside = 0
        """Those of them that arrived in our code."""
        self.places: list[str] = []
        """Where that was, file and line."""
        self.left_behind: list[str] = []
        """Where an interrupt was that took a handle with it whose lease was kept alive."""
        self.turns: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.acknowledged = self.calls = 0
        self.lost = self.doubled = self.hung = self.held = self.wrong = 0
        self.problems: list[str] = []
        self._refused_in_a_row = 0

    def problem(self, kind: str, what: str, count: int = 1) -> None:
        """Something is not as it must be."""
        setattr(self, kind, getattr(self, kind) + count)
        self.problems.append(f"{kind}: {what}")

    def went(self, error: BaseException | None) -> None:
        """How a turn ended."""
        if error is None:
            self._refused_in_a_row = 0
        else:
            self.refused[type(error).__name__] += 1
            self._refused_in_a_row += 1
            if self._refused_in_a_row > STUCK:
                raise Stuck(f"{STUCK} turns were refused, the last one with {error!r}")

    def compare(self, where: str, stored: list[int], acknowledged: Iterable[int], shown: list[int] | None) -> None:
        """What is stored has everything that was acknowledged, each value once, those of one writer in their order.

        Right after a commit it is also what the handle shows.
        """
        there = set(stored)
        if lost := [v for v in acknowledged if v not in there]:
            self.problem("lost", f"{where}: {lost[:5]} were acknowledged", len(lost))
        if twice := [v for v, count in Counter(stored).items() if count > 1]:
            self.problem("doubled", f"{where}: {twice[:5]}", len(twice))
        for writer, values in itertools.groupby(sorted(stored, key=writer_of), writer_of):
            of_one = list(values)
            if of_one != sorted(of_one):
                self.problem("wrong", f"{where}: the values of writer {writer} are out of order: {of_one[-20:]}")
        if shown is not None and shown != stored:
            gone = set(shown) - there
            self.problem("lost" if gone else "wrong", f"{where}: the handle shows {shown[-9:]}, stored {stored[-9:]}")

    def made_once(self, world: list[int], returned: Iterable[int]) -> None:
        """A call that must not be repeated was made once, and one whose result was given was made."""
        if twice := [v for v, count in Counter(world).items() if count > 1]:
            self.problem("doubled", f"calls {twice[:5]} were made more than once", len(twice))
        made = set(world)
        if never := [v for v in returned if v not in made]:
            self.problem("lost", f"calls {never[:5]} gave a result and were never made", len(never))

    def leases(self, db: perdure.Database, sessions: Iterable[str]) -> None:
        """Whoever comes next gets the lease at once."""
        for session in sessions:
            try:
                db.session(session).release()
            except Busy as busy:
                self.problem("held", f"{busy}")

    def everything(self, url: str, acknowledged: dict[str, list[int]]) -> None:
        """After all is over, through a new handle: everything acknowledged, nothing damaged, no lease held."""
        with perdure.open(url, maintain=False) as db:
            for session, values in acknowledged.items():
                stored: list[int] = []
                with suppress(NotFound):
                    stored = db.read(session).messages.plain()
                self.compare(f"{session} in the end", stored, values, None)
                self.acknowledged += len(values)
            self.leases(db, acknowledged)
            if findings := db.verify().findings:
                self.problem("wrong", f"verify finds {findings[:3]}")

    def as_dict(self) -> dict[str, Any]:
        """For whoever started it."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}


PER_WRITER = 10**9


def writer_of(value: int) -> int:
    """Who wrote a value."""
    return value // PER_WRITER
