"""The session handle: everything a session can do, as blocking methods."""

# pyright: reportPrivateUsage=false
# The handle is one thing in several rooms: they share its inner parts.
from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Self

from perdure.errors import Misuse
from perdure.model import Kind, Status
from perdure.session.runs import Runs
from perdure.system.flow import Do, Flow, drive, sync

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.history.checkpoint import Checkpoint


class UncommittedEdits(UserWarning):
    """A handle was closed with edits that no commit had taken."""


class SessionFlows(Runs):
    """All flows of a handle. :class:`Session` and :class:`perdure.aio.AsyncSession` are made from these."""

    def _close_flow(self, note: str = "") -> Flow[Checkpoint | None]:
        """End the session: it can still be read, but no longer written. Uncommitted edits go into the last commit."""
        self._usable()
        if self._run is not None:
            msg = "a session is not closed inside a run: return from it first"
            raise Misuse(msg)
        if self.status == Status.CLOSED:
            return self.head
        return (yield from self._write(Kind.CLOSED, x={"note": note} if note else {}, status=Status.CLOSED))

    def _release_flow(self) -> Flow[None]:
        """Give the lease back; the handle cannot be used afterwards. Leaving the ``with`` block does this."""
        if self._closed:
            return
        self._closed = True
        if self._on_release is not None:
            self._on_release(self)
        lease, self._lease = self._lease, None
        if lease is not None:
            yield Do(self.kernel.store.release, (lease,))

    _on_release: Any = None

    def _warn_uncommitted(self) -> None:
        unsent = self._pending is not None and not self._is_line_pending()
        if not self._closed and self._stale is None and (self.changed or unsent):
            msg = f"session {self.id!r}: edits after step {self.step} were never committed and are gone"
            warnings.warn(msg, UncommittedEdits, stacklevel=3)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} on {self.branch} at step {self.step}, {self.status}>"


class Session(SessionFlows):
    """A session being written: the one handle for state, commits, calls, runs and branches.

    Get one from :meth:`perdure.Database.session`.

    >>> import perdure
    >>> with perdure.open("memory://") as db, db.session("trip-42", owner="ana") as s:
    ...     s.messages.append({"role": "user", "content": "Two weeks, five countries"})
    ...     s.vars["budget"] = 12_000
    ...     s.commit().step
    1
    """

    commit = sync(SessionFlows._commit_flow)
    call = sync(SessionFlows._call_flow)
    run = sync(SessionFlows._run_flow)
    resolve = sync(SessionFlows._resolve_flow)
    take = sync(SessionFlows._take_flow)
    fork = sync(SessionFlows._fork_flow)
    rewind = sync(SessionFlows._rewind_flow)
    switch = sync(SessionFlows._switch_flow)
    merge = sync(SessionFlows._merge_flow)
    tag = sync(SessionFlows._tag_flow)
    reload = sync(SessionFlows._reload_flow)
    close = sync(SessionFlows._close_flow)
    release = sync(SessionFlows._release_flow)

    def _courier(self) -> Callable[[Flow[Any]], Any]:
        return lambda flow: drive(self, flow)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self._warn_uncommitted()
        self.release()
