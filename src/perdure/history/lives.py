"""The lives of a session: one that has ended may begin anew under its id, and is not the same one then.

The first life is 0. A later one is named by when it began (ms), and always by more than the one whose tombstone it
found. Every checkpoint of a later life says in which it was made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.errors import Corrupted, KeyMismatch
from perdure.history.hydrate import origins
from perdure.model import ASIDE
from perdure.record import tombstones
from perdure.record.tombstones import LIFE, Tombstone

if TYPE_CHECKING:
    from perdure.kernel import Kernel
    from perdure.model import SessionRow


def life_of(kernel: Kernel, session: str) -> int:
    """Which life a session with checkpoints is in, by their verified word."""
    lines = origins(kernel, session)
    return lines[min(lines)][2].x.get(LIFE, 0) if lines else 0


def aside_id(session: str, life: int) -> str:
    """The id under which a life that has expired is kept."""
    return f"{ASIDE}{life}:{session}"


def of_aside(id: str) -> tuple[int, str] | None:
    """The life and the session that are kept under an id; None when none are."""
    life, colon, session = id.removeprefix(ASIDE).partition(":")
    return (int(life), session) if colon and life.isascii() and life.isdigit() else None


def next_life(kernel: Kernel, row: SessionRow | None) -> int:
    """Which life begins on a row without checkpoints; ``Corrupted`` when the end of the last one is forged."""
    if row is None or not row.reason:
        return 0
    try:
        last = tombstones.read(kernel.keys, kernel.store_id, row.id, row.reason).life
    except Corrupted:
        if kernel.keys.current:
            raise
        # Without a key anybody may delete a session; only a witness asks whether it was said as we say it.
        last = 0
    return max(last + 1, kernel.clock.wall())


def tombstone_of(kernel: Kernel, row: SessionRow) -> Tombstone | str:
    """What a tombstone says; or what is wrong with it."""
    try:
        return tombstones.read(kernel.keys, kernel.store_id, row.id, row.reason)
    except Corrupted as e:
        return e.what
    except KeyMismatch as e:
        return str(e)


def end_session(kernel: Kernel, row: SessionRow, token: int | None, why: str, *, keep_waiting: bool = False) -> None:
    """Delete a session and leave a signed tombstone."""
    kept = of_aside(row.id) if row.id.startswith(ASIDE) else None
    life = kept[0] if kept is not None else life_of(kernel, row.id)
    reason = tombstones.sign(kernel.keys, kernel.store_id, row, life, why)
    kernel.store.drop(row.id, token, reason, keep_waiting=keep_waiting)
