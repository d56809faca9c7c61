"""The cursor of whoever wants only what comes from now on: it stands behind every change there is at this moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.stores import cursors
from perdure.stores.file import changes
from perdure.stores.postgres import read

if TYPE_CHECKING:
    from perdure.protocols import Store


def latest(store: Store) -> str:
    """A cursor behind the newest change, without reading those before it.

    A scan that begins says in its cursor where it will end: that is where this one stands.
    """
    said = store.changes(None, 1).cursor
    if "/" in said:
        snapshot = read.parse(said)
        return str(read.Cursor(snapshot.epoch, snapshot.new or snapshot.old))
    epoch, dot, rest = said.partition(".")
    if dot:
        seq, _, scan = rest.partition(".")
        newest = max(int(seq), int(scan))
        return str(cursors.Cursor(epoch, newest, newest))
    return changes.at_the_end(said)
