"""The inbox: inputs posted by anyone, sealed, and taken by the writer in the very commit that answers them.

An entry is bound to its store, session, key, kind, time and number, verified before it is looked at, and limited in
size. One that a checkpoint has taken is never given out again, whatever its row says. Some are given later, once or by
cron: ``wakes`` sorts out what is due.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import Corrupted, InvalidInput, LimitExceeded, PerdureError, Unavailable
from perdure.history.hydrate import find, load_head
from perdure.history.reported_outcomes import too_late
from perdure.model import InboxEntry, Outrun
from perdure.record import codec
from perdure.record.binding import Stamp, bind_entry, open_entry_seal, where_entry
from perdure.session.taken import Marks, is_taken, marks_of
from perdure.session.wakes import CRON, VOID, WAKE, Waiting, due_at, is_of_another, sort_out
from perdure.state.values import Wire
from perdure.system import faults
from perdure.system.flow import Do, Flow
from perdure.system.times import when

if TYPE_CHECKING:
    from perdure.kernel import Kernel
    from perdure.model import SessionRow
    from perdure.record.codec import Body
    from perdure.session.journal import Journal

MAX_MESSAGE = 1024 * 1024
"""The most bytes one posted input may have."""
LOOK = 100
"""How far into an inbox is looked at least."""
TRIES = 1000
"""How often an input is sealed anew because somebody else was first to post to the same session."""


class Message(NamedTuple):
    """A posted input."""

    key: str
    kind: str
    body: Any
    stamp: Stamp = Stamp("", 0)
    """Where it was posted, and its number there; not known of one that a resumed run is given again."""


def seal_entry(kernel: Kernel, session: str, key: str, kind: str, body: Any, *, at: int | None = None) -> InboxEntry:
    """Seal an input; it has no number yet. The body holds no blobs: it is limited in size."""
    plaintext = codec.encode(Wire(None).value(body, ("message",)))
    if len(plaintext.data) > MAX_MESSAGE:
        msg = f"this message has {len(plaintext.data)} bytes, over the limit of {MAX_MESSAGE}: post a reference to it"
        raise LimitExceeded(msg)
    digest = _digest(kernel, kernel.keys.current, session, key, kind, plaintext)
    sealed = codec.seal(plaintext)
    return InboxEntry(session, key, kind, kernel.clock.wall() if at is None else at, digest, sealed)


def open_entry(kernel: Kernel, entry: InboxEntry) -> Message:
    """Verify an input and open it."""
    where = where_entry(entry)
    name, stamp, sealed = open_entry_seal(kernel.keys, kernel.store_id, entry)
    body = codec.unseal(sealed, where, MAX_MESSAGE)
    if not hmac.compare_digest(_digest(kernel, name, entry.session, entry.key, entry.kind, body), entry.digest):
        raise Corrupted(where, "the digest does not match")
    return Message(entry.key, entry.kind, kernel.decode(body, where), stamp)


def open_edited(kernel: Kernel, entry: InboxEntry, waiting: Waiting) -> Message:
    """Open an input that waits; of one that was edited what it says now."""
    message = open_entry(kernel, entry)
    if edits := waiting.edits.get(entry.key):
        return message._replace(body=open_entry(kernel, edits[-1]).body["message"])
    return message


def _digest(kernel: Kernel, name: str, session: str, key: str, kind: str, body: Body) -> bytes:
    """What is the same whenever the same is posted again, which its number and its time are not."""
    about = codec.encode([session, key, kind]).data
    return codec.digest(kernel.keys, name, b"inbox\0", (about, body.data), f"inbox of session {session!r}")


def posted(kernel: Kernel, entry: InboxEntry) -> Flow[bool]:
    """Number and post one input; False when its key was there already."""
    answer = (yield from posted_all(kernel, [entry]))[0]
    if isinstance(answer, PerdureError):
        raise answer
    return answer


def posted_all(kernel: Kernel, entries: list[InboxEntry]) -> Flow[list[bool | PerdureError]]:
    """Number and post inputs. Whoever was outrun by another poster takes the number after it, and tries again.

    ``Corrupted`` when a session's end is forged: nobody would take it there.
    """
    done: dict[int, bool | PerdureError] = {}
    rows: dict[str, SessionRow | None] = {}
    for entry in entries:
        if entry.session not in rows:
            rows[entry.session] = yield Do(find, (kernel, entry.session))
    numbers = {place: _next_number(rows[entry.session]) for place, entry in enumerate(entries)}
    for _ in range(TRIES):
        sealed = [numbered(kernel, entries[place], number) for place, number in numbers.items()]
        answers: list[bool | Outrun | PerdureError] = yield Do(kernel.store.post, (sealed,))
        places, numbers = list(numbers), {}
        for place, answer in zip(places, answers, strict=True):
            if isinstance(answer, Outrun):
                numbers[place] = answer.next
            else:
                done[place] = answer
        if not numbers:
            return [done[place] for place in range(len(entries))]
    session = entries[next(iter(numbers))].session
    raise Unavailable(f"session {session!r}: so many post to it that this input found no place: post it again")


def _next_number(row: SessionRow | None) -> int:
    return 1 if row is None else row.posts + 1


def numbered(kernel: Kernel, entry: InboxEntry, number: int) -> InboxEntry:
    """A sealed input, bound to this store and to a number."""
    stamp = Stamp(kernel.store_id, number)
    return bind_entry(kernel.keys, kernel.store_id, entry._replace(seq=number), stamp)


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


class Inbox:
    """The inbox of a session as its writer sees it: inputs are given out here, and taken by the next commit."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.wakes_at: int | None = None
        """When the session is to be woken next, as far as the inbox told when it was last looked at."""
        self.cancellation: Message | None = None
        """What stops the session, once it was seen in the inbox."""
        self._elsewhere: dict[bytes, Marks] = {}
        """What was taken on other branches, by their heads."""

    def take(self, limit: int = 100) -> Flow[list[Message]]:
        """Waiting messages, oldest first; the next commit takes them, together with what you made of them.

        Until that commit nothing is taken: after a crash they are all there again. Calling this twice before a
        commit gives only those not given yet. What is to be given later is given once its time has come.
        """
        self._journal.guard.check()
        if self._journal.catching_up is not None:
            given = yield from self._journal.catching_up.took(limit)
            if given is not None:
                return given
        if given := self._journal.given_again[:limit]:
            del self._journal.given_again[:limit]
            return given
        # Inside the gate: what a commit on its way takes still lies there, and would be given twice; so would what
        # another task or thread asks for at this moment.
        return (yield from self._journal.within(self._take(limit)))

    def _take(self, limit: int) -> Flow[list[Message]]:
        if self._journal.pending is not None:
            yield from self._journal.settle()
        waiting = yield from self.look(limit)
        new: list[Message] = []
        for entry in waiting.ready[:limit]:
            message = open_edited(self._journal.kernel, entry, waiting)
            if entry.kind in (WAKE, CRON):
                message = yield from self._woken(entry, message)
            new.append(message)
        self.give_out(new, waiting)
        self.take_void(waiting)
        if self._journal.run is not None and self._journal.strands.is_beside():
            self._journal.strands.took.update(message.key for message in new)
        yield from self._take_late(waiting)
        return new

    def _take_late(self, waiting: Waiting) -> Flow[None]:
        """The next commit takes outcomes along whose calls have theirs: they are told to nobody."""
        late: set[str] = (yield Do(too_late, (self._journal.kernel, waiting.reported))) if waiting.reported else set()
        for entry in waiting.reported:
            if entry.key in late:
                self._journal.takes.append(open_entry(self._journal.kernel, entry)._replace(kind=VOID))

    def give_out(self, messages: list[Message], waiting: Waiting) -> None:
        """The next commit takes these, and with them what has edited them."""
        self._journal.takes.extend(messages)
        edits = [edit for message in messages for edit in waiting.edits.get(message.key, ())]
        self._journal.takes.extend(open_entry(self._journal.kernel, edit) for edit in edits)

    def take_void(self, waiting: Waiting) -> None:
        """The next commit takes what was taken back, and what took it back: it is told to nobody."""
        for entry in waiting.void:
            message = open_entry(self._journal.kernel, entry)
            self._journal.takes.append(message if is_of_another(entry.kind) else message._replace(kind=VOID))

    def look(self, limit: int = 1) -> Flow[Waiting]:
        """What waits in the inbox by now; enough of it to find so many messages."""
        # A cancellation may stand behind what was posted before it.
        size = max(limit, LOOK) + len(self._journal.takes)
        while True:
            listed: list[InboxEntry] = yield Do(self._journal.kernel.store.inbox, (self._journal.id, size))
            entries = yield from self._verified(listed)
            found = sort_out(entries, {e.key for e in self._journal.takes}, self._journal.kernel.clock.wall())
            enough = len(found.ready) >= limit and not any(e.kind == CRON for e in found.ready)
            if enough or len(listed) < size:
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
        return message._replace(body=f"It is time: {when(body['due'])}." if said is None else said)

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
        entries = yield from self.waiting(key)
        if not entries or entries[0].kind != kind or any(e.key == key for e in self._journal.takes):
            return None
        message = open_entry(self._journal.kernel, entries[0])
        self._journal.takes.append(message)
        return message

    def waiting(self, key: str) -> Flow[list[InboxEntry]]:
        """The waiting entry of that key, verified; none or one."""
        listed: list[InboxEntry] = yield Do(self._journal.kernel.store.inbox, (self._journal.id, 1, key))
        return (yield from self._verified(listed))

    def _verified(self, listed: list[InboxEntry]) -> Flow[list[InboxEntry]]:
        """Entries that the store says are waiting, in this order; those that somebody has just taken are left out."""
        if not listed:
            return []
        kernel = self._journal.kernel
        highest: dict[str, int] = {}
        stamps = [open_entry_seal(kernel.keys, kernel.store_id, entry)[1] for entry in listed]
        for entry, stamp in zip(listed, stamps, strict=True):
            if stamp.number <= highest.get(stamp.origin, 0):
                raise Corrupted(where_entry(entry), "it does not stand where it came in")
            highest[stamp.origin] = stamp.number
        found: list[InboxEntry] = []
        known = [marks_of(self._journal.document.root), *(yield Do(self._marks_elsewhere))]
        for entry, stamp in zip(listed, stamps, strict=True):
            if not any(is_taken(marks, stamp) for marks in known):
                found.append(entry)
            elif entry in (yield Do(kernel.store.inbox, (entry.session, 1, entry.key))):
                # It was not taken between two readings: somebody has put it back.
                raise Corrupted(where_entry(entry), "a checkpoint has taken it, and the store says that it waits")
        return found

    def _marks_elsewhere(self) -> list[Marks]:
        """What the other branches have taken: all inputs are for all of them, once."""
        journal = self._journal
        row: SessionRow | None = journal.kernel.store.look(journal.id)
        if row is None or not row.heads:
            # Where an earlier session of this name ended, this one begins.
            return [journal.inherited]
        seen, self._elsewhere = self._elsewhere, {}
        for head in row.heads:
            if head.branch in row.branches and head.branch != journal.branch:
                self._elsewhere[head.id] = seen.get(head.id) or marks_of(
                    load_head(journal.kernel, row, head.branch).doc
                )
        return list(self._elsewhere.values())
