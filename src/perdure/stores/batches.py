"""Batches for stores with transactions: one transaction for many items; when that fails, one for each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.errors import Misuse, OutcomeUnknown, PerdureError, Poisoned, StoreFull, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.model import Append, InboxEntry, Landed

    Answers = list[Landed | PerdureError]

Passing = tuple[type[PerdureError], ...]
"""Kinds of ``Unavailable`` that concern one item: the next one may go through."""
FULL: Passing = (StoreFull,)


def append(
    batch: Sequence[Append], most: int, transact: Callable[[Sequence[Append]], Answers], passing: Passing = FULL
) -> Answers:
    """Append a batch, ``most`` items in a transaction; the error that stopped it also answers all items behind it.

    An error of the store's own is raised when nothing was done before it.
    """
    answers: Answers = []
    for start in range(0, len(batch), most):
        items = batch[start : start + most]
        answers += _append(items, transact, passing, first=not answers)
        if len(answers) < start + len(items):
            break
    return answers if len(answers) == len(batch) else answers + answers[-1:] * (len(batch) - len(answers))


def _append(
    items: Sequence[Append], transact: Callable[[Sequence[Append]], Answers], passing: Passing, *, first: bool
) -> Answers:
    try:
        return transact(items)
    except PerdureError as error:
        if is_final(error, passing) and first:
            raise
        if is_final(error, passing) or len(items) == 1:
            return [error]
    answers: Answers = []
    for item in items:
        answers += _append([item], transact, passing, first=first and not answers)
        if isinstance(answers[-1], PerdureError) and is_final(answers[-1], passing):
            break
    return answers


def post(
    entries: Sequence[InboxEntry],
    transact: Callable[[Sequence[InboxEntry]], list[bool | PerdureError]],
    passing: Passing = FULL,
) -> list[bool | PerdureError]:
    """Post entries in one transaction; one by one when that fails, unless the error is the store's own."""
    try:
        return transact(entries)
    except OutcomeUnknown:
        raise
    except PerdureError as error:
        if is_final(error, passing):
            raise
        if len(entries) <= 1:
            return [error]
    return [answer for entry in entries for answer in post([entry], transact, passing)]


def is_final(error: PerdureError, passing: Passing = FULL) -> bool:
    """Whether an error is the store's own, so that trying the next item could only fail again."""
    return isinstance(error, (Misuse, Poisoned)) or (isinstance(error, Unavailable) and not isinstance(error, passing))
