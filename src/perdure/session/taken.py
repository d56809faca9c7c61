"""Which inputs were taken, as the checkpoints themselves say: no row of an inbox can undo it.

The book has, for each store that the session's inputs were posted to, the highest number that was taken, and those
below it that were not: it grows with what waits, and not with what was taken. A branch knows what was taken on it, or
before it parted; a rewind carries it along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from perdure.errors import Corrupted
from perdure.state.delta import DEL, SET
from perdure.state.document import BOOK, plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.record.binding import Stamp

TAKEN = "taken"
"""Where the book has them."""
MOST_WAITING = 10_000_000
"""Inputs that may wait while a later one is taken; a number beyond that is none that a store has given."""


class Mark(TypedDict):
    """What was taken of the inputs that were posted to one store."""

    to: int
    """The highest number that was taken."""
    but: dict[str, int]
    """Those below that were not."""


Marks = dict[str, Mark]


def marks_of(doc: dict[str, Any]) -> Marks:
    """What a document's book says."""
    return plain(doc[BOOK].get(TAKEN, {}))


def beginning(store: str, before: int) -> Marks:
    """The marks of a session that begins where an earlier one of its name, with so many inputs, has ended."""
    return {store: Mark(to=before, but={})} if before else {}


def is_taken(marks: Marks, stamp: Stamp) -> bool:
    """Whether a checkpoint took it."""
    mark = marks.get(stamp.origin)
    return mark is not None and stamp.number <= mark["to"] and str(stamp.number) not in mark["but"]


def take(marks: Marks, stamps: Iterable[Stamp], where: str) -> list[list[Any]]:
    """Mark these as taken, too; the operations that do the same in a book that has a place for marks.

    >>> from perdure.record.binding import Stamp
    >>> marks = {"a": {"to": 3, "but": {"2": 0}}}
    >>> take(marks, [Stamp("a", 2), Stamp("a", 5)], "session 's'")
    [[2, ['k', 'taken', 'a', 'but', '2']], [1, ['k', 'taken', 'a', 'to'], 5], [1, ['k', 'taken', 'a', 'but', '4'], 0]]
    >>> marks
    {'a': {'to': 5, 'but': {'4': 0}}}
    """
    ops: list[list[Any]] = []
    by_origin: dict[str, list[int]] = {}
    for stamp in sorted(stamps):
        by_origin.setdefault(stamp.origin, []).append(stamp.number)
    for origin, numbers in by_origin.items():
        path = [BOOK, TAKEN, origin]
        if origin not in marks:
            marks[origin] = Mark(to=0, but={})
            ops.append([SET, path, Mark(to=0, but={})])
        old = marks[origin]
        top = max(old["to"], numbers[-1])
        if top - old["to"] > MOST_WAITING:
            raise Corrupted(where, f"an input is number {top}, and number {old['to']} was the highest that was taken")
        gone = [str(number) for number in numbers if str(number) in old["but"]]
        for name in gone:
            del old["but"][name]
            ops.append([DEL, [*path, "but", name]])
        if top > old["to"]:
            ops.append([SET, [*path, "to"], top])
            waits = [str(number) for number in sorted(set(range(old["to"] + 1, top)).difference(numbers))]
            old["to"] = top
            old["but"].update(dict.fromkeys(waits, 0))
            ops += [[SET, [*path, "but", name], 0] for name in waits]
    return ops


def start(marks: Marks) -> list[list[Any]]:
    """The operation that gives a book its marks."""
    return [[SET, [BOOK, TAKEN], marks]]
