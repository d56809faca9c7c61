"""The inbox: inputs posted by anyone, sealed, and taken by the writer in the very commit that answers them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.errors import Corrupted, InvalidInput
from perdure.model import InboxEntry
from perdure.session.inbox_entries import Message, open_entry, posted
from perdure.session.wakes import CRON, WAKE, Waiting, sort_out, wake_entry, words_of
from perdure.system import faults
from perdure.system.flow import Do, Flow

if TYPE_CHECKING:
    from perdure.model import InboxEntry
    from perdure.session.journal import Journal

LOOK = 100
"""How far into an inbox is looked at least."""


class Inbox:
    """The inbox of a session as its writer sees it: inputs are given out here, and taken by the next commit."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.wakes_at: int | None = None
        """When the session is to be woken next, as far as the inbox told when it was last looked at."""
        self.cancellation: Message | None = None
        """What stops the session, once it was seen in the inbox."""

    def take(self, limit: int = 100) -> Flow[list[Message]]:
        """Waiting messages, oldest first; the next commit takes them, together with what you made of them.

        Until that commit nothing is taken: after a crash they are all there again. Calling this twice before a
        commit gives only those not given yet. What is to be given later is given once its time has come.
        """
        self._journal.guard.check()
        if self._journal.catching_up is not None:
            recorded = self._journal.catching_up.took()
            if recorded is not None:
                return recorded
        # What a commit on its way takes still lies there, and would be given twice.
        yield from self._journal.resend()
        waiting = yield from self.look(limit)
        new: list[Message] = []
        for entry in waiting.ready[:limit]:
            message = open_entry(self._journal.kernel, entry)
            if entry.kind in (WAKE, CRON):
                message = yield from self._woken(entry, message)
            new.append(message)
        self._journal.takes.extend(new)
        # What was taken back goes with them, and is told to nobody.
        self._journal.takes.extend(open_entry(self._journal.kernel, e) for e in waiting.void)
        return new

    def look(self, limit: int = 1) -> Flow[Waiting]:
        """What waits in the inbox by now; enough of it to find so many messages."""
        # A cancellation may stand behind what was posted before it.
        size = max(limit, LOOK) + len(self._journal.takes)
        while True:
            entries: list[InboxEntry] = yield Do(self._journal.kernel.store.inbox, (self._journal.id, size))
            found = sort_out(entries, {e.key for e in self._journal.takes}, self._journal.kernel.clock.wall())
            enough = len(found.ready) >= limit and not any(e.kind == CRON for e in found.ready)
            if enough or len(entries) < size:
                break
            size *= 4
        self.wakes_at = min((e.at for e in found.ahead), default=None)
        if found.cancels and self.cancellation is None:
            self.cancellation = open_entry(self._journal.kernel, found.cancels[0])
        return found

    def _woken(self, entry: InboxEntry, message: Message) -> Flow[Message]:
        """What is told at that time; where it repeats, the next time is posted before this one can be taken."""
        body = message.body
        if body["due"] != entry.at:
            raise Corrupted(
                f"session {self._journal.id!r}, inbox entry {entry.key!r:.60}", "it is not due when it says"
            )
        name = entry.key.split(":", 2)[2]
        if "cron" in body:
            # Posted again after a kill it is the same one, until its own time has come.
            asked = {"cron": body["cron"], "zone": body["zone"], "message": body["message"]}
            again = wake_entry(self._journal.kernel, self._journal.id, name, **asked, again=True)
            yield from posted(self._journal.kernel, again)
            self.wakes_at = again.at if self.wakes_at is None else min(self.wakes_at, again.at)
        faults.point("wake.after_repost")
        said = body["message"]
        return Message(message.key, message.kind, f"It is time: {words_of(body['due'])}." if said is None else said)

    def wake_later(self, name: str, **when: Any) -> Flow[bool]:
        """Have this session woken; the same name stands for the same wake."""
        entry = wake_entry(self._journal.kernel, self._journal.id, name, **when)
        try:
            new = yield from posted(self._journal.kernel, entry)
        except InvalidInput:
            if when.get("at") is not None:
                raise
            # Counted from now, the time differs at every attempt: the first one stands.
            return False
        self.wakes_at = entry.at if self.wakes_at is None else min(self.wakes_at, entry.at)
        return new

    def take_by_key(self, kind: str, key: str) -> Flow[Message | None]:
        """The waiting decision or outcome of that key, to be taken by the next commit."""
        yield from self._journal.resend()
        entries: list[InboxEntry] = yield Do(self._journal.kernel.store.inbox, (self._journal.id, 1, key))
        if not entries or entries[0].kind != kind or any(e.key == key for e in self._journal.takes):
            return None
        message = open_entry(self._journal.kernel, entries[0])
        self._journal.takes.append(message)
        return message
