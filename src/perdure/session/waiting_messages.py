"""Messages that wait, or that a run has taken and has not answered: listed, taken back, changed.

Whoever takes one back has the session's lease while he does: nobody answers it at that moment. What he says is an input
like any other, posted and then taken together with the message, so that nothing that was written is written anew.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Messages are any JSON: their types are looked at, not declared.
from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import Busy, InvalidInput, MessageTaken, NotFound, PerdureError
from perdure.history.checkpoint import Reading
from perdure.history.expiry import ended, has_expired, revive
from perdure.history.hydrate import ancestry, find, load_head, origins
from perdure.history.reader import change_of, history
from perdure.history.reported_outcomes import too_late
from perdure.model import MAIN, Kind, Status
from perdure.record import codec
from perdure.session.handover import Handover, gone_on_with, hand_over
from perdure.session.inbox import open_edited, open_entry, posted, seal_entry
from perdure.session.wakes import EDIT, VOID, WITHDRAW, is_of_another, sort_out, withdrawal_of
from perdure.state.document import plain
from perdure.state.values import Wire, same
from perdure.system.flow import Do, Flow
from perdure.system.lease_holders import describe
from perdure.system.names import check_name, check_session
from perdure.system.wording import one_line, storable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.kernel import Kernel
    from perdure.model import Envelope, InboxEntry, SessionRow
    from perdure.session.handle import SessionHandle

REFUSED = "refused"
"""Where an agent's notes say which messages went with a request that the provider refuses, by their keys."""
UNSAID = "unsaid"
"""Where a rewind says which messages it has left behind, by their keys: they were taken, and nobody answers them."""
MOST_UNSAID = 200
"""So many of them are named, the newest."""
INSTEAD = "(This message was withdrawn.)"
"""What stands in a conversation instead of a message that was withdrawn when a run had taken it already."""
LISTED = 500
"""Checkpoints that are looked through at a time."""
_SAME = object()
_NAMED = 5
"""Keys that are named in a sentence."""


class InboxMessage(NamedTuple):
    """Something that was posted to a session and that waits, or that a run has taken and not answered yet."""

    key: str
    kind: str
    """message, wake, cron, decision, outcome, returned, failure or cancel"""
    at: int
    """When it was posted (of a timer: when it is due); of one that was taken, when."""
    body: Any
    """What it says by now."""
    size: int
    """In bytes."""
    taken_at: int | None = None
    """The step at which the run took it that has not answered it yet; None while it waits."""
    edited_by: str = ""
    """Who changed it last."""
    problem: str = ""
    """Why it cannot be read."""


class Amended(NamedTuple):
    """What came of taking a message back, or changing it."""

    new: bool
    """False when it had been done before."""
    handover: Handover
    """Who goes on with the session now."""


def messages_of(kernel: Kernel, session: str, limit: int = 100) -> list[InboxMessage]:
    """What an unanswered run of main has taken, and what waits, oldest first. Blocks while it reads."""
    row = find(kernel, session)
    if row is None:
        raise NotFound(f"there is no session {session!r} in {kernel.store.url}")
    found = _taken(kernel, row) if any(head.branch == MAIN for head in row.heads) and not row.reason else []
    # What only says something of others is not counted, and may be as much again.
    listed = kernel.store.inbox(session, 2 * limit) if row.pending else []
    waiting, late = sort_out(listed, set(), kernel.clock.wall()), too_late(kernel, listed)
    for entry in listed:
        if entry in waiting.void or is_of_another(entry.kind) or entry.key in late:
            continue
        edits = waiting.edits.get(entry.key, ())
        try:
            body = open_edited(kernel, entry, waiting).body
            by = open_entry(kernel, edits[-1]).body["by"] if edits else ""
        except PerdureError as e:
            found.append(InboxMessage(entry.key, entry.kind, entry.at, None, 0, problem=str(e)))
            continue
        found.append(InboxMessage(entry.key, entry.kind, entry.at, body, _size(body), edited_by=by))
    return found[:limit]


def _taken(kernel: Kernel, row: SessionRow) -> list[InboxMessage]:
    view = Reading(kernel, load_head(kernel, row, MAIN))
    run = (view.book.get("agent") or {}).get("run") or {}
    found: list[InboxMessage] = []
    for key, (index, step) in plain(run.get("places", {})).items():
        body = plain(view.messages[index])
        then = history(kernel, row.id, MAIN, 1, step + 1)
        at = then[0].envelope.at if then else 0
        found.append(InboxMessage(key, "message", at, body, _size(body), step, run.get("edited", {}).get(key, "")))
    return found


def _size(body: Any) -> int:
    return len(codec.encode(Wire(None).value(body, ("message",))).data)


def named_at(kernel: Kernel, session: str, branch: str, key: str) -> Envelope | None:
    """The newest checkpoint of a branch that took a message, or took it back. Blocks."""
    before: int | None = None
    while points := history(kernel, session, branch, LISTED, before):
        for point in points:
            x = point.envelope.x
            if key in x.get("takes", ()) or key in x.get(VOID, ()):
                return point.envelope
        before = points[-1].envelope.step
    return None


def left_behind(kernel: Kernel, row: SessionRow, branch: str, to: Envelope) -> list[str]:
    """The keys of messages that a branch took and that a rewind to a checkpoint leaves behind, oldest first; not those
    that another branch has. Blocks."""
    stays = ancestry(kernel, row.id, to.line, to.step, origins(kernel, row.id))
    found: list[str] = []
    before: int | None = None
    while points := history(kernel, row.id, branch, LISTED, before):
        for point in points:
            env = point.envelope
            if env.step <= stays.get(env.line, -1) or len(found) >= MOST_UNSAID:
                break
            keys = [key for key in env.x.get("takes", ()) if key not in env.x.get(VOID, ())]
            change = change_of(kernel, env) if keys else None
            messages = {name for name, kind, _ in (change[1].get("took", ()) if change else ()) if kind == "message"}
            found += [key for key in reversed(keys) if key in messages]
        else:
            before = points[-1].envelope.step
            continue
        break
    others = [name for name in row.branches if name != branch]
    found = [key for key in found if not any(named_at(kernel, row.id, other, key) for other in others)]
    return found[:MOST_UNSAID][::-1]


def rewound(kernel: Kernel, session: str, branch: str, key: str) -> Envelope | None:
    """The rewind of a branch that has left a message behind. Blocks."""
    before: int | None = None
    while points := history(kernel, session, branch, LISTED, before):
        for point in points:
            if key in point.envelope.x.get(UNSAID, ()):
                return point.envelope
        before = points[-1].envelope.step
    return None


def unsaid_words(keys: Sequence[str]) -> str:
    """What is said of messages that a rewind has left behind; "" when there are none."""
    if not keys:
        return ""
    named = ", ".join(f"{key:.80}" for key in keys[:_NAMED]) + (", …" if len(keys) > _NAMED else "")
    what, it = (f"message {named}", "it") if len(keys) == 1 else (f"{len(keys)} messages ({named})", "them")
    return f"The rewind has left {what} behind: nobody answers {it} any more"


def withdrawn(kernel: Kernel, session: str, branch: str, key: str, taken: Envelope | None) -> str:
    """Who took a message back, and why, for people; "" when nobody did. ``taken``: where a checkpoint names it."""
    if waiting := kernel.store.inbox(session, 1, withdrawal_of(key)):
        if waiting[0].kind != WITHDRAW:
            return ""
        return _said(open_entry(kernel, waiting[0]).body)
    if taken is None or key not in taken.x.get(VOID, ()):
        return ""
    change = change_of(kernel, taken)
    said = [body for name, _, body in (change[1].get("took", ()) if change else ()) if name == withdrawal_of(key)]
    return _said(plain(said[0])) if said else str(taken.x.get("note") or "withdrawn")


def _said(body: dict[str, Any]) -> str:
    return f"{body['by']} withdrew it{': ' * bool(body['reason'])}{body['reason']}"


class WaitingMessages:
    """What becomes of messages that wait, or that no run has answered yet."""

    def __init__(self, kernel: Kernel, guard: Any, opened: Callable[[str], Flow[SessionHandle]]) -> None:
        self._kernel = kernel
        self._guard = guard
        self._opened = opened
        """Opens a session in the schema that it has."""

    def inbox(self, session: str, *, limit: int = 100) -> Flow[list[InboxMessage]]:
        """What was posted to a session and is not answered: what an unfinished run has taken, and what waits.

        Oldest first. ``withdraw`` and ``edit`` take messages of it by their keys.
        """
        self._guard.check()
        return (yield Do(messages_of, (self._kernel, check_session(session), limit)))

    def withdraw(self, session: str, key: str, *, by: str, reason: str = "") -> Flow[Amended]:
        """Take a message back that was not answered yet: no agent is told it any more, and the session goes on.

        One that an unfinished run has taken already is replaced in the conversation by a note. The history keeps who
        did it, and what was said. ``Busy`` while somebody works on the session, who may be answering it;
        ``MessageTaken`` when it was answered; ``NotFound`` when nothing of that key was posted.
        """
        return (yield from self._amend(session, key, by, reason, _SAME))

    def edit(self, session: str, key: str, message: Any, *, by: str, reason: str = "") -> Flow[Amended]:
        """Have a message that was not answered yet say something else; it keeps its key and its place.

        ``Busy``, ``MessageTaken`` and ``NotFound`` as for ``withdraw``. One that an unfinished run has taken already is
        changed in the conversation, to a text.
        """
        if message is None or message == "":
            raise InvalidInput("the message is empty: withdraw it, or say what it is to say")
        return (yield from self._amend(session, key, by, reason, message))

    def _amend(self, session: str, key: str, by: str, reason: str, message: Any) -> Flow[Amended]:
        self._guard.check()
        check_name(key, "message key")
        check_name(by, "name")
        row: SessionRow | None = yield Do(find, (self._kernel, check_session(session)))
        if row is None:
            raise NotFound(f"there is no session {session!r}, and no message {key!r:.80}")
        if row.heads and (yield Do(ended, (self._kernel, session))):
            raise has_expired(session, f"bring it back before you change what was said to it: {revive(session)}")
        about = {"by": by, "reason": storable(reason)[:500], "at": self._kernel.clock.wall()}
        try:
            s = yield from self._opened(session)
        except Busy as e:
            e.args = (
                f"session {session!r} is being worked on by {describe(e.holder)}, who may be answering message "
                f"{key!r:.80} at this moment: nothing was changed; try again when it rests",
            )
            raise
        try:
            new, settled = yield from _amended(s, key, about, message)
        finally:
            yield from s.release_flow()
        # Only now: the lease is free for whoever comes.
        return Amended(new, (yield Do(_go_on, (self._kernel, session, settled))))


def _amended(s: SessionHandle, key: str, about: dict[str, Any], message: Any) -> Flow[tuple[bool, bool]]:
    """Take a message back or change it; whether that is new, and whether what failed of it is behind the session."""
    journal = s.journal
    kernel, session, back = journal.kernel, journal.id, message is _SAME
    failed = s.status == Status.FAILED
    entries: list[InboxEntry] = yield from s.inbox.waiting(key)
    over = f"message {key!r:.80} of session {session!r}"
    if not entries:
        run = (journal.book.get("agent") or {}).get("run") or {}
        if key in run.get("places", {}):
            return (yield from _in_conversation(s, key, about, message)), failed
        taken = yield Do(named_at, (kernel, session, journal.branch, key))
        who = yield Do(withdrawn, (kernel, session, journal.branch, key, taken))
        if who and back:
            return False, False
        if who:
            raise MessageTaken(f"{over} was withdrawn ({who}): post another one")
        if taken is None:
            raise NotFound(f"session {session!r} has no message {key!r:.80} that waits")
        raise MessageTaken(f"{over} was taken up at step {taken.step}, and cannot be taken back")
    if entries[0].kind != "message":
        how = "; db.cancel_wake takes a timer back" if entries[0].kind in ("wake", "cron") else ""
        raise InvalidInput(f"{key!r:.80} of session {session!r} is no message but a {entries[0].kind}{how}")
    who = yield Do(withdrawn, (kernel, session, journal.branch, key, None))
    if who and not back:
        raise MessageTaken(f"{over} was withdrawn ({who}): post another one")
    waiting = yield from s.inbox.look(1_000_000)
    if not back and same(open_edited(kernel, entries[0], waiting).body, message):
        return False, False
    if not who:
        name, body = (withdrawal_of(key), about) if back else (f"{EDIT}:{os.urandom(8).hex()}:{key}", None)
        body = body or {**about, "message": message}
        yield from posted(kernel, seal_entry(kernel, session, name, WITHDRAW if back else EDIT, body))
    if journal.point is not None and journal.status != Status.CLOSED:
        # The head moves: whoever had taken the message without a lease is in conflict, and reads again.
        if back:
            s.inbox.take_void((yield from s.inbox.look(1_000_000)))
        yield from _write(s, key, about, "withdrew" if back else "edited")
    return not who, failed


def _in_conversation(s: SessionHandle, key: str, about: dict[str, Any], message: Any) -> Flow[bool]:
    """The same for a message that an unfinished run has taken: history keeps what it said, not the conversation."""
    back, run = message is _SAME, s.journal.book["agent"]["run"]
    if not back and not isinstance(message, str):
        raise InvalidInput(f"a run has taken message {key!r:.80} already: it can be changed to a text, or withdrawn")
    said = s.state["messages"][run["places"][key][0]]
    text = INSTEAD if back else message
    if said.get("content") == text:
        return False
    said["content"] = text
    if back:
        # Nobody is told an answer to it.
        del run["places"][key]
        run["messages"] = [name for name in plain(run["messages"]) if name != key]
    else:
        run.setdefault("edited", {})[key] = about["by"]
    yield from _write(s, key, about, "withdrew" if back else "edited", **({VOID: [key]} if back else {}))
    return True


def _write(s: SessionHandle, key: str, about: dict[str, Any], did: str, **x: Any) -> Flow[None]:
    reason = f": {one_line(about['reason'], 200)}" if about["reason"] else ""
    x["note"] = f"{about['by']} {did} message {key!r}{reason}"[:500]
    notes = s.journal.book.get("agent") or {}
    if key in (before := plain(notes.get(REFUSED, []))):
        notes[REFUSED] = [name for name in before if name != key]
    # What the last run failed of may be no more: it is to be run again.
    standing = s.effect_records.session_status if s.status == Status.FAILED else None
    yield from s.journal.write(Kind.COMMIT, x=x, status=standing)


def _go_on(kernel: Kernel, session: str, settled: bool) -> Handover:
    """Have whoever is there go on with a session; ``settled``: what workers had failed of is behind it. Blocks."""
    row = find(kernel, session)
    if row is None or not row.heads:
        return Handover("nobody", "It begins when its agent is run on it.")
    entries = kernel.store.inbox(session, row.pending) if row.pending else []
    more = bool(sort_out(entries, set(), kernel.clock.wall()).ready) or row.status in (Status.RUNNING, Status.FAILED)
    if settled:
        gone_on_with(kernel, session, looked_at=more)
    return hand_over(kernel, row) if more else Handover("nobody", "Nothing else waits in it.")
