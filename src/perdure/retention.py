"""What leaves a store, and when: expired sessions, old checkpoints, unused blobs."""

from __future__ import annotations

from perdure.hydrate import load_head, look
from perdure.kernel import Kernel


def expire(kernel: Kernel, session: str, token: int | None) -> bool:
    """Remove a session whose TTL has run out, by the verified word of its newest checkpoint; leaves a tombstone."""
    row = look(kernel, session)
    newest = 0
    for head in row.heads:
        point = load_head(kernel, row, head.branch).point
        assert point is not None
        env = point.envelope
        if env.ttl is None:
            return False
        newest = max(newest, env.at + env.ttl * 1000)
    if kernel.clock.wall() < newest:
        return False
    kernel.store.drop(session, token, "expired")
    return True
