"""Which requests for agreement, and calls, wait for a person: nobody is asked in vain, at whatever door he looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.session.calls.records import OPEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from perdure.kernel import Kernel
    from perdure.model import InboxEntry, SessionRow


def pending(book: Mapping[str, Any], line: int) -> list[Any]:
    """The open requests in the book of a line that a decision can still reach.

    Those that it has from the line it parted from are not among them: each line asks for itself, and does so anew, or
    takes over what came of it there, as soon as it is gone on with.
    """
    own = {e["id"] for e in book.get("effects", {}).values() if e["status"] in OPEN and e["line"] == line}
    return [a for a in book.get("approvals", {}).values() if a["status"] == "pending" and a["effect"] in own]


def decided(kernel: Kernel, row: SessionRow, requests: list[Any]) -> dict[str, InboxEntry]:
    """Of some requests those that somebody has decided on, with the decision, which waits to be taken up. Blocks."""
    if not row.pending:
        return {}
    found = ((a["id"], kernel.store.inbox(row.id, 1, f"decision:{a['id']}")) for a in requests)
    return {id: entries[0] for id, entries in found if entries}


def reported(kernel: Kernel, row: SessionRow, effects: Iterable[str]) -> dict[str, InboxEntry]:
    """Of some calls those whose outcome was reported and waits to be taken up: nobody else may settle them. Blocks."""
    if not row.pending:
        return {}
    found = ((effect, kernel.store.inbox(row.id, 1, f"outcome:{effect}")) for effect in effects)
    return {effect: entries[0] for effect, entries in found if entries}


def undecided(kernel: Kernel, row: SessionRow, book: Mapping[str, Any], line: int) -> list[Any]:
    """The requests in the book of a line that wait for a person. Blocks."""
    requests = pending(book, line)
    over, now = decided(kernel, row, requests), kernel.clock.wall()
    return [a for a in requests if a["id"] not in over and not is_late(a, now)]


def is_late(request: Mapping[str, Any], now: int) -> bool:
    """Whether it is too late to decide on a request: its call counts as turned down when its session goes on."""
    return now >= request["expires"]
