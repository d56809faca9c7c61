"""Whether a session's time has run out, by the verified word of its newest checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.hydrate import head_of, load_head, origins
from perdure.model import TAG_PREFIX

if TYPE_CHECKING:
    from perdure.kernel import Kernel
    from perdure.model import SessionRow


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
