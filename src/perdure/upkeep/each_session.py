"""Going through all sessions of a store, page by page, and telling somebody how far one is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.model import SessionRow
    from perdure.protocols import Store

Progress = Callable[[str, int], None]
"""Called with the session that was just done and how many are done so far."""
PAGE = 100


def each_session(store: Store, page: int = PAGE, **chosen: Any) -> Iterator[SessionRow]:
    """All sessions of a store, or those chosen by owner, status or expiry, in the order of their ids."""
    after: str | None = None
    while rows := store.sessions(after=after, limit=page, **chosen):
        after = rows[-1].id
        yield from rows
