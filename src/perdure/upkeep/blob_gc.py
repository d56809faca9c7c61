"""Removing blobs that nothing refers to (invariant 13): mark, wait, recheck, delete.

A blob is durable before the commit that names it, so a young blob without a reference may be one whose commit is on
its way. The grace period is the longest such a commit may take; whoever puts a blob again renews it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from perdure.errors import InvalidInput
from perdure.system import faults

if TYPE_CHECKING:
    from perdure.kernel import Kernel

GRACE = 3600.0
"""Seconds a blob without a reference is left alone after it was last put."""


class Collected(NamedTuple):
    """What a collection did."""

    deleted: int
    kept: int
    """Referred to."""
    waiting: int
    """Referred to by nothing (yet), and too young to tell, or put again while we looked."""


def collect(kernel: Kernel, grace: float = GRACE) -> Collected:
    """Delete the blobs that no checkpoint refers to and that were last put more than ``grace`` seconds ago."""
    if not grace >= 0:
        raise InvalidInput(f"grace is a number of seconds, at least 0: {grace!r:.40}")
    # Taken before anything is looked at: a blob put from here on is younger than that.
    cutoff = kernel.clock.wall() - int(grace * 1000)
    held = dict(kernel.blobs.refs())
    # Mark. What is old and unmarked has had its grace period already: that was the wait.
    doubtful = {ref for ref, at in held.items() if at < cutoff}
    named = held.keys() & set(kernel.store.blob_refs())
    unmarked = doubtful - named
    waiting = len(held.keys() - named - doubtful)
    faults.point("collect.marked")
    deleted = 0
    if unmarked:
        # Recheck: a commit that was on its way when we marked may have landed since.
        unmarked -= set(kernel.store.blob_refs())
        faults.point("collect.rechecked")
        for ref in sorted(unmarked):
            # The last word is the blob store's: one that was put again since is somebody's who relies on it.
            if kernel.blobs.delete(ref, cutoff):
                deleted += 1
            else:
                waiting += 1
        faults.point("collect.deleted")
    return Collected(deleted, len(held) - deleted - waiting, waiting)
