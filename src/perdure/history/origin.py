"""How a handle came to its state: whether its session was there, and if it no longer was, why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
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
    return Origin("restarted", row.why_gone, row.created, row.updated)
