"""Looking at sessions without a lease: a state at any checkpoint, the past of a branch, which sessions there are.

The past is read without rebuilding any state: the rows of a line, each verified on top of the one before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import Corrupted, Unavailable
from perdure.history.checkpoint import Checkpoint, Reading
from perdure.history.expiry import living
from perdure.history.hydrate import (
    TRIES,
    ancestry,
    head_of,
    load_at,
    load_remembered,
    look,
    open_row,
    origins,
    payload_of,
    steady,
    where_is,
)
from perdure.model import ASIDE, MAIN, ChangePage, SessionRow
from perdure.record import codec
from perdure.record.codec import Point
from perdure.record.packs import PackReader
from perdure.state.merge import Difference, differences
from perdure.system.flow import Do, Flow
from perdure.system.names import check_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.kernel import Kernel
    from perdure.model import Envelope, Row
    from perdure.record.codec import Body
    from perdure.system.flow import HandleGuard

At = int | str | None
NOW = "now"
"""The cursor of whoever wants only the changes that come from now on."""


class Reader:
    """What a database answers about its sessions."""

    def __init__(self, kernel: Kernel, guard: HandleGuard) -> None:
        self._kernel = kernel
        self._guard = guard

    def read(
        self, session: str, at: At = None, *, branch: str = MAIN, migrate: bool = True, stale_ok: bool = False
    ) -> Flow[Reading]:
        """The state at a step, tag, branch or checkpoint id (None: the head), without a lease.

        A state of an older schema is shown migrated, or with ``migrate=False`` as it was written. With ``stale_ok``,
        while a tiered store's cold part cannot be reached, the head is shown as the hot tier knows it, and the
        reading says that it is ``possibly_old``.
        """
        self._guard.check()
        return (yield Do(self._load, (check_session(session), at, branch, migrate, stale_ok)))

    def living(self, session: str) -> SessionRow:
        """What is known of a session; ``NotFound`` when there is none, ``Gone`` when its time is over."""
        return living(self._kernel, session)

    def _load(self, session: str, at: At, branch: str, migrate: bool = True, stale_ok: bool = False) -> Reading:
        old = False
        try:
            loaded = load_at(self._kernel, self.living(session), at, branch)
        except Unavailable:
            known = load_remembered(self._kernel, session, branch) if stale_ok and at is None else None
            if known is None:
                raise
            loaded, old = known, True
        return Reading(self._kernel, self._kernel.upgrade(loaded) if migrate else loaded, possibly_old=old)

    def history(
        self, session: str, *, branch: str = MAIN, limit: int = 100, before: int | None = None
    ) -> Flow[list[Checkpoint]]:
        """The checkpoints of a branch, newest first; ``before`` continues from a step."""
        self._guard.check()
        yield Do(self.living, (check_session(session),))
        points = yield Do(history, (self._kernel, session, branch, limit, before))
        return [Checkpoint(p) for p in points]

    def diff(self, session: str, a: At, b: At, *, branch: str = MAIN) -> Flow[list[Difference]]:
        """Where the states at two checkpoints differ."""
        self._guard.check()
        check_session(session)
        one: Reading = yield Do(self._load, (session, a, branch))
        two: Reading = yield Do(self._load, (session, b, branch))
        return differences(one.plain(), two.plain())

    def look(self, session: str) -> Flow[SessionRow]:
        """Owner, status, lease, branches and times of a session, as the store projects them."""
        self._guard.check()
        return (yield Do(look, (self._kernel, check_session(session))))

    def sessions(
        self,
        *,
        owner: str | None = None,
        status: str | None = None,
        agent: str | None = None,
        error: str | None = None,
        label: str | None = None,
        search: str | None = None,
        since: int | None = None,
        before: int | None = None,
        newest: bool = False,
        after: str | None = None,
        limit: int = 100,
    ) -> Flow[list[SessionRow]]:
        """Sessions in order of id; ``after`` continues from an id.

        ``search`` is a part of the id or of the owner, as it is written; ``since`` and ``before`` (ms) bound the time
        of the last commit. With ``newest`` those that were written last come first, and ``after`` is the ``cursor`` of
        the last row seen.
        """
        self._guard.check()

        def listed() -> list[SessionRow]:
            return self._kernel.store.sessions(
                owner=owner, status=status, agent=agent, error=error, label=label, search=search, since=since,
                before=before, newest=newest, after=after, limit=limit,
            )  # fmt: skip

        return (yield Do(listed))

    def counts(self) -> Flow[list[tuple[str, str, str, int]]]:
        """How many sessions there are by status, agent and error: (status, agent, error, number)."""
        self._guard.check()
        return (yield Do(self._kernel.store.counts))

    def changes(self, after: str | None = None, limit: int = 1000) -> Flow[ChangePage]:
        """Commits after a cursor: at least once, in order within a session. None: from the oldest; "now": none before.

        ``CursorExpired`` says that some were trimmed before they were read: list the sessions again, go on from "now".
        """
        self._guard.check()
        if after == NOW:
            # Knows the cursors of every store, so it is not loaded before somebody asks.
            from perdure.stores.cursors import latest

            return ChangePage((), (yield Do(latest, (self._kernel.store,))))
        page: ChangePage = yield Do(self._kernel.store.changes, (after, limit))
        return page._replace(items=tuple(item for item in page.items if not item.session.startswith(ASIDE)))


class OpenedRow(NamedTuple):
    """A verified row of a line."""

    point: Point
    body: Body | None
    """What it recorded, for ``payload_of``; None where an anchor stands for it: what was before it was dropped."""
    since: int
    """The first step it stands for: its own, or that of the first one which was dropped before it."""


def read_rows(
    kernel: Kernel, session: str, line: int, lo: int, hi: int, before: Point | None = None, *, open_end: bool = False
) -> Iterator[OpenedRow]:
    """The rows ``lo`` to ``hi`` of a line, oldest first, each verified on top of the one before it.

    Only those are missing that an anchor says were dropped: an index that leaves out rows is ``Corrupted``. The last
    one is there, too, unless with ``open_end`` it may have been dropped.

    ``before`` is the verified checkpoint that the first one stands on. Without it one row more is read: what that row
    says of itself is enough, since the digest of the next one covers it.
    """
    bundle = kernel.store.slice(session, line, lo if before is not None or lo <= 1 else lo - 1, hi)
    packs = PackReader(kernel, session, bundle.packs)
    due = lo
    for row in bundle.rows:
        if row.step < lo:
            before = unverified(kernel, session, row, packs)
            continue
        body: Body | None = None
        since = row.step
        anchored = packs.anchored(row.line, row.step) if not row.envelope else None
        if anchored is None:
            before, body = open_row(kernel, session, row, packs, before)
        elif (anchored.point.envelope.id, anchored.point.digest) != (row.id, row.digest):
            raise Corrupted(where_is(session, row.line, row.step), "its anchor is about another checkpoint")
        elif anchored.since > due:
            raise Corrupted(where_is(session, line, due), "it is missing")
        else:
            before, since = anchored
        due = row.step + 1
        yield OpenedRow(before, body, since)
    if due <= hi and not open_end:
        raise Corrupted(where_is(session, line, hi), "it is missing")


def change_of(kernel: Kernel, env: Envelope) -> tuple[list[Any], dict[str, Any]] | None:
    """The operations of one checkpoint and what it carries beside them; None when retention dropped what was before."""
    for point, body, _ in read_rows(kernel, env.session, env.line, env.step, env.step):
        return payload_of(kernel, body, point) if body is not None else None
    return None


def history(kernel: Kernel, session: str, branch: str, limit: int, before: int | None) -> list[Point]:
    """Up to ``limit`` checkpoints of a branch, newest first, those before a step only."""
    row = look(kernel, session)
    for again in reversed(range(TRIES)):
        try:
            return steady(kernel, row, lambda r: _history(kernel, r, branch, limit, before))
        except Corrupted:
            # Retention may have dropped a row between two readings, one of which still speaks of it.
            if not again:
                raise
    raise AssertionError


def _history(kernel: Kernel, row: SessionRow, branch: str, limit: int, before: int | None) -> list[Point]:
    session = row.id
    head = head_of(kernel, row, branch)
    known = origins(kernel, session)
    out: list[Point] = []
    top = head.step if before is None else min(head.step, before - 1)
    newest: bytes | None = head.id
    for line, end in sorted(ancestry(kernel, session, head.line, head.step, known).items(), reverse=True):
        first, _, start = known[line]
        if top < first:
            newest = start.parent
            continue
        # Each row names the one before it, so none can be left out: this one has to come next.
        due, id = (end, newest) if top >= end else _due(kernel, session, line, top, end)
        width = limit
        while len(out) < limit and due >= first:
            rows = list(read_rows(kernel, session, line, max(first, due - width + 1), due))
            if id is not None and rows[-1].point.envelope.id != id:
                raise Corrupted(
                    where_is(session, line, due), "it is another checkpoint than the one after it stands on"
                )
            out.extend(reversed([row.point for row in rows]))
            due, id = _before(rows[0])
            # Where retention has left few, look further at once.
            width *= 4
        newest = start.parent
    return out[:limit]


def _due(kernel: Kernel, session: str, line: int, top: int, end: int) -> tuple[int, bytes | None]:
    """Which row of a line is the newest one up to a step, by the word of the one after it; its id if that says it."""
    at, width = top + 1, 1
    while at <= end:
        for row in read_rows(kernel, session, line, at, min(at + width - 1, end), open_end=True):
            if row.since > top + 1:
                raise Corrupted(where_is(session, line, top + 1), "it is missing")
            return _before(row)
        at, width = at + width, width * 4
    raise Corrupted(where_is(session, line, end), "it is missing")


def _before(row: OpenedRow) -> tuple[int, bytes | None]:
    """The step of the row that comes before one, and its id unless what came right before was dropped."""
    env = row.point.envelope
    return row.since - 1, env.parent if row.since == env.step else None


def unverified(kernel: Kernel, session: str, row: Row, packs: PackReader) -> Point:
    """A row's own claim about itself: enough to verify the row after it, which covers this one's digest."""
    if not row.envelope and (anchored := packs.anchored(row.line, row.step)) is not None:
        return anchored.point
    env = row.envelope or packs.row(row.line, row.step).envelope
    return Point(codec.decode_envelope(env, f"session {session!r}, line {row.line}, step {row.step}"), row.digest)
