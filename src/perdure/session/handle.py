"""The session handle: one object that holds its parts, and the blocking methods that people call.

Its parts: the journal writes, the inbox gives out what was posted, calls make calls with effects, approvals and the
read cache, branches fork and merge, runs go on where they stopped. :class:`SessionHandle` puts them together;
:class:`Session` blocks, :class:`perdure.AsyncSession` awaits the same flows.
"""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from perdure.errors import InvalidInput, Misuse
from perdure.history.checkpoint import OBJECTIVE, OBJECTIVE_STATUSES, StateView
from perdure.history.origin import Origin
from perdure.model import Kind, Status
from perdure.session.branches import Branches
from perdure.session.calls.approvals import Approval, Approvals
from perdure.session.calls.calls import Calls
from perdure.session.calls.effects import Effects
from perdure.session.calls.read_cache import ReadCache
from perdure.session.inbox import Inbox
from perdure.session.journal import Journal
from perdure.session.runs import Runs
from perdure.session.tools.context import Contexts
from perdure.system.flow import Flow, drive, sync, wrong_use
from perdure.system.names import check_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.history.checkpoint import Checkpoint


MAX_OBJECTIVE = 4000
"""Bytes of an objective: it is told to the model with every request."""


def check_objective(text: object) -> str:
    """What a session can be to achieve: words, and not too many."""
    if not check_name(text, "session's objective", MAX_OBJECTIVE).strip():
        raise InvalidInput("a session's objective is what is to be achieved, in words: it must not be blank")
    return str(text)


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
        return Approvals(self.journal, self.inbox, self.effect_records, self.contexts)

    @cached_property
    def contexts(self) -> Contexts:
        """What its calls are told of themselves."""
        return Contexts(self.journal)

    @cached_property
    def read_cache(self) -> ReadCache:
        """The results that it keeps for a while."""
        return ReadCache(self.journal)

    @cached_property
    def calls(self) -> Calls:
        """Its calls, one at a time or several at once."""
        return Calls(
            self.journal, self.inbox, self.effect_records, self.requests, self.read_cache, self.contexts, self._carrier
        )

    @cached_property
    def branches(self) -> Branches:
        """Its branches."""
        return Branches(self.journal)

    @cached_property
    def runs(self) -> Runs:
        """Its runs."""
        return Runs(self.journal, self.calls, self)

    if not TYPE_CHECKING:

        def __setattr__(self, name, value):
            part = getattr(type(self), name, None)
            if isinstance(part, property) and part.fset is None:
                whole = (
                    f": change what is in it, or set the whole, s.state[{name!r}] = ..." if name in self.state else ""
                )
                raise Misuse(f"s.{name} is there to be read, and cannot be set{whole}")
            if part is None and name not in self.__dict__ and "origin" in self.__dict__ and not name.startswith("_"):
                raise Misuse(f"a session has no {name}, so it would not be kept: write s.vars[{name!r}] = ...")
            super().__setattr__(name, value)

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
    def deps(self) -> Any:
        """What the tools called through this handle get as ``ctx.deps``: set it. It is never stored."""
        return self.contexts.deps

    @deps.setter
    def deps(self, deps: Any) -> None:
        self.contexts.deps = deps

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

    def set_objective(self, text: str) -> None:
        """Put down what the session is to achieve; it is open until :meth:`end_objective`."""
        self.journal.guard.check()
        check_objective(text)
        self.state[OBJECTIVE] = {"text": text, "status": "open", "note": "", "time": self.kernel.clock.wall()}

    def end_objective(self, status: str, note: str = "") -> None:
        """Say that the objective is "reached" or "given_up", and how or why; "open" takes that back."""
        self.journal.guard.check()
        if status not in OBJECTIVE_STATUSES:
            raise InvalidInput(f"an objective is one of {', '.join(OBJECTIVE_STATUSES)}, not {status!r:.40}")
        if self.objective is None:
            raise InvalidInput(f"session {self.id!r} has no objective: set one with s.set_objective(text)")
        self.objective.update(status=status, note=note, time=self.kernel.clock.wall())

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
            anew = "its lease was lost, so open the session again and make them there"
            advice = anew if journal.overtaken else self.commits_with
            warnings.warn(f"{msg}: {advice}", UncommittedEdits, stacklevel=3)

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
        __aenter__ = __aexit__ = __await__ = wrong_use(
            "this session blocks: `with db.session(...)`; perdure.open_async(...) has the ones that are awaited"
        )
