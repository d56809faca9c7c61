"""The board of a database, and what may not be one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.errors import InvalidInput
from perdure.protocols import Boarded

if TYPE_CHECKING:
    from perdure.database import DatabaseHandle
    from perdure.protocols import Board


def board_of(db: DatabaseHandle) -> Board:
    """The board beside the sessions of a database; an error says where there is none. Blocks when first asked."""
    store = db.kernel.store
    if not isinstance(store, Boarded):
        kind = db.url.partition("://")[0]
        raise InvalidInput(
            f"a fleet cannot work on {kind}: use sqlite:///… on one machine, postgresql://… on many "
            "(a cache may stand before it: tiered:redis://…,postgresql://…)"
        )
    return store.board()
