"""Wakes: when an input that is given later is due, by a time, a delay or a cron expression; what of an inbox is due by
now, ahead, missed, taken back or changed."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import InvalidInput, MissingExtra
from perdure.history.reported_outcomes import REPORTED
from perdure.session.tools.declaration import seconds

if TYPE_CHECKING:
    from perdure.model import InboxEntry

WAKE, CRON = "wake", "cron"
TOLD = ("message", WAKE, CRON)
"""The kinds of entries that are given to whoever takes from the inbox."""
"""Kinds of inputs that are given at a later time, once or again and again."""
UNWAKE, WITHDRAW, EDIT = "unwake", "withdraw", "edit"
"""Kinds of inputs that say something of other inputs: that a wake is taken back, or a message, or says something
else."""
VOID = "void"
"""The kind that an input has in the checkpoint that took it and told it to nobody: it was taken back."""
FURTHEST = 100 * 365 * 24 * 3600 * 1000
"""How many ms ahead something may be due."""


def due_at(now: int, at: datetime | int | None, delay: str | float | None, cron: str | None, zone: str) -> int:
    """The moment (ms since the epoch) that was asked for, in exactly one of the three ways.

    >>> due_at(1000, None, "2s", None, "UTC"), due_at(1000, 7000, None, None, "UTC")
    (3000, 7000)
    """
    if (at is not None) + (delay is not None) + (cron is not None) != 1:
        raise InvalidInput('say when, in exactly one way: at=datetime or ms, delay="2h", or cron="0 9 * * *"')
    if cron is not None:
        return next_after(cron, zone, now)
    if delay is not None:
        due = now + int(seconds(delay) * 1000)
    elif isinstance(at, datetime):
        if at.tzinfo is None:
            raise InvalidInput(f"{at.isoformat()} names no time zone: use datetime(..., tzinfo=UTC) or a ZoneInfo")
        due = int(at.timestamp() * 1000)
    elif isinstance(at, int) and not isinstance(at, bool):
        due = at
    else:
        raise InvalidInput(f"at= is a datetime with a time zone, or ms since 1970, not {at!r:.40}")
    if not 0 <= due <= now + FURTHEST:
        raise InvalidInput(f"{due} ms since 1970 is no time to be woken at: it must be within 100 years")
    return due


def next_after(cron: str, zone: str, after: int) -> int:
    """The first moment after ``after`` that a cron expression names on the clocks of a time zone."""
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        raise MissingExtra("cronsim", "agent", error) from None
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        start = datetime.fromtimestamp(after / 1000, ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInput(f"there is no time zone {zone!r:.60}: name one such as Europe/Berlin or UTC") from None
    try:
        found: Any = next(CronSim(cron, start))
    except (CronSimError, StopIteration):
        raise InvalidInput(f'{cron!r:.60} names no time: a cron expression is such as "0 9 * * *"') from None
    return int(found.timestamp() * 1000)


class Waiting(NamedTuple):
    """What waits in an inbox, sorted out."""

    ready: list[InboxEntry]
    """Messages, and what was to be given at a time that has come."""
    ahead: list[InboxEntry]
    """What is to be given later."""
    void: list[InboxEntry]
    """What was taken back, and what took it back."""
    cancels: list[InboxEntry]
    edits: dict[str, list[InboxEntry]]
    """What says that a message says something else, by the message's key, the last one last."""
    reported: list[InboxEntry]
    """Outcomes of calls, which are asked for by their keys."""


def is_of_another(kind: str) -> bool:
    """Whether an input only says something of another one, and is told to nobody.

    >>> is_of_another(WITHDRAW), is_of_another("message")
    (True, False)
    """
    return kind in (UNWAKE, WITHDRAW, EDIT, VOID)


def withdrawal_of(key: str) -> str:
    """The key of the input that takes a message back: once, and for good."""
    return f"{WITHDRAW}:{key}"


def sort_out(entries: list[InboxEntry], given: set[str], now: int) -> Waiting:
    """Sort entries out that were not given yet. Decisions and outcomes are asked for by their keys instead."""
    found = Waiting([], [], [], [], {}, [])
    newest = {e.key.split(":", 2)[2]: e.key for e in entries if e.kind == CRON and e.at <= now}
    off = {e.key.split(":", 2)[2]: e.seq for e in entries if e.kind == UNWAKE}
    back = {e.key.partition(":")[2]: e.seq for e in entries if e.kind == WITHDRAW}
    messages = {e.key: e for e in entries if e.kind == "message" and e.seq > back.get(e.key, -1)}
    for e in (e for e in entries if e.key not in given):
        of = e.key.split(":", 2)[2] if e.kind == EDIT else ""
        timer = e.key.split(":", 2)[2] if e.kind in (WAKE, CRON) else ""
        gone = (e.kind == "message" and e.key not in messages) or (e.kind == EDIT and of not in messages)
        if e.kind in (UNWAKE, WITHDRAW) or gone or (timer and e.seq < off.get(timer, -1)):
            found.void.append(e)
        elif of:
            found.edits.setdefault(of, []).append(e)
        elif e.kind in (WAKE, CRON) and e.at > now:
            found.ahead.append(e)
        elif e.kind == CRON and newest[e.key.split(":", 2)[2]] != e.key:
            # A process died when it had posted the next time, which has come, too.
            found.void.append(e)
        elif e.kind in TOLD:
            found.ready.append(e)
        elif e.kind == "cancel":
            found.cancels.append(e)
        elif e.kind in REPORTED:
            found.reported.append(e)
    return found
