"""The session handle: one object that holds its parts, and the blocking methods that people call.

Its parts: the journal writes, the inbox gives out what was posted, calls make calls with effects, approvals and the
read cache, branches fork and merge, runs go on where they stopped. :class:`SessionHandle` puts them together;
:class:`Session` blocks, :class:`perdure.AsyncSession` awaits the same flows.
"""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from perdure.errors import Misuse
from perdure.history.checkpoint import StateView
from perdure.history.origin import Origin
from perdure.model import Kind, Status
from perdure.session.approvals import Approval, Approvals
from perdure.session.branches import Branches
from perdure.session.effects import Calls, Effects
from perdure.session.inbox import Inbox
from perdure.session.journal import Journal
from perdure.session.read_cache import ReadCache
from perdure.session.runs import Runs
from perdure.system.flow import Flow, drive, sync, wrong_use

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.history.checkpoint import Checkpoint


class UncommittedEdits(UserWarning):
    """A handle was closed with edits that no commit had taken."""


class SessionHandle(StateView):
    """A session being written, whoever waits for its flows: the parts, and what is read from them."""

    commits_with = "s.commit() keeps them"
    """What a warning about edits that nobody committed advises."""

    def __init__(self, journal: Journal, carrier: Callable[[], Callable[[Flow[Any]], Any]]) -> None:
        self.journal = journal
        self.kernel = journal.kernel
        """The database it belongs to, as its parts see it."""
        self.document = journal.document
        self._carrier = carrier
        self.origin = Origin("created")
        """How the handle came to its state, and why an earlier session of this id is gone."""

    # -- its parts, made when first used --------------------------------------------------------------------------

    @cached_property
    def inbox(self) -> Inbox:
        """What was posted to the session."""
        return Inbox(self.journal)

    @cached_property
    def effect_records(self) -> Effects:
        """The records of its effects."""
        return Effects(self.journal, self.inbox, self.read_cache)

    @cached_property
    def requests(self) -> Approvals:
        """Its requests for people's agreement."""
        return Approvals(self.journal, self.inbox, self.effect_records)

    @cached_property
    def read_cache(self) -> ReadCache:
        """The results that it keeps for a while."""
        return ReadCache(self.journal)

    @cached_property
    def calls(self) -> Calls:
        """Its calls, one at a time or several at once."""
        return Calls(self.journal, self.inbox, self.effect_records, self.requests, self.read_cache, self._carrier)

    @cached_property
    def branches(self) -> Branches:
        """Its branches."""
        return Branches(self.journal)

    @cached_property
    def runs(self) -> Runs:
        """Its runs."""
        return Runs(self.journal, self.calls, self)

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The session's id."""
        return self.journal.id

    @property
    def branch(self) -> str:
        """The branch that is written."""
        return self.journal.branch

    @property
    def opened(self) -> str:
        """How the handle came to its state: "created", "resumed" or "restarted"."""
        return self.origin.kind

    @property
    def because(self) -> str:
        """Why it was restarted: "expired", or what a tombstone says."""
        return self.origin.reason

    @property
    def owner(self) -> str:
        """Who the session belongs to."""
        return self.journal.settings.owner

    @property
    def step(self) -> int:
        """The newest step; 0 before the first commit."""
        return self.journal.step

    @property
    def status(self) -> str:
        """The status the newest checkpoint records."""
        return self.journal.status

    @property
    def label(self) -> str:
        """Where the session stands in the program's own words; "" when it says nothing."""
        return self.journal.label

    @property
    def head(self) -> Checkpoint | None:
        """The newest checkpoint."""
        return self.journal.head

    @property
    def fence(self) -> int | None:
        """The fencing token of this handle's lease; None for an optimistic writer."""
        return self.journal.fence

    @property
    def changed(self) -> bool:
        """Whether there are edits that no commit has taken yet."""
        return self.journal.changed

    def set_summary(self, text: str) -> None:
        """Replace the summary."""
        self.journal.guard.check()
        self.state["summary"] = text

    def remember(self, name: str, value: Any, source: str = "") -> None:
        """Put a fact down with its time (ms) and source."""
        self.journal.guard.check()
        self.facts[name] = {"value": value, "time": self.kernel.clock.wall(), "source": source}

    def effects(self) -> list[dict[str, Any]]:
        """The effects this branch still holds records of, oldest first."""
        return self.effect_records.all()

    def approvals(self, status: str | None = "pending") -> list[Approval]:
        """The requests of this branch with that status (None: all)."""
        return self.requests.all(status)

    def close_flow(self, note: str = "") -> Flow[Checkpoint | None]:
        """End the session: it can still be read, but no longer written. Uncommitted edits go into the last commit."""
        self.journal.guard.check()
        if self.journal.run is not None:
            raise Misuse("a session is not closed inside a run: return from it first")
        if self.status == Status.CLOSED:
            return self.head
        return (yield from self.journal.write(Kind.CLOSED, x={"note": note} if note else {}, status=Status.CLOSED))

    def release_flow(self) -> Flow[None]:
        """Give the lease back; the handle cannot be used afterwards. Leaving the ``with`` block does this."""
        journal = self.journal
        if journal.guard.closed and journal.lease is None:
            return
        journal.guard.closed = True
        if journal.guard.part_of is not None and journal.guard.part_of.closed:
            # Closing the database has given all leases back.
            journal.lease = None
        elif journal.caretaker is not None:
            yield from journal.caretaker.release(journal)

    def warn_uncommitted(self) -> None:
        """Say so when edits are about to be lost with the handle."""
        journal = self.journal
        unsent = journal.pending is not None and journal.pending.settle is None
        if not journal.guard.closed and journal.stale is None and (self.changed or unsent):
            msg = f"session {self.id!r}: edits after step {self.step} were never committed and are gone"
            warnings.warn(f"{msg}: {self.commits_with}", UncommittedEdits, stacklevel=3)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} on {self.branch} at step {self.step}, {self.status}>"


class Session(SessionHandle):
    """A session being written: the one handle for state, commits, calls, runs and branches.

    Get one from :meth:`perdure.Database.session`.

    >>> import perdure
    >>> with perdure.open("memory://") as db, db.session("trip-42", owner="ana") as s:
    ...     s.messages.append({"role": "user", "content": "Two weeks, five countries"})
    ...     s.vars["budget"] = 12_000
    ...     s.commit().step
    1
    """

    def __init__(self, journal: Journal) -> None:
        store = journal.kernel.store
        super().__init__(journal, lambda: lambda flow: drive(store, flow))

    commit = sync(Journal.commit, "journal")
    reload = sync(Journal.reload, "journal")
    call = sync(Calls.call, "calls")
    resolve = sync(Effects.resolve, "effect_records")
    take = sync(Inbox.take, "inbox")
    fork = sync(Branches.fork, "branches")
    rewind = sync(Branches.rewind, "branches")
    switch = sync(Branches.switch, "branches")
    merge = sync(Branches.merge, "branches")
    tag = sync(Branches.tag, "branches")
    run = sync(Runs.run, "runs")
    close = sync(SessionHandle.close_flow)
    release = sync(SessionHandle.release_flow)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.warn_uncommitted()
        self.release()

    if not TYPE_CHECKING:
        __aenter__ = __aexit__ = wrong_use(
            "this session blocks: `with db.session(...)`; perdure.open_async(...) has the ones that are awaited"
        )
