"""The database handle: get sessions from it, look at anything in it without a lease, keep it in order.

:class:`DatabaseHandle` opens sessions and holds the parts that do the rest; :class:`Database` blocks,
:class:`perdure.AsyncDatabase` awaits the same flows.
"""

from __future__ import annotations

import copy
import threading
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

from perdure import telemetry
from perdure.errors import Busy, Conflict, InvalidInput, OutcomeUnknown
from perdure.history.blob_streams import BlobStreams, as_file
from perdure.history.expiry import check_branch_is_there, expired
from perdure.history.hydrate import find, load_head
from perdure.history.origin import Origin, origin_of
from perdure.history.reader import Reader
from perdure.model import DEFAULT_TTL, MAIN, Kind, Lease, SessionRow, Status
from perdure.record.codec import Loaded, Settings
from perdure.session.handle import Session, SessionHandle
from perdure.session.journal import OWN_TTL, Journal
from perdure.session.posting import Posting
from perdure.session.waiting_messages import WaitingMessages
from perdure.state.declared_types import validator
from perdure.state.delta import diff
from perdure.state.document import STATE, edit
from perdure.system import commands, faults
from perdure.system.flow import Do, Dropped, Flow, HandleGuard, Invoke, sync, wrong_use
from perdure.system.names import check_branch, check_name, check_own_session, check_owner, check_ttl
from perdure.upkeep.background import Caretaker, Claim
from perdure.upkeep.flows import Upkeep

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from perdure.kernel import Kernel
    from perdure.model import ChangePage

EFFECTS = ("reuse", "dry", "live")


class DatabaseHandle:
    """An open store, whoever waits for its flows: sessions are opened here, the parts do the rest."""

    def __init__(
        self,
        kernel: Kernel,
        *,
        lease_ttl: float,
        state: Any,
        maintain: bool,
        witness: str | os.PathLike[str] | None,
        new_handle: Callable[[Journal], SessionHandle],
        new_gate: Callable[[], Any],
        new_reader: Callable[[Iterator[bytes]], Any],
    ) -> None:
        self.kernel = kernel
        self.guard = HandleGuard("this database", "open it again")
        self.dropped = Dropped(self.guard, kernel.store.url)
        self._state = state
        self._new_handle = new_handle
        self._new_gate = new_gate
        commands.opened(self.guard, self.url)
        try:
            self.caretaker = Caretaker(kernel, int(lease_ttl * 1000), self.dropped, maintain=maintain, witness=witness)
        except BaseException:
            kernel.store.close()
            kernel.blobs.close()
            commands.closed(self.guard)
            raise
        self._new_reader = new_reader

    # -- its parts, made when first used --------------------------------------------------------------------------

    @cached_property
    def reader(self) -> Reader:
        """What is read without a lease."""
        return Reader(self.kernel, self.guard)

    @cached_property
    def posting(self) -> Posting:
        """What is put into inboxes."""
        return Posting(self.kernel, self.guard, self.caretaker.before_write, self._is_free)

    @cached_property
    def waiting_messages(self) -> WaitingMessages:
        """What waits in inboxes, and what becomes of it."""
        return WaitingMessages(self.kernel, self.guard, self.as_stored_flow)

    @cached_property
    def blob_streams(self) -> BlobStreams:
        """Large values, piece by piece."""
        return BlobStreams(self.kernel, self.guard, self._new_reader)

    @cached_property
    def upkeep(self) -> Upkeep:
        """What keeps the store in order."""
        return Upkeep(self.kernel, self.guard, self.caretaker, self.session_flow)

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """How the store was opened, without any secret."""
        return self.kernel.store.url

    @property
    def promise(self) -> str:
        """What the store promises once a commit has returned, in words."""
        return self.kernel.store.promise.words

    @property
    def lease_ttl(self) -> int:
        """Milliseconds a lease lives without being renewed."""
        return self.caretaker.lease_ttl

    def in_schema(self, schema: str) -> Self:
        """The same database for somebody without the program's state type, who writes states in this schema."""
        self.guard.check()
        view = copy.copy(self)
        view.kernel = copy.copy(self.kernel)
        view.kernel.schema = schema
        view._state = None
        return view

    def shut(self) -> None:
        """Finish upkeep, let leases go, close the store: what both kinds of databases do last."""
        self.caretaker.close()
        try:
            self.kernel.store.close()
        finally:
            self.kernel.blobs.close()
            commands.closed(self.guard)

    # -- sessions -------------------------------------------------------------------------------------------------

    def session_flow(
        self,
        session: str,
        *,
        owner: str = "",
        branch: str = MAIN,
        ttl: int | Literal["default"] | None = "default",
        lease: bool = True,
        effects: str = "reuse",
        reopen: bool = False,
        by: str = "",
        create: bool = True,
    ) -> Flow[Any]:
        """Open a session for writing: hydrate it, or create it. Use it as a context manager.

        ``branch`` is where to go on; ``ttl`` how many seconds it lives after its last commit (None: for ever);
        ``lease=False`` makes an optimistic writer that may lose with ``Conflict``; ``effects`` says what happens to
        calls that another branch already made: "reuse", "dry" (nothing but reads is called) or "live"; ``reopen`` goes
        on with a closed session, and its history says ``by`` whom; ``create=False`` takes an existing one only: a
        missing one is ``NotFound``, one that has expired or was deleted ``Gone``. Raises ``Busy`` while somebody else
        holds the lease.
        """
        self.guard.check()
        check_own_session(session)
        check_name(owner, "owner", empty=True)
        check_name(by, "by", empty=True)
        if branch != MAIN:
            check_branch(branch)
        if effects not in EFFECTS:
            raise InvalidInput(f"effects is one of {', '.join(EFFECTS)}, not {effects!r:.40}")
        wanted = DEFAULT_TTL if ttl == "default" else check_ttl(ttl)
        if not create:
            # A lease makes a row for a session that never was: look first.
            yield Do(self.reader.living, (session,))
        if branch != MAIN:
            yield Do(check_branch_is_there, (self.kernel, session, branch))
        claim, granted = self.caretaker.claim(session), None
        origin = Origin("created")
        try:
            if lease:
                granted = yield from claim.acquire()
            else:
                yield Do(self.caretaker.before_write, (session,))
            origin, granted = yield from self._expire(session, granted, claim)
            s = yield from self._hydrate(session, owner, branch, ttl, wanted, granted, effects, reopen, by, origin)
            if not create and s.journal.point is None:
                # It went between the look and the lease.
                yield Do(self.reader.living, (session,))
            if granted is not None and s.journal.point is not None:
                telemetry.resumed(s.status)
            return s
        except BaseException as e:
            # First of all: what comes after it may be interrupted once more.
            yield from claim.give_up()
            if granted is not None and origin.kind == "resumed":
                telemetry.not_resumed(e)
            raise

    def as_stored_flow(self, session: str, *, owner: str = "") -> Flow[SessionHandle]:
        """Open a session for writing, and leave it in the schema that it has."""
        row: SessionRow | None = yield Do(find, (self.kernel, session))
        if row is None or not any(head.branch == MAIN for head in row.heads):
            return (yield from self.session_flow(session, owner=owner))
        loaded: Loaded = yield Do(load_head, (self.kernel, row, MAIN))
        assert loaded.point is not None
        return (yield from self.in_schema(loaded.point.envelope.schema).session_flow(session, owner=owner))

    def _hydrate(
        self, session: str, owner: str, branch: str, ttl: Any, wanted: int | None, granted: Lease | None,
        effects: str, reopen: bool, by: str, origin: Origin,
    ) -> Flow[SessionHandle]:  # fmt: skip
        settings = Settings(owner, wanted, self.kernel.schema, effects)
        if self._state is not None:
            settings.validate = validator(self._state)
        journal = Journal(self.kernel, session, branch, granted, settings, self._new_gate())
        journal.caretaker = self.caretaker
        journal.guard.part_of = self.guard
        if granted is not None:
            # An interrupt may come between here and whoever opens the session: then nobody releases it.
            self.caretaker.heartbeat.held_by(granted, journal)
        s = self._new_handle(journal)
        yield from s.journal.load()
        s.origin = origin
        if s.journal.point is not None:
            s.origin = Origin("resumed")
            env = s.journal.point.envelope
            check_owner(session, env.owner, owner)
            settings.owner = env.owner or owner
            if ttl == "default":
                settings.ttl = env.x.get(OWN_TTL, env.ttl)
            if env.status != Status.CLOSED or reopen:
                yield from self._migrate(s)
            if env.status == Status.CLOSED and reopen:
                x = {"note": f"reopened by {by}"} if by else {}
                yield from s.journal.write(Kind.REOPENED, x=x, status=Status.IDLE)
        return s

    def _expire(self, session: str, granted: Lease | None, claim: Claim) -> Flow[tuple[Origin, Lease | None]]:
        """An expired session is swept before its name is used again; says what was there, and whose it is now."""
        row: SessionRow | None = yield Do(find, (self.kernel, session))
        if row is None or not row.heads:
            return origin_of(row), granted
        if not row.over:
            return Origin("resumed"), granted
        from perdure.upkeep.expired_sessions import expire

        try:
            gone = yield Do(expire, (self.kernel, session, granted.token if granted else None))
        except Busy:
            # An optimistic writer: whoever holds the session goes on with it.
            gone = False
        if not gone:
            return Origin("resumed"), granted
        if granted is not None:
            # A tombstone ends every lease, ours included.
            granted = yield from claim.acquire()
        return origin_of((yield Do(find, (self.kernel, session)))), granted

    def _is_free(self, session: str) -> Flow[bool]:
        """Whether whoever has this name next begins anew; one that has expired, and that nobody has swept, is ended."""
        row: SessionRow | None = yield Do(find, (self.kernel, session))
        if row is None or not row.heads:
            return row is not None and bool(row.reason)
        if not row.over or not (yield Do(expired, (self.kernel, row))):
            return False
        # Only its lease ends it: without, a life that somebody has begun meanwhile could be taken for it.
        s = yield from self.as_stored_flow(session)
        yield from s.release_flow()
        return True

    def _migrate(self, s: SessionHandle) -> Flow[None]:
        assert s.journal.point is not None
        if s.journal.point.envelope.schema == self.kernel.schema:
            return
        new = self.kernel.upgrade(Loaded({STATE: s.state.plain()}, s.journal.point, 0)).doc[STATE]
        edit(diff(s.state.plain(), new), s.state)
        old = s.journal.point.envelope.schema
        faults.point("migrate.before_write")
        yield from s.journal.write(Kind.MIGRATED, x={"note": f"schema {old} to {self.kernel.schema}"})
        faults.point("migrate.after_write")

    def create_flow(
        self, session: str, *, agent: str, owner: str = "", ttl: int | Literal["default"] | None = "default"
    ) -> Flow[bool]:
        """Make a session that an agent will work on, durably and without its lease; False when it is there already.

        It is also there when somebody else is making it at this moment. One of another owner or agent is an
        ``InvalidInput``.
        """
        self.guard.check()
        check_name(agent, "agent name")
        row: SessionRow | None = yield Do(find, (self.kernel, check_own_session(session)))
        over = False
        if row is not None and row.heads:
            check_owner(session, row.owner, owner)
            over = row.over
            if not over:
                _check_agent(row, agent)
                return False
        new = False
        with suppress(Busy):
            # Only its lease ends what has expired, and only then the name is free.
            s: SessionHandle = yield from self.session_flow(session, owner=owner, ttl=ttl, lease=over)
            try:
                new = yield from _begun(s, agent)
            finally:
                yield from s.release_flow()
        if not new and (row := (yield Do(self.kernel.store.look, (session,)))) is not None:
            # Somebody else made it, or is about to.
            check_owner(session, row.owner, owner)
            _check_agent(row, agent)
        return new

    def update_flow(self, session: str, fn: Callable[[Any], Any], *, tries: int = 10, **options: Any) -> Flow[Any]:
        """Apply ``fn(session)`` and commit, optimistically: on a conflict it is applied again on the new head.

        This is the helper for several writers without a lease: no input is lost, and ``fn`` may run several times,
        so it must only edit the state. After ``tries`` conflicts the last one is raised.
        """
        for attempt in range(tries):
            s: SessionHandle = yield from self.session_flow(session, lease=False, **options)
            try:
                result = yield Invoke(fn, (s,))
                yield from s.journal.commit()
            except Conflict:
                if attempt + 1 == tries:
                    raise
            else:
                return result
            finally:
                yield from s.release_flow()
        return None


def _check_agent(row: SessionRow, agent: str) -> None:
    if row.agent not in ("", agent):
        raise InvalidInput(f"session {row.id!r} is one of agent {row.agent!r:.80}, not {agent!r:.80}: say that one")


def _begun(s: SessionHandle, agent: str) -> Flow[bool]:
    """Write the first checkpoint of a session; False when another one is there."""
    journal = s.journal
    if journal.point is not None:
        return False
    journal.settings.agent = agent
    try:
        try:
            yield from journal.write(Kind.COMMIT, status=Status.IDLE)
        except OutcomeUnknown:
            # The same bytes once more: known by their id, should they have landed.
            yield from journal.resend()
    except (Busy, Conflict):
        return False
    return True


class Database(DatabaseHandle):
    """An open store with its sessions. Get one from :func:`perdure.open`."""

    def __init__(self, kernel: Kernel, **options: Any) -> None:
        super().__init__(kernel, new_handle=Session, new_gate=threading.RLock, new_reader=as_file, **options)

    session: Callable[..., Session] = sync(DatabaseHandle.session_flow)
    update = sync(DatabaseHandle.update_flow)
    create = sync(DatabaseHandle.create_flow)
    read = sync(Reader.read, "reader")
    history = sync(Reader.history, "reader")
    diff = sync(Reader.diff, "reader")
    look = sync(Reader.look, "reader")
    sessions = sync(Reader.sessions, "reader")
    counts = sync(Reader.counts, "reader")
    changes = sync(Reader.changes, "reader")
    post = sync(Posting.post, "posting")
    post_outcome = sync(Posting.post_outcome, "posting")
    approve = sync(Posting.approve, "posting")
    answer = sync(Posting.answer, "posting")
    reject = sync(Posting.reject, "posting")
    wake = sync(Posting.wake, "posting")
    cancel_wake = sync(Posting.cancel_wake, "posting")
    cancel = sync(Posting.cancel, "posting")
    inbox = sync(WaitingMessages.inbox, "waiting_messages")
    withdraw = sync(WaitingMessages.withdraw, "waiting_messages")
    edit = sync(WaitingMessages.edit, "waiting_messages")
    compact = sync(Upkeep.compact, "upkeep")
    prune = sync(Upkeep.prune, "upkeep")
    sweep = sync(Upkeep.sweep, "upkeep")
    revive = sync(Upkeep.revive, "upkeep")
    set_aside = sync(Upkeep.set_aside, "upkeep")
    migrate = sync(Upkeep.migrate, "upkeep")
    collect = sync(Upkeep.collect, "upkeep")
    verify = sync(Upkeep.verify, "upkeep")
    accept_damage = sync(Upkeep.accept_damage, "upkeep")
    witness = sync(Upkeep.witness, "upkeep")
    accept_loss = sync(Upkeep.accept_loss, "upkeep")
    backup = sync(Upkeep.backup, "upkeep")
    restore = sync(Upkeep.restore, "upkeep")
    export_session = sync(Upkeep.export_session, "upkeep")
    import_sessions = sync(Upkeep.import_sessions, "upkeep")
    usage = sync(Upkeep.usage, "upkeep")
    copy_to = sync(Upkeep.copy_to, "upkeep")
    put_blob = sync(BlobStreams.put_blob, "blob_streams")
    open_blob = sync(BlobStreams.open_blob, "blob_streams")

    def watch(
        self, after: str | None = None, *, poll: float = 0.2, stop: threading.Event | None = None
    ) -> Iterator[Any]:
        """Changes as they happen, for ever or until ``stop`` is set."""
        for page in self.watch_pages(after, poll=poll, stop=stop):
            yield from page.items

    def watch_pages(
        self, after: str | None = None, *, limit: int = 1000, poll: float = 0.2, stop: threading.Event | None = None
    ) -> Iterator[ChangePage]:
        """Changes as they happen, in pages with the cursor behind them; an empty page when there is nothing new."""
        stop = stop or threading.Event()
        while not stop.is_set():
            page = self.changes(after, limit)
            yield page
            after = page.cursor
            if not page.items:
                stop.wait(poll)

    def close(self) -> None:
        """Finish upkeep, let leases go, close the store."""
        if self.guard.closed or self.guard.forked:
            return
        self.guard.closed = True
        self.shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    if not TYPE_CHECKING:
        __aenter__ = __aexit__ = __await__ = wrong_use(
            "this database blocks: `with perdure.open(...)`, or `async with perdure.open_async(...)`"
        )
