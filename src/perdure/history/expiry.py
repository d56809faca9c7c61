"""When a session has expired: its time has run out by the store's clock, and by every clock that wrote to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.errors import Gone
from perdure.history.hydrate import head_of, load_head, look, origins
from perdure.model import TAG_PREFIX, Status
from perdure.system.commands import quoted
from perdure.system.commands import typed_by_anybody as typed

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


def living(kernel: Kernel, session: str) -> SessionRow:
    """What is known of a session; ``NotFound`` when there is none, ``Gone`` when its time is over, swept or not."""
    row = look(kernel, session)
    if expired(kernel, row):
        raise has_expired(session, f"{revive(session)} brings it back as it was, and a message to it begins anew")
    return row


def has_expired(session: str, next: str) -> Gone:
    """The error that says so, with what to do."""
    return Gone(f"session {session!r} has expired: {next}", Status.EXPIRED.value)


def revive(session: str) -> str:
    """What to type to have it back."""
    return typed(f"revive {quoted(session)}")


def ended(kernel: Kernel, session: str) -> str:
    """Why a session begins anew when it is next run: "expired", or what its tombstone says; "" while it lives.

    ``NotFound`` when there never was one.
    """
    try:
        row = look(kernel, session)
    except Gone as gone:
        return gone.reason
    return Status.EXPIRED.value if expired(kernel, row) else ""


def _awaited(kernel: Kernel, row: SessionRow) -> bool:
    assert row.expires is not None
    waiting = kernel.store.inbox(row.id, row.pending) if row.pending else []
    # Whoever begins anew is given what came after all that was taken, and nothing from before it.
    taken = row.posts - row.pending
    return any(entry.kind in LATER or entry.at < row.expires or entry.seq <= taken for entry in waiting)
