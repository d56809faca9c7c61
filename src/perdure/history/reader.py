"""Looking at sessions without a lease: a state at any checkpoint, the past of a branch, which sessions there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.errors import Gone, Unavailable
from perdure.history.checkpoint import Checkpoint, Reading
from perdure.history.expiry import expired
from perdure.history.hydrate import load_at, load_remembered, look
from perdure.history.lineage import history
from perdure.model import MAIN, ChangePage, SessionRow
from perdure.state.merge import Difference, differences
from perdure.system.flow import Do, Flow
from perdure.system.names import check_session

if TYPE_CHECKING:
    from perdure.kernel import Kernel
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
        row = look(self._kernel, session)
        if row.expires is not None and self._kernel.clock.wall() >= row.expires and expired(self._kernel, row):
            raise Gone(f"session {session!r} has expired", "expired")
        return row

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
        points = yield Do(history, (self._kernel, check_session(session), branch, limit, before))
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
                owner=owner, status=status, agent=agent, error=error, search=search, since=since, before=before,
                newest=newest, after=after, limit=limit,
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
        return (yield Do(self._kernel.store.changes, (after, limit)))
