"""Which sessions ``perdure ls`` means beyond what stores can look for, in which order, and looking again and again."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import InvalidInput, NotFound
from perdure.shapes.sessions import step_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.database import Database
    from perdure.model import SessionRow

SORTS = ("id", "updated", "created", "owner", "agent", "status", "step", "inbox")
MOST = 100_000
"""Sessions that are read to put them in an order that stores do not keep."""
PAUSE = 1.0
FAILED = ("failed", "in_doubt")
_UNITS = {"s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}


class Age(NamedTuple):
    """How long ago a session was written last."""

    ms: int
    older: bool

    def bounds(self, now: int) -> dict[str, int]:
        """What a store is asked for."""
        return {"before": now - self.ms} if self.older else {"since": now - self.ms}


def parse_age(text: str) -> Age:
    """``2h``: written in the last two hours; ``+2h``: not since.

    >>> parse_age("2h"), parse_age("+90s")
    (Age(ms=7200000, older=False), Age(ms=90000, older=True))
    """
    found = re.fullmatch(r"(\+?)([0-9]{1,9})(s|m|min|h|d|w)", text)
    if found is None:
        raise InvalidInput(f"--age {text!r:.40} is no time: write 30min, 2h or 7d; +2h for longer ago than that")
    return Age(int(found[2]) * _UNITS[found[3]], bool(found[1]))


def check_sort(sort: str) -> str:
    """A known order, or ``InvalidInput``."""
    if sort not in SORTS:
        raise InvalidInput(f"there is no order {sort[:40]!r}: it is one of {', '.join(SORTS)}")
    return sort


def in_order(rows: list[SessionRow], sort: str) -> list[SessionRow]:
    """Text from a to z; times, steps and inboxes with the largest first."""
    if sort in ("owner", "agent", "status"):
        return sorted(rows, key=lambda r: (getattr(r, sort), r.id))
    largest: dict[str, Callable[[SessionRow], int]] = {
        "created": lambda r: r.created,
        "step": step_of,
        "inbox": lambda r: r.pending,
    }
    return sorted(rows, key=lambda r: (-largest[sort](r), r.id))


def sieve(db: Database, tag: str | None, failed: str | None) -> Callable[[SessionRow], bool] | None:
    """Whether a session has a tag, and has failed at a step; None when nothing of that is asked."""
    if tag is None and failed is None:
        return None

    def fits(row: SessionRow) -> bool:
        if tag is not None and not any(h.branch == f"tags/{tag}" for h in row.heads):
            return False
        return failed is None or _failed_at(db, row, failed)

    return fits


def _failed_at(db: Database, row: SessionRow, failed: str) -> bool:
    if row.status not in FAILED:
        return False
    if failed.isascii() and failed.isdigit():
        return step_of(row) == int(failed[:18])
    from perdure.cli.session_at import open_matters, open_place

    try:
        reading = open_place(db, f"{row.id}@").reading
    except NotFound:
        # It has gone since it was listed.
        return False
    effects, _ = open_matters(reading)
    tools: set[Any] = {e["tool"] for e in effects if e["status"] == "in_doubt"}
    return failed in tools | {reading.checkpoint.more.get("tool")}


def again_and_again(look: Callable[[], Any], show: Callable[[Any], None], clear: Callable[[], None]) -> None:
    """Show what there is, and again whenever it has changed, until somebody interrupts."""
    seen: Any = None
    while True:
        found = look()
        if found != seen:
            clear()
            show(found)
            seen = found
        time.sleep(PAUSE)
