"""What a session's own book says beside its conversation: tokens that were paid for, and what waits for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.agent.requests import AGENT
from perdure.state.document import plain

if TYPE_CHECKING:
    from perdure.history.checkpoint import Reading


def tokens_of(reading: Reading) -> int:
    """Tokens of all answers that were committed by then, as the model counted them."""
    book: Any = reading.book.get(AGENT) or {}
    spent: list[Any] = plain(book.get("total", []))
    return int(spent[0] + spent[1]) if spent else 0


def asked_for(reading: Reading) -> list[str]:
    """The ids of requests for approval that nobody has decided."""
    requests: dict[str, Any] = plain(reading.book.get("approvals", {}))
    return [name for name, request in requests.items() if request["status"] == "pending"]
