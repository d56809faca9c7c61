"""A store whose answers may be repeated or lost on the way back, as answers of a network may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.errors import OutcomeUnknown, PerdureError, Unavailable
from perdure.model import Landed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.model import Append, Lease
    from perdure.protocols import Store

WAYS = ("once", "once", "once", "twice", "one batch", "lost")


class Courier:
    """Stands before a store. ``way`` says how the next commits travel; what landed is remembered."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.way = "once"
        self.crashed = False
        """Whether nobody is there any more who could give a lease back."""
        self.landed: list[Append] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def release(self, lease: Lease) -> None:
        """Give a lease back."""
        if self.crashed:
            raise Unavailable("the process has ended")
        self._store.release(lease)

    def append(self, batch: Sequence[Append]) -> list[Landed | PerdureError]:
        """Send commits on."""
        (item,) = batch
        if self.way == "one batch":
            first, second = self._store.append([item, item])
        else:
            (first,) = second, *_ = self._store.append([item])
            if self.way == "twice":
                (second,) = self._store.append([item])
        if isinstance(first, Landed):
            self.landed.append(item)
            assert first.id == item.id
            if second is not first:
                assert second == Landed(item.id, again=True)
        else:
            assert type(first) is type(second)
        if self.way == "lost":
            raise OutcomeUnknown("the answer was lost on the way", item.id)
        return [first]
