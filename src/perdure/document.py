"""A tracked tree as a whole: its root, what changed in it since the last commit, and edits given as operations."""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.delta import APPEND, SET, SPLICE, Op
from perdure.tracked import TrackedDict

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.values import BlobRef


class Document:
    """One tracked tree: its root, its age, and where its blobs come from."""

    __slots__ = ("age", "bare", "readonly", "resolve", "root", "since")

    def __init__(
        self, raw: dict[str, Any], resolve: Callable[[BlobRef], Any], *, readonly: bool = False, bare: bool = False
    ) -> None:
        self.age = 0
        self.bare = bare
        """Nothing inside lists has to be wrapped: the tree is only read, and no blob stands in it."""
        self.since = 0
        self.readonly = readonly
        self.resolve = resolve
        self.root = TrackedDict(self, raw)
        self.settle()

    def collect(self) -> list[Op]:
        """The operations since the last :meth:`settle`; values are the live containers themselves."""
        out: list[Op] = []
        self.root.collect((), out)
        return out

    def settle(self) -> None:
        """Forget the changes: they are on their way into the store."""
        self.root.settle()
        # Containers born before now count as stored from here on; nothing has to be walked for that.
        self.age += 1

    def replace(self, raw: dict[str, Any]) -> None:
        """Put another tree in place of this one, as stored; handles on the root stay valid."""
        dict.clear(self.root)
        dict.update(self.root, raw)
        # Containers taken out before this belong to a tree that is gone: editing them is refused.
        self.root._born = self.since = self.age
        self.settle()


def edit(ops: list[Op], target: Any) -> None:
    """Carry operations out as edits, so that the next commit takes them."""
    for op in ops:
        code, path = op[0], op[1]
        at = target
        for part in path if code in (APPEND, SPLICE) else path[:-1]:
            at = at[part]
        if code == APPEND:
            at.extend(op[2])
        elif code == SPLICE:
            at[op[2] : op[2] + op[3]] = op[4]
        elif code == SET:
            at[path[-1]] = op[2]
        else:
            del at[path[-1]]
