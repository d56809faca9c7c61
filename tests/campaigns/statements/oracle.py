"""Whether what was said is so, found out without asking who said it: by what lies open, and by what then happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.model import Status

if TYPE_CHECKING:
    from tests.campaigns.statements.world import World

TIMERS = ("wake", "cron")
OVER = (Status.CLOSED, Status.CANCELLED)


def left_open(w: World) -> list[str]:
    """What in a session waits for anybody or anything; nothing of it may be called done."""
    row, now = w.row(), w.clock.wall()
    if row is None or row.reason:
        return []
    if row.expires is not None and row.expires <= now and not row.pending:
        return []
    found = [
        f"{e.kind} in its inbox"
        for e in w.inbox()
        if e.kind == "message"
        # Nobody but an agent hears these, and a closed session no more.
        or (row.agent and row.status != Status.CLOSED and (e.kind == "cancel" or (e.kind in TIMERS and e.at <= now)))
    ]
    if not row.heads:
        return found
    if row.status in OVER:
        # What had begun when it was stopped nobody finds out by himself.
        told = {e.key for e in w.inbox()}
        return found + [
            f"effect {e['status']}"
            for e in w.book().get("effects", {}).values()
            if e["status"] in ("started", "in_doubt") and f"outcome:{e['id']}" not in told
        ]
    if row.status not in (Status.IDLE, Status.SLEEPING):
        found.append(f"status {row.status}")
    book = w.book()
    found += [f"effect {e['status']}" for e in book.get("effects", {}).values() if e["status"] in OPEN]
    found += ["approval pending" for a in book.get("approvals", {}).values() if a["status"] == "pending"]
    if row.agent and any(e.kind in TIMERS for e in w.inbox()):
        found.append("a timer")
    return found


OPEN = ("planned", "started", "waiting", "in_doubt")


def goes_round(w: World) -> int:
    """How often a session with open work was taken and got no further, when that is too often to be by chance."""
    work = w.work()
    # A last try may have got further before its worker died.
    return work.tries - 1 if work is not None and work.tries > 3 and left_open(w) else 0


def gets_further(w: World, hours: float) -> bool:
    """Whether open work gets further by itself when time passes."""
    before = w.mark()
    w.pass_time(hours)
    return w.mark() != before or not left_open(w)
