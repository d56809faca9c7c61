"""What all stores decide alike: who may write and when a lease has ended, how a batch is answered, which branch sets
the status, and the wording of every refusal.

Leases are judged here for the stores that have no server and thus no server's clock. No two clocks are compared.
Within one boot all processes share the monotonic clock, so its reading is stored as the lease's end. Across boots or
machines only the waiter's own clock counts: a lease that was seen unchanged for its whole span has ended. A holder
whose process is certainly dead holds nothing.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from perdure import errors
from perdure.model import MAIN, LeaseInfo, Span, Status, plain_reason
from perdure.system.clock import boot_id
from perdure.system.lease_holders import busy, is_dead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from perdure.model import Append, Dump, Head, InboxEntry, Landed, Outrun, SessionRow
    from perdure.protocols import Clock

    Answers = list[Landed | errors.PerdureError]

SHOWN = ("branch", "kind", "status", "at", "tool", "error", "takes", "blobs", "starts")
"""What a dump tells of a commit beside its sealed bytes."""

# -- leases ------------------------------------------------------------------------------------------------------------

WATCHED = 10_000
"""Foreign leases watched at most; beyond that the oldest watch starts again when it is next asked about."""


class StoredLease(NamedTuple):
    """A lease as a store keeps it. ``holder`` "" means that nobody holds the session."""

    holder: str = ""
    token: int = 0
    until: int = 0
    """End of the lease on the monotonic clock of ``boot``, in ms."""
    span: int = 0
    """For how long it was granted, in ms."""
    boot: str = ""


class LeaseJudge:
    """Grants leases and says which ones have ended. One per store handle; may be used from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # session -> (token, until) as last seen, and when this handle first saw them so.
        self._watched: dict[str, tuple[int, int, int]] = {}

    def grant(self, holder: str, token: int, span: int) -> StoredLease:
        """A lease that starts now; also how one is renewed or slides (same holder and token)."""
        return StoredLease(holder, token, self._clock.monotonic() + span, span, boot_id())

    def left(self, session: str, lease: StoredLease) -> int:
        """For how many ms the lease still counts as held, to the best of our knowledge; 0 when it is free."""
        if not lease.holder:
            return 0
        now = self._clock.monotonic()
        if lease.boot == boot_id():
            left = lease.until - now
        else:
            left = lease.span - (now - self._first_seen(session, lease, now))
        # Looking at the process costs more than looking at the clock, so it comes last.
        return 0 if left <= 0 or is_dead(lease.holder) else left

    def info(self, session: str, lease: StoredLease) -> LeaseInfo:
        """The lease as shown to callers: who holds it, until when by the wall clock (an estimate)."""
        left = self.left(session, lease)
        if not left:
            return LeaseInfo("", lease.token, 0)
        return LeaseInfo(lease.holder, lease.token, self._clock.wall() + left)

    def busy(self, session: str, lease: StoredLease) -> errors.Busy | None:
        """The error for somebody who has no right to write now; None when nobody holds the session."""
        left = self.left(session, lease)
        return busy(session, lease.holder, self._clock.wall() + left) if left else None

    def _first_seen(self, session: str, lease: StoredLease, now: int) -> int:
        with self._lock:
            seen = self._watched.get(session)
            if seen is not None and seen[:2] == (lease.token, lease.until):
                return seen[2]
            self._watched.pop(session, None)
            if len(self._watched) >= WATCHED:
                del self._watched[next(iter(self._watched))]
            self._watched[session] = (lease.token, lease.until, now)
            return now


def fenced(session: str, token: int | None, lease: StoredLease, judge: LeaseJudge) -> errors.LeaseError | None:
    """Why a writer with this token (None: an optimistic one) may not write; None when it may.

    A lease that has run out still counts for its holder until somebody else takes it: what fences is
    the token. One that was given back does not.
    """
    if token is None:
        return judge.busy(session, lease)
    if lease.holder and lease.token == token:
        return None
    return lease_lost(session)


# -- batches: one transaction for many items; when that fails, one for each of them -----------------------------------

Passing = tuple[type[errors.PerdureError], ...]
"""Kinds of ``Unavailable`` that concern one item: the next one may go through."""
FULL: Passing = (errors.StoreFull,)


def append_batch(
    batch: Sequence[Append], most: int, transact: Callable[[Sequence[Append]], Answers], passing: Passing = FULL
) -> Answers:
    """Append a batch, ``most`` items in a transaction; the error that stopped it also answers all items behind it.

    An error of the store's own is raised when nothing was done before it.
    """
    answers: Answers = []
    for start in range(0, len(batch), most):
        items = batch[start : start + most]
        answers += _append(items, transact, passing, first=not answers)
        if len(answers) < start + len(items):
            break
    return answers if len(answers) == len(batch) else answers + answers[-1:] * (len(batch) - len(answers))


def _append(
    items: Sequence[Append], transact: Callable[[Sequence[Append]], Answers], passing: Passing, *, first: bool
) -> Answers:
    try:
        return transact(items)
    except errors.PerdureError as error:
        if is_final(error, passing) and first:
            raise
        if is_final(error, passing) or len(items) == 1:
            return [error]
    answers: Answers = []
    for item in items:
        answers += _append([item], transact, passing, first=first and not answers)
        if isinstance(answers[-1], errors.PerdureError) and is_final(answers[-1], passing):
            break
    return answers


def post_batch(
    entries: Sequence[InboxEntry],
    transact: Callable[[Sequence[InboxEntry]], list[bool | Outrun | errors.PerdureError]],
    passing: Passing = FULL,
) -> list[bool | Outrun | errors.PerdureError]:
    """Post entries in one transaction; one by one when that fails, unless the error is the store's own."""
    try:
        return transact(entries)
    except errors.OutcomeUnknown:
        raise
    except errors.PerdureError as error:
        if is_final(error, passing):
            raise
        if len(entries) <= 1:
            return [error]
    return [answer for entry in entries for answer in post_batch([entry], transact, passing)]


def is_final(error: errors.PerdureError, passing: Passing = FULL) -> bool:
    """Whether an error is the store's own, so that trying the next item could only fail again."""
    return isinstance(error, (errors.Misuse, errors.Poisoned)) or (
        isinstance(error, errors.Unavailable) and not isinstance(error, passing)
    )


# -- spans of steps ----------------------------------------------------------------------------------------------------


def overlap(one: Span, other: Span) -> bool:
    """Whether two spans share a step."""
    return one.line == other.line and one.lo <= other.hi and other.lo <= one.hi


def spans_of(steps: Iterable[tuple[int, int]]) -> list[Span]:
    """Steps of one line (each as line and step, ascending), as few spans of neighbours.

    >>> spans_of([(0, 1), (0, 2), (0, 4)])
    [Span(line=0, lo=1, hi=2), Span(line=0, lo=4, hi=4)]
    """
    spans: list[Span] = []
    for line, step in steps:
        if spans and spans[-1].hi == step - 1:
            spans[-1] = spans[-1]._replace(hi=step)
        else:
            spans.append(Span(line, step, step))
    return spans


# -- refusals ----------------------------------------------------------------------------------------------------------


def lease_lost(session: str) -> errors.LeaseLost:
    """The writer's token is not the session's current one."""
    return errors.LeaseLost(
        f"the lease on session {session!r} was lost to another writer, or given back: nothing was written; "
        "open the session again"
    )


def moved(item: Append, head: Head | None) -> errors.Conflict:
    """The branch's head is not the one that the commit builds on."""
    now = f"at step {head.step} of line {head.line}" if head else "not there"
    return errors.Conflict(
        f"session {item.session!r}, branch {item.branch!r}: the head has moved: it is {now} by now; nothing "
        "was written; replay the input on the new head",
        head,
    )


def taken_place(item: Append, head: Head | None) -> errors.Conflict:
    """Another commit has this line and step, or another branch has started this line."""
    return errors.Conflict(
        f"session {item.session!r}: step {item.step} of line {item.line} is another checkpoint by now; "
        "nothing of this one was written; reload() and do it again",
        head,
    )


def not_waiting(item: Append, key: str, head: Head | None) -> errors.Conflict:
    """An inbox entry that the commit answers was answered already, or never was posted."""
    return errors.Conflict(
        f"session {item.session!r}: inbox entry {key[:80]!r} is not waiting (any more); "
        "nothing was written; read the inbox again",
        head,
    )


def other_digest(item: Append) -> errors.Corrupted:
    """A commit with this id has landed, and it was not this one."""
    return errors.Corrupted(
        f"session {item.session!r}, line {item.line}, step {item.step}",
        f"commit {item.id.hex()} is stored with another digest than the one retried",
    )


def other_post(session: str, key: str) -> errors.InvalidInput:
    """The idempotency key was used for something else."""
    return errors.InvalidInput(
        f"session {session!r}: inbox key {key[:80]!r} was used before for another content; use a new key"
    )


def other_restored(session: str, key: str) -> errors.InvalidInput:
    """An input waits here under the key of another one in a dump."""
    return errors.InvalidInput(
        f"session {session!r}: an input waits here under the key {key[:80]!r}, and what is to be restored has another "
        "one of that key: nothing was written; let the session take what waits first"
    )


def no_session(session: str) -> errors.NotFound:
    """Nothing was ever written under this id."""
    return errors.NotFound(f"there is no session {session!r}")


def gone(session: str, reason: str) -> errors.Gone:
    """The session is a tombstone."""
    why = plain_reason(reason)
    return errors.Gone(f"session {session!r} is gone: {why}", why)


def no_line(session: str, line: int) -> errors.NotFound:
    """The session has no such line."""
    return errors.NotFound(f"session {session!r} has no line {line}")


def no_step(session: str, line: int, step: int, last: int) -> errors.NotFound:
    """The line has no such step."""
    return errors.NotFound(f"session {session!r}, line {line} has no step {step}: its last one is {last}")


def retained(session: str, line: int, step: int, lo: int, hi: int) -> errors.Gone:
    """Retention has dropped the step; the anchor lo..hi stands for it."""
    return errors.Gone(
        f"session {session!r}, line {line}: step {step} was dropped by retention; "
        f"the nearest ones that were kept are {lo - 1} and {hi}",
        "retention",
    )


def no_cursor() -> errors.InvalidInput:
    """What was passed as a cursor is none."""
    return errors.InvalidInput("this is not a cursor: pass one that changes() gave, or None for the beginning")


def other_past() -> errors.CursorExpired:
    """The store's epoch is another one."""
    return errors.CursorExpired("this cursor is from before the store's past changed: scan again from the beginning")


def missed() -> errors.CursorExpired:
    """Commits were deleted that the cursor has not read."""
    return errors.CursorExpired(
        "changes after this cursor were deleted before they were read: scan again from the beginning"
    )


def has_checkpoints(session: str, head: Head | None) -> errors.Conflict:
    """A restore would write over a session."""
    return errors.Conflict(
        f"session {session!r} has checkpoints in this store already: restore it under a store without it",
        head,
    )


def status_of_gone(reason: str) -> str:
    """The status that a tombstone shows."""
    return (Status.EXPIRED if plain_reason(reason) == Status.EXPIRED else Status.CLOSED).value


def sets_session_status(branch: str, has_main: bool) -> bool:
    """Whether a commit on this branch says where its session stands: main does, or any without a main."""
    return branch == MAIN or not has_main


def restored_inbox(dump: Dump, known: dict[str, tuple[int, bytes]], newest: int) -> list[InboxEntry]:
    """The entries of a dump with the numbers they get beside those that were posted here (``known``, by key).

    One that is known, with its digest, keeps its number here; any other keeps its own, unless it has none or that was
    given here. Where the same key stands for two inputs one of them would be lost: nothing is restored then.
    """
    used = {seq for seq, _ in known.values()}
    newest = max((newest, *(entry.seq for entry in dump.inbox), *used))
    found: list[InboxEntry] = []
    for entry in dump.inbox:
        seq, digest = known.get(entry.key, (None, entry.digest))
        if digest != entry.digest:
            raise other_restored(dump.row.id, entry.key)
        if seq is None and ((seq := entry.seq) == 0 or seq in used):
            seq = newest = newest + 1
        used.add(seq)
        found.append(entry._replace(seq=seq))
    return found


def restored_row(dump: Dump) -> SessionRow:
    """The row of a dump, with the status and the error of main's head.

    A dump that an earlier version made may tell those of the newest commit of any branch, or no error at all.
    """
    row = dump.row
    main = next((head for head in row.heads if head.branch == MAIN), None)
    for stored, shown in reversed(dump.rows):
        if main is None or (stored.line, stored.step) == (main.line, main.step):
            return row._replace(status=str(shown.get("status", row.status)), error=str(shown.get("error", row.error)))
    return row
