"""The inbox: inputs posted by anyone, sealed, and taken by the writer in the very commit that answers them.

An entry is bound to its session, key and kind, verified when opened, and limited in size. Some are given later, once or
by cron: what of an inbox is due, ahead, missed or taken back is sorted out here.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import Corrupted, InvalidInput, LimitExceeded, PerdureError
from perdure.model import InboxEntry
from perdure.record import codec
from perdure.session.wakes import due_at
from perdure.state.values import Wire
from perdure.system import faults
from perdure.system.flow import Do, Flow
from perdure.system.times import when

if TYPE_CHECKING:
    from perdure.kernel import Kernel
    from perdure.record.codec import Body
    from perdure.session.journal import Journal

MAX_MESSAGE = 1024 * 1024
"""The most bytes one posted input may have."""
LOOK = 100
"""How far into an inbox is looked at least."""
WAKE, CRON = "wake", "cron"
"""Kinds of inputs that are given at a later time, once or again and again."""


class Message(NamedTuple):
    """A posted input."""

    key: str
    kind: str
    body: Any


def seal_entry(kernel: Kernel, session: str, key: str, kind: str, body: Any, *, at: int | None = None) -> InboxEntry:
    """Seal an input, bound to its session, key and kind. The body holds no blobs: it is limited in size."""
    plaintext = codec.encode(Wire(None).value(body, ("message",)))
    if len(plaintext.data) > MAX_MESSAGE:
        msg = f"this message has {len(plaintext.data)} bytes, over the limit of {MAX_MESSAGE}: post a reference to it"
        raise LimitExceeded(msg)
    digest = _digest(kernel, kernel.keys.current, session, key, kind, plaintext)
    name = kernel.keys.current.encode()
    sealed = bytes((len(name),)) + name + codec.seal(plaintext)
    return InboxEntry(session, key, kind, kernel.clock.wall() if at is None else at, digest, sealed)


def open_entry(kernel: Kernel, entry: InboxEntry) -> Message:
    """Verify an input and open it."""
    where = f"session {entry.session!r}, inbox entry {entry.key!r:.60}"
    if not entry.body:
        raise Corrupted(where, "its body is missing")
    size = entry.body[0]
    try:
        name = entry.body[1 : 1 + size].decode("ascii")
    except UnicodeDecodeError as e:
        raise Corrupted(where, "the key's name cannot be read") from e
    body = codec.unseal(entry.body[1 + size :], where, MAX_MESSAGE)
    if not hmac.compare_digest(_digest(kernel, name, entry.session, entry.key, entry.kind, body), entry.digest):
        raise Corrupted(where, "the digest does not match")
    return Message(entry.key, entry.kind, kernel.decode(body, where))


def _digest(kernel: Kernel, name: str, session: str, key: str, kind: str, body: Body) -> bytes:
    about = codec.encode([session, key, kind]).data
    return codec.digest(kernel.keys, name, b"inbox\0", (about, body.data), f"inbox of session {session!r}")


def posted(kernel: Kernel, entry: InboxEntry) -> Flow[bool]:
    """Post one input; False when its key was there already."""
    answers: list[bool | PerdureError] = yield Do(kernel.store.post, ([entry],))
    if isinstance(answers[0], PerdureError):
        raise answers[0]
    return answers[0]


def wake_entry(
    kernel: Kernel, session: str, name: str, *, at: Any = None, delay: Any = None, cron: str | None = None,
    zone: str = "UTC", message: Any = None, again: bool = False,
) -> InboxEntry:  # fmt: skip
    """Seal what is given to a session at a later time: the entry's own time is when it is due.

    Its key says for which time it stands when it follows another one of the same name (``again``).
    """
    due = due_at(kernel.clock.wall(), at, delay, cron, zone)
    body = {"due": due, "message": message, **({"cron": cron, "zone": zone} if cron is not None else {})}
    key = f"wake:{due if again else ''}:{name}"
    return seal_entry(kernel, session, key, CRON if cron is not None else WAKE, body, at=due)


class Waiting(NamedTuple):
    """What waits in an inbox, sorted out."""

    ready: list[InboxEntry]
    """Messages, and what was to be given at a time that has come."""
    ahead: list[InboxEntry]
    """What is to be given later."""
    void: list[InboxEntry]
    """What was taken back, and what took it back."""
    cancels: list[InboxEntry]


def sort_out(entries: list[InboxEntry], given: set[str], now: int) -> Waiting:
    """Sort entries out that were not given yet. Decisions and outcomes are asked for by their keys instead."""
    found = Waiting([], [], [], [])
    newest = {e.key.split(":", 2)[2]: e.key for e in entries if e.kind == CRON and e.at <= now}
    off = {e.key.split(":", 2)[2]: e.seq for e in entries if e.kind == "unwake"}
    for e in (e for e in entries if e.key not in given):
        if e.kind == "unwake" or (e.kind in (WAKE, CRON) and e.seq < off.get(e.key.split(":", 2)[2], -1)):
            found.void.append(e)
        elif e.kind in (WAKE, CRON) and e.at > now:
            found.ahead.append(e)
        elif e.kind == CRON and newest[e.key.split(":", 2)[2]] != e.key:
            # A process died when it had posted the next time, which has come, too.
            found.void.append(e)
        elif e.kind in ("message", WAKE, CRON):
            found.ready.append(e)
        elif e.kind == "cancel":
            found.cancels.append(e)
    return found


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
        return Message(message.key, message.kind, f"It is time: {when(body['due'])}." if said is None else said)

    def wake_later(self, name: str, **asked: Any) -> Flow[bool]:
        """Have this session woken; the same name stands for the same wake."""
        entry = wake_entry(self._journal.kernel, self._journal.id, name, **asked)
        try:
            new = yield from posted(self._journal.kernel, entry)
        except InvalidInput:
            if asked.get("at") is not None:
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
