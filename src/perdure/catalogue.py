"""Which sessions there are: listing and counting them, and making one that somebody else will work on."""

# pyright: reportPrivateUsage=false
# The handle is one thing in several rooms: they share its inner parts.
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from perdure.errors import Busy, Conflict, InvalidInput, OutcomeUnknown
from perdure.flow import Do, Flow
from perdure.model import Kind, SessionRow, Status
from perdure.names import check_name, check_session

if TYPE_CHECKING:
    from perdure.kernel import Kernel
    from perdure.session import SessionFlows


class CatalogueFlows:
    """The flows of a database that are about its sessions as a whole."""

    kernel: Kernel

    if TYPE_CHECKING:

        def _usable(self) -> None: ...

        def _open(self, session: str, *, owner: str = ..., ttl: Any = ..., lease: bool = ...) -> Flow[Any]: ...

    def _sessions_flow(
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
        self._usable()

        def listed() -> list[SessionRow]:
            return self.kernel.store.sessions(
                owner=owner, status=status, agent=agent, error=error, search=search, since=since, before=before,
                newest=newest, after=after, limit=limit,
            )  # fmt: skip

        return (yield Do(listed))

    def _counts_flow(self) -> Flow[list[tuple[str, str, str, int]]]:
        """How many sessions there are by status, agent and error: (status, agent, error, number)."""
        self._usable()
        return (yield Do(self.kernel.store.counts))

    def _create_flow(
        self, session: str, *, agent: str, owner: str = "", ttl: int | Literal["default"] | None = "default"
    ) -> Flow[bool]:
        """Make a session that an agent will work on, durably and without its lease; False when it is there already.

        It is also there when somebody else is making it at this moment. One of another owner is an ``InvalidInput``.
        """
        self._usable()
        check_name(agent, "agent name")
        row: SessionRow | None = yield Do(self.kernel.store.look, (check_session(session),))
        over = False
        if row is not None and row.heads:
            if owner and row.owner and owner != row.owner:
                raise InvalidInput(f"session {session!r} belongs to another owner")
            over = row.expires is not None and self.kernel.clock.wall() >= row.expires
            if not over:
                return False
        try:
            # Only its lease ends what has expired, and only then the name is free.
            s: SessionFlows = yield from self._open(session, owner=owner, ttl=ttl, lease=over)
        except Busy:
            return False
        try:
            return (yield from _begun(s, agent))
        finally:
            yield from s._release_flow()


def _begun(s: SessionFlows, agent: str) -> Flow[bool]:
    """Write the first checkpoint of a session; False when another one is there."""
    if s._point is not None:
        return False
    s._settings.agent = agent
    try:
        try:
            yield from s._write(Kind.COMMIT, status=Status.IDLE)
        except OutcomeUnknown:
            # The same bytes once more: known by their id, should they have landed.
            yield from s._resend()
    except (Busy, Conflict):
        return False
    return True
