"""Rules that all stores share: who may write, which branch sets the status, and the wording of every refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.errors import Conflict, Corrupted, Gone, InvalidInput, LeaseLost, NotFound
from perdure.model import MAIN

if TYPE_CHECKING:
    from perdure.errors import LeaseError
    from perdure.model import Append, Dump, Head, SessionRow
    from perdure.stores.lease_clock import LeaseJudge, StoredLease


def fenced(session: str, token: int | None, lease: StoredLease, judge: LeaseJudge) -> LeaseError | None:
    """Why a writer with this token (None: an optimistic one) may not write; None when it may.

    A lease that has run out still counts for its holder until somebody else takes it: what fences is
    the token. One that was given back does not.
    """
    if token is None:
        return judge.busy(session, lease)
    if lease.holder and lease.token == token:
        return None
    return lease_lost(session)


def lease_lost(session: str) -> LeaseLost:
    """The writer's token is not the session's current one."""
    return LeaseLost(
        f"the lease on session {session!r} was lost to another writer, or given back: nothing was written; "
        "open the session again"
    )


def moved(item: Append, head: Head | None) -> Conflict:
    """The branch's head is not the one that the commit builds on."""
    now = f"at step {head.step} of line {head.line}" if head else "not there"
    return Conflict(
        f"session {item.session!r}, branch {item.branch!r}: another writer was first, the head is {now} "
        "by now; nothing was written; replay the input on the new head",
        head,
    )


def taken_place(item: Append, head: Head | None) -> Conflict:
    """Another commit has this line and step, or another branch has started this line."""
    return Conflict(
        f"session {item.session!r}: step {item.step} of line {item.line} was written by somebody else; "
        "nothing was written; open the session again",
        head,
    )


def not_waiting(item: Append, key: str, head: Head | None) -> Conflict:
    """An inbox entry that the commit answers was answered already, or never was posted."""
    return Conflict(
        f"session {item.session!r}: inbox entry {key[:80]!r} is not waiting (any more); "
        "nothing was written; read the inbox again",
        head,
    )


def other_digest(item: Append) -> Corrupted:
    """A commit with this id has landed, and it was not this one."""
    return Corrupted(
        f"session {item.session!r}, line {item.line}, step {item.step}",
        f"commit {item.id.hex()} is stored with another digest than the one retried",
    )


def other_post(session: str, key: str) -> InvalidInput:
    """The idempotency key was used for something else."""
    return InvalidInput(
        f"session {session!r}: inbox key {key[:80]!r} was used before for another content; use a new key"
    )


def no_session(session: str) -> NotFound:
    """Nothing was ever written under this id."""
    return NotFound(f"there is no session {session!r}")


def gone(session: str, reason: str) -> Gone:
    """The session is a tombstone."""
    return Gone(f"session {session!r} is gone: {reason}", reason)


def no_line(session: str, line: int) -> NotFound:
    """The session has no such line."""
    return NotFound(f"session {session!r} has no line {line}")


def no_step(session: str, line: int, step: int, last: int) -> NotFound:
    """The line has no such step."""
    return NotFound(f"session {session!r}, line {line} has no step {step}: its last one is {last}")


def retained(session: str, line: int, step: int, lo: int, hi: int) -> Gone:
    """Retention has dropped the step; the anchor lo..hi stands for it."""
    return Gone(
        f"session {session!r}, line {line}: step {step} was dropped by retention; "
        f"the nearest ones that were kept are {lo - 1} and {hi}",
        "retention",
    )


def has_checkpoints(session: str, head: Head | None) -> Conflict:
    """A restore would write over a session."""
    return Conflict(
        f"session {session!r} has checkpoints in this store already: restore it under a store without it",
        head,
    )


def sets_session_status(branch: str, has_main: bool) -> bool:
    """Whether a commit on this branch sets status, error and agent of its session: main does, or any without a main."""
    return branch == MAIN or not has_main


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
