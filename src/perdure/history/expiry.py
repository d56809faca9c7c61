"""How a handle came to its state: whether its session was there, and if it no longer was, why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from perdure.history.hydrate import head_of, load_head, origins
from perdure.model import TAG_PREFIX

if TYPE_CHECKING:
    from perdure.kernel import Kernel
    from perdure.model import SessionRow


class Origin(NamedTuple):
    """Where a handle's state comes from.

    >>> import perdure
    >>> with perdure.open("memory://") as db, db.session("trip-42") as s:
    ...     s.origin.kind
    'created'
    """

    kind: Literal["created", "resumed", "restarted"]
    """"created": the session is new; "resumed": it was there; "restarted": an earlier one of this id is gone."""
    reason: str = ""
    """Why the earlier one is gone: "expired", or what was said when it was deleted."""
    began: int | None = None
    """When the earlier one had begun (ms)."""
    ended: int | None = None
    """When the earlier one was removed (ms)."""


def origin_of(row: SessionRow | None) -> Origin:
    """What a session that has no checkpoints begins from: nothing, or a tombstone."""
    if row is None or not row.reason:
        return Origin("created")
    return Origin("restarted", row.reason, row.created, row.updated)


def expired(kernel: Kernel, row: SessionRow) -> bool:
    """True when the TTL of every branch has run out: the store's own column is only a hint where to look.

    While an input waits in its inbox a session does not expire: somebody was told that it would be answered.
    """
    if row.pending:
        return False
    now = kernel.clock.wall()
    lines = origins(kernel, row.id)
    for head in row.heads:
        if head.branch.startswith(TAG_PREFIX):
            # A tag is one row, and what it names need not be there any more.
            env = lines[head_of(kernel, row, head.branch).line][2]
        else:
            point = load_head(kernel, row, head.branch).point
            assert point is not None
            env = point.envelope
        if env.ttl is None or now < env.at + env.ttl * 1000:
            return False
    return True
