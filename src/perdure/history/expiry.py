"""When a session has expired: its time has run out by the store's clock, and by every clock that wrote to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.history.hydrate import head_of, load_head, origins
from perdure.model import TAG_PREFIX

if TYPE_CHECKING:
    from perdure.kernel import Kernel
    from perdure.model import SessionRow

LATER = ("wake", "cron")
"""Kinds of inputs whose time is when they are due."""


def expired(kernel: Kernel, row: SessionRow) -> bool:
    """True when the TTL of every branch has run out. One wrong clock may delay that, and never brings it about.

    The store's clock is one that nobody can set ahead (of a server, or of the boot), and the verified checkpoints must
    agree with its column. An input that was posted in time keeps a session: somebody was told that it would be
    answered. One that came too late is for whoever begins anew.
    """
    if not row.over or _awaited(kernel, row):
        return False
    lines = origins(kernel, row.id)
    for head in row.heads:
        if head.branch.startswith(TAG_PREFIX):
            # A tag is one row, and what it names need not be there any more.
            env = lines[head_of(kernel, row, head.branch).line][2]
        else:
            point = load_head(kernel, row, head.branch).point
            assert point is not None
            env = point.envelope
        if env.ttl is None or row.now < env.at + env.ttl * 1000:
            return False
    return True


def _awaited(kernel: Kernel, row: SessionRow) -> bool:
    assert row.expires is not None
    waiting = kernel.store.inbox(row.id, row.pending) if row.pending else []
    # Whoever begins anew is given what came after all that was taken, and nothing from before it.
    taken = row.posts - row.pending
    return any(entry.kind in LATER or entry.at < row.expires or entry.seq <= taken for entry in waiting)
