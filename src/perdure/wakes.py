"""Waking a session later, or stopping it: entries of its inbox that anyone may post without its lease."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from perdure.errors import InvalidInput, PerdureError
from perdure.flow import Do, Flow
from perdure.inbox import seal_entry, wake_entry
from perdure.names import check_name, check_session

if TYPE_CHECKING:
    from datetime import datetime

    from perdure.kernel import Kernel
    from perdure.model import InboxEntry


class WakeFlows:
    """The flows of a database that wake sessions, and stop them."""

    kernel: Kernel

    if TYPE_CHECKING:

        def _usable(self) -> None: ...

    def _wake_flow(
        self,
        session: str,
        at: datetime | int | None = None,
        *,
        delay: str | float | None = None,
        cron: str | None = None,
        zone: str = "UTC",
        message: Any = None,
        key: str | None = None,
    ) -> Flow[bool]:
        """Put a message into a session's inbox that is given to it when its time has come, durably.

        ``at`` is a datetime with a time zone or ms since 1970, ``delay`` is such as "2h", ``cron`` such as
        "0 9 * * *" on the clocks of ``zone``, again and again; missed times are made up for once. With ``key`` it is
        put there only once, and can be cancelled; False when it was there already.
        """
        self._usable()
        name = check_name(key, "wake key", 100) if key is not None else os.urandom(8).hex()
        entry = wake_entry(
            self.kernel, check_session(session), name, at=at, delay=delay, cron=cron, zone=zone, message=message
        )
        return (yield from post_wake(self.kernel, entry, exact=delay is None and cron is None))

    def _cancel_wake_flow(self, session: str, key: str) -> Flow[None]:
        """Take back what ``wake`` put there under this key, so far as it has not happened yet."""
        self._usable()
        name = check_name(key, "wake key", 100)
        entry = seal_entry(self.kernel, check_session(session), f"unwake:{os.urandom(8).hex()}:{name}", "unwake", None)
        yield from _posted(self.kernel, entry)

    def _cancel_flow(self, session: str, *, by: str = "", reason: str = "") -> Flow[None]:
        """Stop an agent: it ends as soon as it notices, and goes on only with a new message.

        A call that was started stays open and is settled as its tool declares; what waited for approval is withdrawn.
        """
        self._usable()
        body = {"by": check_name(by, "name", empty=True), "reason": reason[:500], "at": self.kernel.clock.wall()}
        entry = seal_entry(self.kernel, check_session(session), f"cancel:{os.urandom(8).hex()}", "cancel", body)
        yield from _posted(self.kernel, entry)


def post_wake(kernel: Kernel, entry: InboxEntry, *, exact: bool) -> Flow[bool]:
    """Post a wake; one whose time was counted from now is the same one when it was there already."""
    try:
        return (yield from _posted(kernel, entry))
    except InvalidInput:
        if not exact:
            return False
        name = entry.key.split(":", 2)[2]
        raise InvalidInput(f"there is a wake {name!r:.60} at another time: cancel it, or use another key") from None


def _posted(kernel: Kernel, entry: InboxEntry) -> Flow[bool]:
    answers: list[bool | PerdureError] = yield Do(kernel.store.post, ([entry],))
    if isinstance(answers[0], PerdureError):
        raise answers[0]
    return answers[0]
