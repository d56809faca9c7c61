"""The database handle: open it by URL, get sessions from it, look at anything in it without a lease."""

# pyright: reportPrivateUsage=false
# The handle is one thing in several rooms: they share its inner parts.
from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self

from perdure import telemetry
from perdure.errors import (
    ApprovalError,
    Busy,
    Conflict,
    ForkedProcess,
    Gone,
    HandleClosed,
    InvalidInput,
    OutcomeUnknown,
    PerdureError,
    Unavailable,
)
from perdure.history.blob_streams import BlobFlows
from perdure.history.checkpoint import Checkpoint, Reading
from perdure.history.expiry import Origin, expired, origin_of
from perdure.history.hydrate import load_at, load_head, load_remembered, look
from perdure.history.lineage import history
from perdure.kernel import Kernel
from perdure.model import DEFAULT_TTL, MAIN, ChangePage, Kind, Lease, SessionRow, Status
from perdure.record.codec import JSON, MSGPACK
from perdure.record.commit import Loaded, Settings
from perdure.session.answer_schema import misfit
from perdure.session.approvals import decision
from perdure.session.handle import Session, SessionFlows
from perdure.session.inbox import WakeFlows, seal_entry
from perdure.session.journal import SessionCore
from perdure.state.declared_types import validator
from perdure.state.delta import diff
from perdure.state.document import BOOK, STATE, edit, plain
from perdure.state.merge import Difference, differences
from perdure.system import faults
from perdure.system.flow import Do, Flow, Invoke, sync
from perdure.system.lease_holders import new_holder
from perdure.system.names import check_branch, check_name, check_session, check_ttl
from perdure.upkeep.background import Heartbeat, Housekeeper
from perdure.upkeep.compaction import PACK_MIN, PACK_ROWS
from perdure.upkeep.flows import Upkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perdure.kernel import Kernel
    from perdure.session.handle import SessionFlows

NOW = "now"
"""The cursor of whoever wants only the changes that come from now on."""


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


P = ParamSpec("P")
EFFECTS = ("reuse", "dry", "live")
At = int | str | None


class DatabaseFlows(CatalogueFlows, Upkeep, BlobFlows, WakeFlows):
    """All flows of a database. :class:`Database` and :class:`perdure.aio.AsyncDatabase` are made from these."""

    def __init__(
        self, kernel: Kernel, *, lease_ttl: float, state: Any, maintain: bool, witness: str | os.PathLike[str] | None
    ) -> None:
        self.kernel = kernel
        self._pid = os.getpid()
        self._closed = False
        self._state = state
        self._maintain = maintain
        self._lease_ttl = int(lease_ttl * 1000)
        self._heartbeat = Heartbeat(kernel, self._lease_ttl)
        self._housekeeper = Housekeeper(kernel)
        self._witness = None
        if witness is not None:
            from perdure.upkeep.witness import LiveWitness

            try:
                self._witness = LiveWitness(kernel, witness)
            except BaseException:
                kernel.store.close()
                kernel.blobs.close()
                raise

    @property
    def url(self) -> str:
        """How the store was opened, without any secret."""
        return self.kernel.store.url

    @property
    def promise(self) -> str:
        """What the store promises once a commit has returned, in words."""
        return self.kernel.store.promise.words

    def _usable(self) -> None:
        if self._closed:
            msg = "this database was closed: open it again"
            raise HandleClosed(msg)
        if os.getpid() != self._pid:
            msg = "this database was opened before a fork: open it anew in the child"
            raise ForkedProcess(msg)

    # -- sessions -----------------------------------------------------------------------------------------------

    def _open(
        self,
        session: str,
        *,
        owner: str = "",
        branch: str = MAIN,
        ttl: int | Literal["default"] | None = "default",
        lease: bool = True,
        effects: str = "reuse",
        reopen: bool = False,
        create: bool = True,
    ) -> Flow[Any]:
        """Open a session for writing: hydrate it, or create it. Use it as a context manager.

        ``branch`` is where to go on; ``ttl`` how many seconds it lives after its last commit (None: for ever);
        ``lease=False`` makes an optimistic writer that may lose with ``Conflict``; ``effects`` says what happens to
        calls that another branch already made: "reuse", "dry" (nothing is called) or "live"; ``reopen`` goes on with
        a closed session; ``create=False`` takes an existing one only: a missing one is ``NotFound``, one that has
        expired or was deleted ``Gone``. Raises ``Busy`` while somebody else holds the lease.
        """
        self._usable()
        check_session(session)
        check_name(owner, "owner", empty=True)
        if branch != MAIN:
            check_branch(branch)
        if effects not in EFFECTS:
            msg = f"effects is one of {', '.join(EFFECTS)}, not {effects!r:.40}"
            raise InvalidInput(msg)
        wanted = DEFAULT_TTL if ttl == "default" else check_ttl(ttl)
        if not create:
            # A lease makes a row for a session that never was: look first.
            yield Do(self._living, (session,))
        granted: Lease | None = None
        if lease:
            granted = yield Do(self.kernel.store.acquire, (session, new_holder(), self._lease_ttl))
            assert granted is not None
            self._heartbeat.add(granted)
        origin = Origin("created")
        try:
            origin, granted = yield from self._expire(session, granted)
            s = yield from self._hydrate(session, owner, branch, ttl, wanted, granted, effects, reopen, origin)
            if not create and s._point is None:
                # It went between the look and the lease.
                yield Do(self._living, (session,))
            if granted is not None and s._point is not None:
                telemetry.resumed(s.status)
            return s
        except BaseException as e:
            if granted is not None:
                if origin.kind == "resumed":
                    telemetry.not_resumed(e)
                self._heartbeat.remove(granted)
                yield Do(self.kernel.store.release, (granted,))
            raise

    def _hydrate(
        self, session: str, owner: str, branch: str, ttl: Any, wanted: int | None, granted: Lease | None,
        effects: str, reopen: bool, origin: Origin,
    ) -> Flow[SessionFlows]:  # fmt: skip
        settings = Settings(owner, wanted, self.kernel.schema, effects)
        settings.validate = validator(self._state)
        s = self._new_handle(self.kernel, session, branch, granted, settings, self._new_gate())
        s._on_point = self._witness.note if self._witness is not None else None
        yield from s._load()
        s.origin = origin
        if s._point is not None:
            s.origin = Origin("resumed")
            env = s._point.envelope
            if owner and env.owner and owner != env.owner:
                msg = f"session {session!r} belongs to another owner"
                raise InvalidInput(msg)
            settings.owner = env.owner or owner
            if ttl == "default":
                settings.ttl = env.ttl
            if env.status != Status.CLOSED or reopen:
                yield from self._migrate(s)
            if env.status == Status.CLOSED and reopen:
                yield from s._write(Kind.REOPENED, status=Status.IDLE)
        s._on_commit = self._committed
        s._on_release = self._released
        return s

    def _expire(self, session: str, granted: Lease | None) -> Flow[tuple[Origin, Lease | None]]:
        """An expired session is swept before its name is used again; says what was there, and whose it is now."""
        row: SessionRow | None = yield Do(self.kernel.store.look, (session,))
        if row is None or not row.heads:
            return origin_of(row), granted
        if row.expires is None or self.kernel.clock.wall() < row.expires or granted is None:
            return Origin("resumed"), granted
        from perdure.upkeep.retention import expire

        gone = yield Do(expire, (self.kernel, session, granted.token))
        if not gone:
            return Origin("resumed"), granted
        # A tombstone ends every lease, ours included.
        self._heartbeat.remove(granted)
        again: Lease = yield Do(self.kernel.store.acquire, (session, granted.holder, self._lease_ttl))
        self._heartbeat.add(again)
        return origin_of((yield Do(self.kernel.store.look, (session,)))), again

    def _migrate(self, s: SessionFlows) -> Flow[None]:
        assert s._point is not None
        if s._point.envelope.schema == self.kernel.schema:
            return
        new = self.kernel.upgrade(Loaded({STATE: s.state.plain()}, s._point, 0)).doc[STATE]
        edit(diff(s.state.plain(), new), s.state)
        old = s._point.envelope.schema
        faults.point("migrate.before_write")
        yield from s._write(Kind.MIGRATED, x={"note": f"schema {old} to {self.kernel.schema}"})
        faults.point("migrate.after_write")

    def _shut(self) -> None:
        """Finish upkeep, let leases go, close the store: what both kinds of databases do last."""
        self._heartbeat.close()
        self._housekeeper.close()
        if self._witness is not None:
            self._witness.close()
        self.kernel.store.close()
        self.kernel.blobs.close()

    def _new_gate(self) -> Any:
        return threading.Lock()

    def _new_handle(self, *args: Any) -> SessionFlows:
        return Session(*args)

    def _committed(self, s: SessionCore) -> None:
        if not self._maintain:
            return
        self._housekeeper.stir()
        if s._loose >= PACK_ROWS and s._point is not None:
            s._loose = 0
            self._housekeeper.request(s.id, s._point.envelope.line, PACK_ROWS)

    def _released(self, s: SessionFlows) -> None:
        if s._lease is not None:
            self._heartbeat.remove(s._lease)
        if self._maintain and s._loose >= PACK_MIN and s._point is not None and not self._closed:
            self._housekeeper.request(s.id, s._point.envelope.line, PACK_MIN)

    def _update_flow(self, session: str, fn: Callable[[Any], Any], *, tries: int = 10, **options: Any) -> Flow[Any]:
        """Apply ``fn(session)`` and commit, optimistically: on a conflict it is applied again on the new head.

        This is the helper for several writers without a lease: no input is lost, and ``fn`` may run several times,
        so it must only edit the state. After ``tries`` conflicts the last one is raised.
        """
        for attempt in range(tries):
            s: SessionFlows = yield from self._open(session, lease=False, **options)
            try:
                result = yield Invoke(fn, (s,))
                yield from s._commit_flow()
            except Conflict:
                if attempt + 1 == tries:
                    raise
            else:
                return result
            finally:
                yield from s._release_flow()
        return None

    # -- looking ------------------------------------------------------------------------------------------------

    def _read_flow(
        self, session: str, at: At = None, *, branch: str = MAIN, migrate: bool = True, stale_ok: bool = False
    ) -> Flow[Reading]:
        """The state at a step, tag, branch or checkpoint id (None: the head), without a lease.

        A state of an older schema is shown migrated, or with ``migrate=False`` as it was written. With ``stale_ok``,
        while a tiered store's cold part cannot be reached, the head is shown as the hot tier knows it, and the
        reading says that it is ``possibly_old``.
        """
        self._usable()
        return (yield Do(self._read, (check_session(session), at, branch, migrate, stale_ok)))

    def _living(self, session: str) -> SessionRow:
        """What is known of a session; ``NotFound`` when there is none, ``Gone`` when its time is over."""
        row = look(self.kernel, session)
        if row.expires is not None and self.kernel.clock.wall() >= row.expires and expired(self.kernel, row):
            raise Gone(f"session {session!r} has expired", "expired")
        return row

    def _read(self, session: str, at: At, branch: str, migrate: bool = True, stale_ok: bool = False) -> Reading:
        old = False
        try:
            loaded = load_at(self.kernel, self._living(session), at, branch)
        except Unavailable:
            known = load_remembered(self.kernel, session, branch) if stale_ok and at is None else None
            if known is None:
                raise
            loaded, old = known, True
        return Reading(self.kernel, self.kernel.upgrade(loaded) if migrate else loaded, possibly_old=old)

    def _history_flow(
        self, session: str, *, branch: str = MAIN, limit: int = 100, before: int | None = None
    ) -> Flow[list[Checkpoint]]:
        """The checkpoints of a branch, newest first; ``before`` continues from a step."""
        self._usable()
        points = yield Do(history, (self.kernel, check_session(session), branch, limit, before))
        return [Checkpoint(p) for p in points]

    def _diff_flow(self, session: str, a: At, b: At, *, branch: str = MAIN) -> Flow[list[Difference]]:
        """Where the states at two checkpoints differ."""
        self._usable()
        check_session(session)
        one: Reading = yield Do(self._read, (session, a, branch))
        two: Reading = yield Do(self._read, (session, b, branch))
        return differences(one.plain(), two.plain())

    def _look_flow(self, session: str) -> Flow[SessionRow]:
        """Owner, status, lease, branches and times of a session, as the store projects them."""
        self._usable()
        return (yield Do(look, (self.kernel, check_session(session))))

    def _changes_flow(self, after: str | None = None, limit: int = 1000) -> Flow[ChangePage]:
        """Commits after a cursor: at least once, in order within a session. None: from the oldest; "now": none before.

        ``CursorExpired`` says that some were trimmed before they were read: list the sessions again, go on from "now".
        """
        self._usable()
        if after == NOW:
            # Knows the cursors of every store, so it is not loaded before somebody asks.
            from perdure.stores.latest import latest

            return ChangePage((), (yield Do(latest, (self.kernel.store,))))
        return (yield Do(self.kernel.store.changes, (after, limit)))

    # -- the inbox ----------------------------------------------------------------------------------------------

    def _post_flow(self, session: str, body: Any, *, key: str | None = None) -> Flow[bool]:
        """Put a message into a session's inbox, durably and without its lease; False when the key was there already."""
        name = check_name(key, "message key") if key is not None else os.urandom(12).hex()
        return (yield from self._post(session, name, "message", body))

    def _post(self, session: str, key: str, kind: str, body: Any) -> Flow[bool]:
        self._usable()
        entry = seal_entry(self.kernel, check_session(session), key, kind, body)
        answers: list[bool | PerdureError] = yield Do(self.kernel.store.post, ([entry],))
        if isinstance(answers[0], PerdureError):
            raise answers[0]
        return answers[0]

    def _post_outcome_flow(
        self, session: str, effect: str, result: Any = None, *, failed: str | None = None
    ) -> Flow[bool]:
        """Report the outcome of an effect from anywhere: of one that said "later", or whose worker lost its lease.

        ``failed`` says that it certainly did not happen, and why.
        """
        if failed is not None:
            return (yield from self._post(session, f"outcome:{effect}", "failure", failed))
        return (yield from self._post(session, f"outcome:{effect}", "outcome", result))

    def _approve_flow(
        self, session: str, approval: str, *, by: str, reason: str = "", args: dict[str, Any] | None = None
    ) -> Flow[None]:
        """Agree to a call, once, exactly as it was asked; with ``args`` to the same call with these arguments."""
        yield from self._decide(session, approval, True, by, reason, **({"args": args} if args is not None else {}))

    def _answer_flow(self, session: str, approval: str, value: Any, *, by: str, reason: str = "") -> Flow[None]:
        """Answer a question that a tool has put with ``ctx.ask``."""
        yield from self._decide(session, approval, True, by, reason, answer=value)

    def _reject_flow(self, session: str, approval: str, *, by: str, reason: str = "") -> Flow[None]:
        """Refuse a call."""
        yield from self._decide(session, approval, False, by, reason)

    def _decide(self, session: str, approval: str, approved: bool, by: str, reason: str, **more: Any) -> Flow[None]:
        row: SessionRow = yield from self._look_flow(session)
        now = self.kernel.clock.wall()
        request = yield Do(self._find_approval, (row, approval))
        if request["status"] != "pending":
            raise ApprovalError(f"approval {approval} was decided already: {request['status']}")
        if now >= request["expires"]:
            raise ApprovalError(f"approval {approval} has expired: the next call asks again")
        if approved and bool(request.get("question")) != ("answer" in more):
            how = "answer it with db.answer(...)" if request.get("question") else "decide with db.approve or db.reject"
            raise ApprovalError(f"approval {approval} is {'a question' if request.get('question') else 'none'}: {how}")
        if "answer" in more and (wrong := misfit(more["answer"], request.get("schema"))):
            raise ApprovalError(f"that does not answer {approval}: {wrong}")
        body = decision(approved, by, reason, now, **more)
        try:
            # Answered with "not new" it is this very one, whose first answer was lost: every other one differs.
            yield from self._post(session, f"decision:{approval}", "decision", body)
        except InvalidInput:
            raise ApprovalError(f"approval {approval} was decided already") from None

    def _find_approval(self, row: SessionRow, approval: str) -> dict[str, Any]:
        # A branch has the requests of the line it parted from; whose they are is asked first.
        for branch in row.branches:
            book = load_head(self.kernel, row, branch).doc[BOOK]
            if approval in book.get("approvals", {}):
                return plain(book["approvals"][approval])
        raise ApprovalError(f"session {row.id!r} has no approval {approval!r:.60}")


def opened(flow: Callable[Concatenate[Any, P], Flow[Any]]) -> Callable[Concatenate[Any, P], Session]:
    """The blocking method for the flow that opens a session."""
    method = sync(flow)
    method.__name__ = method.__qualname__ = "session"
    return method


class Database(DatabaseFlows):
    """An open store with its sessions. Get one from :func:`perdure.open`."""

    session = opened(DatabaseFlows._open)
    update = sync(DatabaseFlows._update_flow)
    read = sync(DatabaseFlows._read_flow)
    history = sync(DatabaseFlows._history_flow)
    diff = sync(DatabaseFlows._diff_flow)
    look = sync(DatabaseFlows._look_flow)
    sessions = sync(DatabaseFlows._sessions_flow)
    counts = sync(DatabaseFlows._counts_flow)
    create = sync(DatabaseFlows._create_flow)
    changes = sync(DatabaseFlows._changes_flow)
    post = sync(DatabaseFlows._post_flow)
    post_outcome = sync(DatabaseFlows._post_outcome_flow)
    approve = sync(DatabaseFlows._approve_flow)
    answer = sync(DatabaseFlows._answer_flow)
    reject = sync(DatabaseFlows._reject_flow)
    wake = sync(DatabaseFlows._wake_flow)
    cancel_wake = sync(DatabaseFlows._cancel_wake_flow)
    cancel = sync(DatabaseFlows._cancel_flow)
    compact = sync(DatabaseFlows._compact_flow)
    prune = sync(DatabaseFlows._prune_flow)
    sweep = sync(DatabaseFlows._sweep_flow)
    migrate = sync(DatabaseFlows._migrate_flow)
    collect = sync(DatabaseFlows._collect_flow)
    verify = sync(DatabaseFlows._verify_flow)
    witness = sync(DatabaseFlows._witness_flow)
    backup = sync(DatabaseFlows._backup_flow)
    restore = sync(DatabaseFlows._restore_flow)
    export_session = sync(DatabaseFlows._export_session_flow)
    import_sessions = sync(DatabaseFlows._import_sessions_flow)
    usage = sync(DatabaseFlows._usage_flow)
    put_blob = sync(DatabaseFlows._put_blob_flow)
    open_blob = sync(DatabaseFlows._open_blob_flow)
    copy_to = sync(DatabaseFlows._copy_to_flow)

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
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


FORMS = {"msgpack": MSGPACK, "json": JSON}
