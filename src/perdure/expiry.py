"""Whether a session's time has run out, by the verified word of its newest checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.hydrate import load_head

if TYPE_CHECKING:
    from perdure.kernel import Kernel
    from perdure.model import SessionRow


def expired(kernel: Kernel, row: SessionRow) -> bool:
    """True when the TTL of every branch has run out: the store's own column is only a hint where to look."""
    now = kernel.clock.wall()
    for head in row.heads:
        point = load_head(kernel, row, head.branch).point
        assert point is not None
        env = point.envelope
        if env.ttl is None or now < env.at + env.ttl * 1000:
            return False
    return True
