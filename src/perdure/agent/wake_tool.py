"""A tool by which an agent has itself woken: at a time, after a while, or again and again."""

from __future__ import annotations

from datetime import datetime

from perdure.errors import InvalidInput
from perdure.session.cron import words_of
from perdure.session.tools import Context, NotDone, tool


@tool(if_unsure="retry")
async def wake_me(
    message: str, ctx: Context, at: str = "", delay: str = "", cron: str = "", time_zone: str = "UTC"
) -> str:
    """Be woken later: the message is then given to you. Say when in exactly one way.

    Args:
        message: what you want to be told then
        at: a time such as 2026-11-30T09:00:00+01:00
        delay: how long from now, such as 90s, 45m, 2h, 7d
        cron: again and again, such as 0 9 * * 1-5
        time_zone: whose clocks cron means, such as Europe/Berlin
    """
    try:
        moment = datetime.fromisoformat(at) if at else None
        when = {"delay": delay or None, "cron": cron or None, "zone": time_zone}
        await ctx.wake(moment, message=message, **when)
    except (InvalidInput, ValueError) as e:
        # Nothing was posted, and the model can say it better.
        raise NotDone(str(e)) from None
    return "you will be woken" if moment is None else f"you will be woken at {words_of(int(moment.timestamp() * 1000))}"
