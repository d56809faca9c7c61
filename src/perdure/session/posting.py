"""Posting to a session from anywhere, durably and without its lease: messages, outcomes, decisions, wakes, a stop."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from perdure.errors import ApprovalError, CallError, Gone, InvalidInput, NotFound
from perdure.history.expiry import expired, has_expired, revive
from perdure.history.hydrate import find, known, load, load_head, look, origins
from perdure.model import MAIN, Status
from perdure.session.actions import Action
from perdure.session.actions import Do as ToDo
from perdure.session.calls.approvals import Approval, decision
from perdure.session.calls.decisions import decided, is_late, pending
from perdure.session.calls.effects import asked, last_of
from perdure.session.calls.records import BEHIND, OPEN, RECORD
from perdure.session.calls.schemas import check_arguments, check_result
from perdure.session.handover import CALLER, hand_over
from perdure.session.inbox import open_entry, posted, seal_entry, wake_entry
from perdure.session.tools.answer_schema import misfit
from perdure.session.tools.call_state import RETURNED
from perdure.session.wakes import CRON, WAKE, sort_out
from perdure.state.document import BOOK, plain
from perdure.system.commands import quoted, typed
from perdure.system.flow import Do, Flow
from perdure.system.names import check_name, check_own_session, check_owner
from perdure.system.wording import brief, storable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from perdure.kernel import Kernel
    from perdure.model import SessionRow
    from perdure.session.handover import Handover
    from perdure.system.flow import HandleGuard


AT_REST = (Status.IDLE, Status.CANCELLED, Status.CLOSED)
"""Where a session may stand in which there is nothing to do."""


class Posting:
    """What a database puts into inboxes."""

    def __init__(
        self, kernel: Kernel, guard: HandleGuard, before: Callable[[str], None], is_free: Callable[[str], Flow[bool]]
    ) -> None:
        self._kernel = kernel
        self._guard = guard
        self._before = before
        """Told what is about to be written to; raises when it must not be."""
        self._is_free = is_free
        """Ends a session whose time is over; whether its name is free. ``Busy`` while somebody has it."""

    def post(self, session: str, body: Any, *, key: str | None = None, owner: str = "") -> Flow[bool]:
        """Put a message into a session's inbox, durably and without its lease; False when the key was there already.

        With ``owner`` it is refused, and nothing is put there, when the session belongs to somebody else. One that has
        expired begins anew with it, also under a key that it had then; ``Busy`` when somebody has it still.
        """
        name = check_name(key, "message key") if key is not None else os.urandom(12).hex()
        check_own_session(session)
        if check_name(owner, "owner", empty=True):
            self._guard.check()
            row: SessionRow | None = yield Do(find, (self._kernel, check_own_session(session)))
            if row is not None and not row.reason:
                check_owner(session, row.owner, owner)
        try:
            if (yield from self._post(session, name, "message", body)):
                return True
            known = None
        except InvalidInput as e:
            known = e
        # What an earlier life was told counts until somebody has ended it.
        if (yield from self._is_free(session)):
            return (yield from self._post(session, name, "message", body))
        if known is not None:
            raise known
        return False

    def _post(self, session: str, key: str, kind: str, body: Any) -> Flow[bool]:
        self._guard.check()
        yield Do(self._before, (check_own_session(session),))
        return (yield from posted(self._kernel, seal_entry(self._kernel, check_own_session(session), key, kind, body)))

    def post_outcome(self, session: str, effect: str, result: Any = None, *, failed: str | None = None) -> Flow[bool]:
        """Report the outcome of an effect from anywhere: of one that said "later", or whose worker lost its lease.

        ``failed`` says that it certainly did not happen, and why. False when it was reported already, or the effect has
        its outcome; ``NotFound`` when the session has no such effect, ``Gone`` when it has expired or ended otherwise,
        ``CallError`` when nobody waits for an outcome, as while a person is asked before the call is made, or another
        outcome was reported before.
        """
        self._guard.check()
        if not (yield Do(self._waits_for_outcome, (check_own_session(session), effect, result, failed is None))):
            return False
        kind, body = ("outcome", result) if failed is None else ("failure", storable(failed))
        # A body that cannot be kept is refused as such, and not as one that differs from another.
        seal_entry(self._kernel, session, f"outcome:{effect}", kind, body)
        try:
            return (yield from self._post(session, f"outcome:{effect}", kind, body))
        except InvalidInput as e:
            known = (yield Do(self._reported, (session, effect))) or "it was taken up, and stands"
            raise CallError(f"another outcome of effect {effect} was reported already: {known}", effect) from e

    def _reported(self, session: str, effect: str) -> str:
        """The outcome of an effect that waits in the inbox, for people; "" when there is none."""
        waiting = self._kernel.store.inbox(session, 1, f"outcome:{effect}")
        if not waiting:
            return ""
        said = open_entry(self._kernel, waiting[0]).body
        said = said["result"] if waiting[0].kind == RETURNED else said
        known = f"it did not happen, {said!s:.300}" if waiting[0].kind == "failure" else f"done, {brief(said, 300)}"
        return f"{known}. That stands, and is taken up as soon as somebody goes on with the session"

    def _waits_for_outcome(self, session: str, effect: str, result: Any, is_done: bool) -> bool:
        row = find(self._kernel, session)
        if row is None:
            raise NotFound(f"there is no session {session!r}, and no effect {effect!r:.60}: nothing was reported")
        if row.reason or (row.over and expired(self._kernel, row)):
            # Swept or not: whoever begins it anew would never take the outcome up.
            ended = row.why_gone or Status.EXPIRED.value
            raise Gone(
                f"session {session!r} is gone ({ended}), and nothing was reported: where {revive(session)} brings it "
                "back, the outcome can be reported after that",
                ended,
            )
        if not row.heads:
            return True
        known, where, unmade = "", MAIN, ""
        for branch in row.branches:
            loaded = load_head(self._kernel, row, branch)
            assert loaded.point is not None
            for record in loaded.doc[BOOK].get("effects", {}).values():
                if record["id"] != effect:
                    continue
                if record["status"] not in OPEN:
                    known, where = record["status"], branch
                elif record["status"] != "planned":
                    if is_done and not self._reported(session, effect):
                        check_result(loaded.doc[BOOK], record, result)
                    return True
                elif record["line"] != loaded.point.envelope.line and not record["attempt"]:
                    unmade = f"branch {branch!r:.80} has it from the line it parted from, and goes on under its own id"
                elif not (unmade := self._waits_for(row, loaded.doc[BOOK], record)):
                    return True
            remembered = loaded.doc[BOOK].get("raised", {}).values()
            if not known and any(one["id"] == effect and RECORD in one for one in remembered):
                known, where = "raised", branch
        if unmade and not known:
            raise CallError(f"nothing was reported: effect {effect} was not made yet: {unmade}", effect)
        if known in ("unknown", "raised"):
            settle = Action(ToDo.RESOLVE, session, effect, where, self._kernel.store.url)
            raise CallError(
                f"effect {effect} is over, and nobody waits for its outcome: settle it with {settle.command}", effect
            )
        if not known and all(last_of(self._kernel, session, branch, effect) is None for branch in row.branches):
            if self._was_left(session, effect):
                return True
            raise NotFound(f"session {session!r} has no effect {effect!r:.60}: nothing was reported")
        return False

    def _was_left(self, session: str, effect: str) -> bool:
        """Whether an effect is open on a line that was left by a rewind: whoever asks for it again waits for it."""
        ends = (load(self._kernel, session, line, None) for line in origins(self._kernel, session))
        books = (end.doc[BOOK].get("effects", {}) for end in ends)
        return any(
            r["id"] == effect and r["status"] in OPEN and r["status"] != "planned"
            for book in books
            for r in book.values()
        )

    def _waits_for(self, row: SessionRow, book: Mapping[str, Any], record: Mapping[str, Any]) -> str:
        """What a planned call waits for that comes before it is made, for people; "" when nothing does."""
        if BEHIND in record:
            return f"it waits for the same call of session {record[BEHIND]['session']!r:.80}, whose result is shared"
        request = plain(book.get("approvals", {}).get(record.get("approval", "")))
        known = decided(self._kernel, row, [request]) if request is not None else {}
        return asked(request, bool(known), self._kernel.clock.wall())

    def approve(
        self,
        session: str,
        approval: str | Approval,
        *,
        by: str,
        reason: str = "",
        args: dict[str, Any] | None = None,
        wake: bool = True,
    ) -> Flow[Handover]:
        """Agree to a call, once, exactly as it was asked; with ``args`` to the same call with these arguments: all of
        them, and ``InvalidInput`` when they do not fit the tool.

        The session is woken: the answer says whether a worker goes on with it, or who could. With ``wake=False`` you
        are about to go on with it yourself, and no worker is sent for it before you.
        """
        more = {"args": args} if args is not None else {}
        return (yield from self._decide(session, approval, True, by, reason, wake, **more))

    def answer(
        self, session: str, approval: str | Approval, value: Any, *, by: str, reason: str = "", wake: bool = True
    ) -> Flow[Handover]:
        """Answer a question that a tool has put with ``ctx.ask``; who goes on then, as :meth:`approve`."""
        return (yield from self._decide(session, approval, True, by, reason, wake, answer=value))

    def reject(
        self, session: str, approval: str | Approval, *, by: str, reason: str = "", wake: bool = True
    ) -> Flow[Handover]:
        """Refuse a call; who goes on then, as :meth:`approve`."""
        return (yield from self._decide(session, approval, False, by, reason, wake))

    def _decide(
        self, session: str, asked: str | Approval, approved: bool, by: str, reason: str, wake: bool, **more: Any
    ) -> Flow[Handover]:
        """Post a decision, once, and wake the session: the one way, from library, command line, HTTP and console."""
        self._guard.check()
        approval = asked.id if isinstance(asked, Approval) else asked
        row: SessionRow = yield Do(look, (self._kernel, check_own_session(session)))
        if row.over and (yield Do(expired, (self._kernel, row))):
            raise has_expired(session, f"there is nothing to decide any more, unless {revive(session)} brings it back")
        now = self._kernel.clock.wall()
        branch, request, book = yield Do(self._find_approval, (row, approval))
        if request["status"] != "pending":
            raise ApprovalError(f"approval {approval} was decided already: {request['status']}")
        if is_late(request, now):
            raise ApprovalError(
                f"approval {approval} has expired, and nothing was decided: its call counts as turned down when its "
                f"session goes on; {typed(f'why {quoted(session)}', self._kernel.store.url)} says how it does"
            )
        if approved and bool(request.get("question")) != ("answer" in more):
            asks, deed = ("is a question", ToDo.ANSWER) if request.get("question") else ("is no question", ToDo.APPROVE)
            how = Action(deed, session, approval, branch, self._kernel.store.url).here
            raise ApprovalError(f"approval {approval} {asks}, and nothing was decided: {how}")
        if "answer" in more and (wrong := misfit(more["answer"], request.get("schema"))):
            raise ApprovalError(f"that does not answer {approval}: {wrong}")
        if "args" in more:
            yield Do(check_arguments, (book, request, more["args"]))
        body = decision(approved, by, reason, now, **more)
        try:
            # Answered with "not new" it is this very one, whose first answer was lost: every other one differs.
            yield from self._post(session, f"decision:{approval}", "decision", body)
        except InvalidInput:
            raise ApprovalError(f"approval {approval} was decided already") from None
        if not wake:
            return CALLER
        return (yield Do(hand_over, (self._kernel, row, branch)))

    def _find_approval(self, row: SessionRow, approval: str) -> tuple[str, dict[str, Any], Mapping[str, Any]]:
        parted = ""
        for branch in row.branches:
            loaded = load_head(self._kernel, row, branch)
            assert loaded.point is not None
            book = loaded.doc[BOOK]
            request = book.get("approvals", {}).get(approval)
            if request is None:
                continue
            line = loaded.point.envelope.line
            if request["status"] != "pending" or any(a["id"] == approval for a in pending(book, line)):
                return branch, plain(request), book
            parted = branch
        if parted:
            raise ApprovalError(
                f"approval {approval} is no longer open: branch {parted!r:.80} has it from the line it parted from, "
                "and asks anew, where it needs to, when it is gone on with"
            )
        raise ApprovalError(f"session {row.id!r} has no approval {approval!r:.60}")

    def wake(
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
        self._guard.check()
        name = check_name(key, "wake key", 100) if key is not None else os.urandom(8).hex()
        row: SessionRow | None = yield Do(find, (self._kernel, check_own_session(session)))
        if row is not None and row.over and (yield Do(expired, (self._kernel, row))):
            # It would keep alive what nobody can read any more.
            next = f"wake it when it is back ({revive(session)}), or when somebody has begun it anew by running it"
            raise has_expired(session, next)
        entry = wake_entry(
            self._kernel, check_own_session(session), name, at=at, delay=delay, cron=cron, zone=zone, message=message
        )
        yield Do(self._before, (session,))
        try:
            return (yield from posted(self._kernel, entry))
        except InvalidInput:
            if delay is not None or cron is not None:
                # Counted from now, the time differs at every attempt: the first one stands.
                return False
            taken = f"there is a wake {name!r:.60} at another time: cancel it, or use another key"
            raise InvalidInput(taken) from None

    def cancel_wake(self, session: str, key: str) -> Flow[bool]:
        """Take back what ``wake`` put there under this key; False when nothing of that name waits any more."""
        self._guard.check()
        name = check_name(key, "wake key", 100)
        if not (yield Do(self._is_to_wake, (check_own_session(session), name))):
            return False
        return (yield from self._post(session, f"unwake:{os.urandom(8).hex()}:{name}", "unwake", None))

    def _is_to_wake(self, session: str, name: str) -> bool:
        """Whether a wake of that name waits, and was not taken back."""
        row = find(self._kernel, session)
        entries = self._kernel.store.inbox(session, row.pending) if row is not None and row.pending else []
        found = sort_out(entries, set(), self._kernel.clock.wall())
        return any(e.kind in (WAKE, CRON) and e.key.split(":", 2)[2] == name for e in (*found.ready, *found.ahead))

    def cancel(self, session: str, *, by: str = "", reason: str = "") -> Flow[bool]:
        """Stop an agent: it ends as soon as it notices, and goes on only with a new message.

        A call that was started stays open and is settled as its tool declares; what waited for approval is withdrawn.
        False where there is nothing to stop: then nothing was written.
        """
        self._guard.check()
        yield Do(self._before, (check_own_session(session),))
        row: SessionRow = yield Do(known, (self._kernel, session))
        if row.over and (yield Do(expired, (self._kernel, row))):
            raise has_expired(session, "there is nothing to stop")
        if not (yield Do(is_to_stop, (self._kernel, row))):
            return False
        return (yield from self.stop(session, by, reason))

    def stop(self, session: str, by: str, reason: str) -> Flow[bool]:
        """Have whoever has the session next, or has it now, end; also where nobody has begun it yet."""
        body = {
            "by": check_name(by, "name", empty=True),
            "reason": storable(reason)[:500],
            "at": self._kernel.clock.wall(),
        }
        return (yield from self._post(session, f"cancel:{os.urandom(8).hex()}", "cancel", body))


def is_to_stop(kernel: Kernel, row: SessionRow) -> bool:
    """Whether there is anything to stop in a session: somebody has it, something waits for it, or it has not ended."""
    if row.pending or row.lease.holder or row.status not in AT_REST:
        return True
    if not row.heads:
        return False
    book = load_head(kernel, row, MAIN).doc[BOOK]
    left = (*book.get("effects", {}).values(), *book.get("approvals", {}).values())
    return any(record["status"] in (*OPEN, "pending") for record in left)
