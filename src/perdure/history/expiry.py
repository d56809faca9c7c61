"""When a session has expired: its time has run out by the store's clock, and by every clock that wrote to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.errors import Gone, NotFound
from perdure.history.hydrate import head_of, known, load, load_head, look, origins
from perdure.history.reported_outcomes import has_outcome, too_late
from perdure.model import TAG_PREFIX, Kind, Status
from perdure.state.document import BOOK
from perdure.system.commands import quoted, typed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from perdure.history.hydrate import Origins
    from perdure.kernel import Kernel
    from perdure.model import SessionRow

LATER = ("wake", "cron")
"""Kinds of inputs whose time is when they are due."""
BEGUN = ("started", "in_doubt", "waiting")
"""Where a call stands that was made, or may have been, and whose outcome nobody was told."""


def expired(kernel: Kernel, row: SessionRow) -> bool:
    """True when the TTL of every branch has run out. One wrong clock may delay that, and never brings it about.

    The store's clock is one that nobody can set ahead (of a server, or of the boot), and the verified checkpoints must
    agree with its column. An input that was posted in time keeps a session: somebody was told that it would be
    answered. One that came too late is for whoever begins anew. A call of which nobody knows whether it happened, or
    whose result is still to come, keeps it, too: whoever began anew would make it once more and ask nobody.
    """
    if not row.over or _awaited(kernel, row):
        return False
    lines = origins(kernel, row.id)
    ends: dict[int, Mapping[str, Any]] = {}
    for head in row.heads:
        if head.branch.startswith(TAG_PREFIX):
            # A tag is one row, and what it names need not be there any more.
            env = lines[head_of(kernel, row, head.branch).line][2]
        else:
            loaded = load_head(kernel, row, head.branch)
            assert loaded.point is not None
            env, ends[head.line] = loaded.point.envelope, loaded.doc[BOOK]
        if env.ttl is None or row.now < env.at + env.ttl * 1000:
            return False
    return not _in_doubt(kernel, row.id, lines, ends)


def living(kernel: Kernel, session: str) -> SessionRow:
    """What is known of a session; ``NotFound`` when there is none, ``Gone`` when its time is over, swept or not."""
    row = look(kernel, session)
    if expired(kernel, row):
        raise has_expired(session, f"{revive(session)} brings it back as it was, and a message to it begins anew")
    return row


def check_branch_is_there(kernel: Kernel, session: str, branch: str) -> None:
    """Refuse to begin on a branch that is not there: a session begins on main, and branches part from what it has."""
    try:
        row = living(kernel, session)
    except NotFound:
        raise begins_on_main(session, branch) from None
    if branch not in row.branches:
        head_of(kernel, row, branch)


def begins_on_main(session: str, branch: str) -> NotFound:
    """The error that says so."""
    return NotFound(
        f"session {session!r} has no branch {branch!r}, and nothing that one could part from: it begins on main, and "
        "nothing was written"
    )


def has_expired(session: str, next: str) -> Gone:
    """The error that says so, with what to do."""
    return Gone(f"session {session!r} has expired: {next}", Status.EXPIRED.value)


def revive(session: str) -> str:
    """What to type to have it back."""
    return typed(f"revive {quoted(session)}")


def ended(kernel: Kernel, session: str) -> str:
    """Why a session begins anew when it is next run: "expired", or what its tombstone says; "" while it lives.

    ``NotFound`` when there never was one. One that has not begun yet lives: it is worked on, or has messages.
    """
    try:
        row = known(kernel, session)
    except Gone as gone:
        return gone.reason
    return Status.EXPIRED.value if expired(kernel, row) else ""


def in_doubt_in(book: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The calls on a line that were made, or may have been, and of which nobody knows what became, or not yet.

    One that was told to the model or to the program as raised or unknown has ended, and nobody waits for it.
    """
    effects: Iterable[dict[str, Any]] = book.get("effects", {}).values()
    return [record for record in effects if record["status"] in BEGUN and "read" not in record]


def _in_doubt(kernel: Kernel, session: str, lines: Origins, ends: Mapping[int, Mapping[str, Any]]) -> bool:
    """Whether a call on one of the branches was made, as far as anybody knows, and has no outcome on any line."""
    begun = {record["id"] for book in ends.values() for record in in_doubt_in(book)}
    if not begun:
        return False
    # A branch has the calls under way of the line it parted from; what came of one there counts for all.
    others = (line for line, (_, _, first) in lines.items() if line not in ends and first.kind != Kind.TAG)
    books = (*ends.values(), *(load(kernel, session, line, None).doc[BOOK] for line in others))
    return any(not any(has_outcome(book, effect) for book in books) for effect in begun)


def _awaited(kernel: Kernel, row: SessionRow) -> bool:
    assert row.expires is not None
    waiting = kernel.store.inbox(row.id, row.pending) if row.pending else []
    # Whoever begins anew is given what came after all that was taken, and nothing from before it.
    taken = row.posts - row.pending
    late = too_late(kernel, waiting)
    return any(
        entry.kind in LATER or entry.at < row.expires or entry.seq <= taken
        for entry in waiting
        if entry.key not in late
    )
