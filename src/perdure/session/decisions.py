"""Decisions that were posted and wait to be taken up: nobody is asked again, at whatever door he looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.kernel import Kernel
    from perdure.model import InboxEntry, SessionRow


def decided(kernel: Kernel, row: SessionRow, book: Mapping[str, Any]) -> dict[str, InboxEntry]:
    """Of the requests that are open in a book those that somebody has decided on, each with the decision. Blocks."""
    if not row.pending:
        return {}
    asked = [a["id"] for a in book.get("approvals", {}).values() if a["status"] == "pending"]
    found = ((id, kernel.store.inbox(row.id, 1, f"decision:{id}")) for id in asked)
    return {id: entries[0] for id, entries in found if entries}
