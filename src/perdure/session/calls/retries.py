"""When a call whose answer was lost is made again: how often, after which pauses, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.session.calls.late_returns import runs_on
from perdure.session.tools.declaration import Tool
from perdure.system.flow import Flow, Wait

if TYPE_CHECKING:
    from perdure.protocols import Clock
    from perdure.state.document import TrackedDict


READ_TRIES = 3
"""How often a read is tried whose answer is lost."""
FIRST_PAUSE, LONGEST_PAUSE = 1_000, 60_000
"""Ms before a call whose answer was lost is tried, or looked up, again, at first and at most; doubled, and durable."""
RETRY_FOR = 24 * 3600
"""Seconds for which a call whose answers are lost is tried again under its id before a person is asked."""


def pause_after(attempt: int) -> int:
    """Ms before a call is tried again whose answer was lost.

    >>> [pause_after(n) for n in (1, 2, 3, 20)]
    [1000, 2000, 4000, 60000]
    """
    return min(LONGEST_PAUSE, FIRST_PAUSE << min(attempt - 1, 16))


def is_left(clock: Clock, effect: str) -> Flow[bool]:
    """Wait a while for an earlier attempt at a read that is still under way; whether it has come to its end."""
    for pause in range(1, READ_TRIES + 1):
        if not runs_on(effect):
            return True
        yield Wait(clock, pause_after(pause))
    return not runs_on(effect)


def may_be_retried(tool: Tool, record: TrackedDict, clock: Clock) -> bool:
    """Whether a call whose answer was lost may be made now, under its id, without a person."""
    now = clock.wall()
    return key_holds(tool, record["at"], clock) and now - record.get("lost_since", now) < RETRY_FOR * 1000


def key_holds(tool: Tool, began: int, clock: Clock) -> bool:
    """Whether the other side still knows a call by its id."""
    valid = tool.key_valid_for
    # A clock that was set back, or was fast when it began, tells no age: the key may be long forgotten.
    return valid is None or 0 <= clock.wall() - began < valid * 1000
