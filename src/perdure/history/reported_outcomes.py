"""Outcomes reported of calls that had theirs by then: nobody waits for them, and the next commit takes them along."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.history.hydrate import find, load_head
from perdure.state.document import BOOK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.kernel import Kernel
    from perdure.model import InboxEntry

REPORTED = ("outcome", "returned", "failure")
_SETTLED = ("done", "failed")


def too_late(kernel: Kernel, entries: Sequence[InboxEntry]) -> set[str]:
    """The keys of those, among the entries of one session's inbox, that no call waits for. Blocks."""
    reported = {e.key.partition(":")[2]: e for e in entries if e.kind in REPORTED}
    row = find(kernel, next(iter(reported.values())).session) if reported else None
    if row is None or not row.heads:
        return set()
    books = [load_head(kernel, row, branch).doc[BOOK] for branch in row.branches]
    return {entry.key for effect, entry in reported.items() if _is_over(books, effect)}


def _is_over(books: Sequence[Mapping[str, Any]], effect: str) -> bool:
    """Whether a call has its outcome on a branch, and waits for it on none."""
    stands = [r["status"] for book in books for r in book.get("effects", {}).values() if r["id"] == effect]
    if stands:
        return all(status in _SETTLED for status in stands)
    return any(has_outcome(book, effect) for book in books)


def has_outcome(book: Mapping[str, Any], effect: str) -> bool:
    """Whether it is known on a line what became of a call: it was done, or has certainly not happened."""
    mine = [r for r in book.get("effects", {}).values() if r["id"] == effect]
    # One that failed before it was made says nothing of what another line has made of it.
    if any(r["status"] == "done" or (r["status"] == "failed" and r["attempt"] > 0) for r in mine):
        return True
    # Forgotten but for its id; without a step nobody knows what became of it.
    made = (one for many in book.get("done", {}).values() for one in many)
    return any(one[0] == effect and one[2] for one in (*made, *book.get("refuted", ())))
