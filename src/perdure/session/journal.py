"""The journal of a handle: its document, its head, and the one way a checkpoint gets written.

Every part of a handle edits the same document and writes through here. Only flows: who waits for them is the
business of the handle that drives them.
"""

from __future__ import annotations

import os
from collections import deque
from copy import copy
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast

from perdure import telemetry
from perdure.errors import (
    Conflict,
    Gone,
    InvalidInput,
    LeaseError,
    LeaseLost,
    LimitExceeded,
    Misuse,
    NotFound,
    OutcomeUnknown,
    PerdureError,
    SessionClosed,
    TailLost,
    Unavailable,
)
from perdure.history.checkpoint import Checkpoint
from perdure.history.expiry import begins_on_main
from perdure.history.hydrate import find, load_head, look
from perdure.history.lives import next_life
from perdure.model import MAIN, Append, Kind, Landed, Lease, Status
from perdure.record import codec
from perdure.record.codec import Loaded, Point, Settings, encode_commit, seal_commit
from perdure.record.tombstones import LIFE
from perdure.session.actions import Action
from perdure.session.actions import Do as ToDo
from perdure.session.strands import BESIDE, TOOK, Strands
from perdure.session.taken import TAKEN, Marks, beginning, marks_of, start, take
from perdure.session.wakes import VOID
from perdure.state.delta import apply
from perdure.state.document import BOOK, STATE, Document, TrackedDict, genesis
from perdure.state.values import BlobRef, Wire
from perdure.system import faults
from perdure.system.commands import door
from perdure.system.flow import Do, Flow, HandleGuard, Write, entered
from perdure.system.names import check_name
from perdure.system.wording import storable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from perdure.kernel import Kernel
    from perdure.model import SessionRow
    from perdure.session.inbox import Message
    from perdure.session.runs import CatchUp
    from perdure.session.tools.call_state import CallState

R = TypeVar("R")
E = TypeVar("E", bound=PerdureError)
MAX_COMMIT = codec.MAX_ROW
"""The most bytes one commit may carry, blobs apart."""
MAX_ABOUT = 4096
"""The most bytes a checkpoint may say about itself in the clear."""
_CLOSED = Status.CLOSED.value
LEFT = "left"
"""Marks the record of a run that calls have ended, and that was not gone on with since."""
OWN_TTL = "ttl"
"""Under this a checkpoint that lives longer, because somebody is asked, says for how long its session does usually."""
_STATUSES = tuple(status.value for status in Status)
_NOTHING_WRITTEN = (Unavailable, Conflict, LeaseError, InvalidInput, LimitExceeded, Misuse)
"""Errors of a store that certainly wrote nothing."""
_REOPENING = (Kind.MIGRATED, Kind.REOPENED)


sent: deque[bytes] = deque(maxlen=4096)
"""The newest commits that this process has sent to any store, landed or not."""
os.register_at_fork(after_in_child=sent.clear)


def whose(error: E) -> E:
    """A conflict that says so when this very process has made the head that it met."""
    if isinstance(error, Conflict) and error.head is not None and error.head.id in sent.copy():
        error.args = (
            f"{error.args[0]} (the head was made by this process: by another handle of it, or by a commit of it that "
            "was interrupted and landed all the same)",
        )
    return error


def still_unknown(item: Append, error: Unavailable) -> OutcomeUnknown:
    """What to say when a commit that may have landed could not be sent again."""
    return OutcomeUnknown(
        f"session {item.session!r}, commit {item.id.hex()}: an earlier attempt may have landed, and the store cannot "
        f"be asked at the moment ({error}); try again with the same handle, or look it up",
        item.id,
    )


def session_closed(session: str, then: str = "") -> SessionClosed:
    """What to say when somebody wants to go on with a session that was closed, and ``then`` does it once more."""
    opens = Action(ToDo.REOPEN, session)
    by_running = "" if then else f"agent.run(db, session={session!r}, reopen=True), or "
    said = {"shell": opens.command, "http": f'{opens.http} with "reopen": true'}.get(
        door(), f"{by_running}{opens.library}"
    )
    return SessionClosed(f"session {session!r} is closed: {said} opens it again{f'; {then}' if then else ''}")


def check_not_closed(kernel: Kernel, row: SessionRow, then: str = "") -> None:
    """Refuse work for a session whose main branch was closed; only a verified checkpoint says that it was."""
    if row.status == _CLOSED and any(head.branch == MAIN for head in row.heads):
        point = load_head(kernel, row, MAIN).point
        if point is not None and point.envelope.status == _CLOSED:
            raise session_closed(row.id, then)


class Caretaker(Protocol):
    """Who looks after a database while its handles write: leases, packing, a witness."""

    def landed(self, point: Point, calls: Mapping[str, Called]) -> None:
        """A checkpoint is durable; ``calls`` has those it may speak of."""
        ...

    def committed(self, journal: Journal) -> None:
        """A commit of this journal is durable."""
        ...

    def release(self, journal: Journal) -> Flow[None]:
        """A handle is done with its session: give its lease back."""
        ...


class Pending(NamedTuple):
    """A sealed commit whose fate is not known yet: it is sent again, byte for byte, before anything else."""

    item: Append
    point: Point
    blobs: dict[str, bytes | BlobRef]
    asked: tuple[Any, ...]
    """What it was asked for with: the same asked again is the same commit."""
    settle: Callable[[], Flow[None]] | None = None
    """How to find out what became of it, where sending it again is not enough: of the beginning of a line."""
    age: int = 0
    """The age of the document from which on it holds: before, its edits are still the document's."""
    marks: Marks | None = None
    """What the book says from then on of inputs that were taken; None: the same."""


class KeptAs(NamedTuple):
    """How what a call returns is kept: under which name, for how many ms and whether the owner's sessions share it."""

    name: str
    ms: int
    shared: bool


class Called(NamedTuple):
    """What a witness is told of a call."""

    tool: str
    slot: str
    """Its place in the journal."""
    digest: str
    kept: KeptAs | None


def _told(x: dict[str, Any]) -> dict[str, Any]:
    """What is said of a commit; its words may be those of anybody, and must not keep it from being written."""
    words = {name: storable(x[name]) for name in ("note", "error") if isinstance(x.get(name), str)}
    return {**x, **words}


class Journal:
    """A session being written, as all parts of its handle see it."""

    def __init__(
        self, kernel: Kernel, session: str, branch: str, lease: Lease | None, settings: Settings, gate: Any
    ) -> None:
        self.kernel = kernel
        self.id = session
        self.branch = branch
        self.lease = lease
        self.settings = settings
        self.gate = gate
        """One commit of a handle at a time."""
        self._inside = False
        self._unsure = b""
        """The commit of which nobody knows whether it has landed."""
        self.guard = HandleGuard(f"this handle of session {session!r}", "open the session again")
        self.overtaken = False
        """Whether its lease is known to be lost: what is not committed never can be, by this handle."""
        self.document = Document(genesis(), kernel.resolve)
        self.point: Point | None = None
        """The newest checkpoint; None before the first."""
        self._pending: Pending | None = None
        self.held: list[Pending] = []
        """Sealed commits that go with the next one: the head is the last of them, and none of it is durable yet."""
        self._told: Point | None = None
        """The newest checkpoint that the store has acknowledged, while later ones are held."""
        self.stale: Conflict | TailLost | Misuse | None = None
        """Why nothing more can be written before a reload."""
        self._takes: tuple[int, list[Message]] = (-1, [])
        self.unpacked = 0
        """Rows behind the newest pack."""
        self.run: str | None = None
        """The run under way."""
        self.catching_up: CatchUp | None = None
        """The record of an interrupted run that is being repeated."""
        self.strands = Strands(None)
        """The tasks and threads of the run under way."""
        self.given_again: list[Message] = []
        """What an interrupted run had taken, and has not asked for again where it did."""
        self.caretaker: Caretaker | None = None
        self.loads = 0
        """How often a state was loaded: what was learnt of it before the last time is out of date."""
        self.calls: dict[str, Called] = {}
        """The effects that go on through this handle, by id; of reads nobody need know."""
        self.drafts: set[CallState] = set()
        """Drafts of the state that calls under way have: each is told what is written meanwhile."""
        self._epoch = kernel.store.epoch
        self._agent = ""
        """Who works on the session, as far as the store was told."""
        self._life = 0
        """Which life of the session the first checkpoint begins."""
        self.child_of: dict[str, Any] | None = None
        """The call of another session that this one works on: its first checkpoint names it."""
        self.inherited: Marks = {}
        """What was taken before the first checkpoint: all inputs of an earlier session of this name."""

    @property
    def pending(self) -> Pending | None:
        """A sealed commit whose fate is not known yet.

        It is set before its edits are set apart, by one step that no interrupt can divide: until then it is none.
        """
        pending = self._pending
        return pending if pending is not None and pending.age <= self.document.age else None

    @pending.setter
    def pending(self, pending: Pending | None) -> None:
        self._pending = pending

    @property
    def takes(self) -> list[Message]:
        """Inputs that were given out and that the next commit takes; set apart with the edits."""
        if self._takes[0] != self.document.age:
            self._takes = (self.document.age, [])
        return self._takes[1]

    @property
    def book(self) -> TrackedDict:
        """What the library keeps beside the state: effects, approvals, runs, and an agent's notes."""
        return self.document.root[BOOK]

    @property
    def step(self) -> int:
        """The newest step; 0 before the first commit."""
        return self.point.envelope.step if self.point else 0

    @property
    def line(self) -> int:
        """The line of the newest checkpoint."""
        return self.point.envelope.line if self.point else 0

    @property
    def status(self) -> str:
        """The status the newest checkpoint records."""
        return self.point.envelope.status if self.point else Status.IDLE

    @property
    def label(self) -> str:
        """Where the session stands in the program's own words; "" when it has none."""
        return str(self.point.envelope.x.get("label", "")) if self.point else ""

    @property
    def head(self) -> Checkpoint | None:
        """The newest checkpoint."""
        return Checkpoint(self.point) if self.point else None

    @property
    def fence(self) -> int | None:
        """The fencing token of the lease; None for an optimistic writer."""
        return self.lease.token if self.lease else None

    @property
    def changed(self) -> bool:
        """Whether there are edits that no commit has taken yet."""
        return any(op[1][0] == STATE for op in self.document.collect())

    @property
    def known_agent(self) -> str:
        """The agent that the session is one of, as what was written last says; "" when none has been named."""
        return self._agent

    def check_open(self) -> None:
        """Refuse to go on with a session that was closed: before anything is paid that could not be written down."""
        if self.status == _CLOSED:
            raise session_closed(self.id)

    # -- loading --------------------------------------------------------------------------------------------------

    def adopt(self, loaded: Loaded) -> None:
        """Stand where a loaded document stands; what was not committed is gone."""
        # An interrupt may end this half-way: then nothing is written before it was done once more.
        self.stale = Misuse(f"session {self.id!r}: a change of place was interrupted: reload() it before you go on")
        self.document.replace(loaded.doc)
        self.loads += 1
        self.point = loaded.point
        self.unpacked = loaded.loose
        self.pending = None
        self.held.clear()
        self._epoch = self.kernel.store.epoch
        self.stale = None

    def load(self) -> Flow[None]:
        """Read the head of the branch; a session without checkpoints begins empty."""
        try:
            row = yield Do(look, (self.kernel, self.id))
        except NotFound:
            if self.branch != MAIN:
                raise begins_on_main(self.id, self.branch) from None
            self._agent = ""
            before = yield Do(find, (self.kernel, self.id))
            # What waits now came after the last one ended: nobody could take any of it yet.
            self.inherited = beginning(self.kernel.store_id, before.posts - before.pending if before else 0)
            self._life = next_life(self.kernel, before)
            self.adopt(Loaded(genesis(), None, 0))
            return
        self._agent = row.agent
        loaded: Loaded = yield Do(load_head, (self.kernel, row, self.branch))
        self.adopt(loaded)

    def reload(self) -> Flow[None]:
        """Throw uncommitted edits away and read the head anew.

        A commit of which nobody knows whether it has landed (it was interrupted, or its answer was lost) is settled
        first: it is in what is read, or will never be.
        """
        self.guard.check()
        yield from self.within(self._reload())

    def _reload(self) -> Flow[None]:
        pending = self.pending
        if self.held or (pending is not None and (pending.settle is not None or self._unsure == pending.item.id)):
            try:
                yield from self.settle()
            except (OutcomeUnknown, Unavailable):
                raise
            except PerdureError:
                pass  # refused: it has not landed, and what is there is read now
        yield from self.load()

    # -- committing -----------------------------------------------------------------------------------------------

    def commit(
        self,
        note: str = "",
        *,
        status: str | None = None,
        label: str | None = None,
        model: dict[str, Any] | None = None,
        usage: dict[str, Any] | None = None,
        tools: str | None = None,
    ) -> Flow[Checkpoint]:
        """Make all edits durable as one checkpoint. When this returns, they survive kill -9.

        ``status`` is one of :class:`perdure.Status`; ``label`` says in your own words where the session stands, and
        stays until it is changed; "" clears it.
        ``model`` (name, version, temperature, top_p, seed), ``usage`` (tokens, cost) and ``tools`` (the version of
        the tool schemas) are recorded with the checkpoint. Without edits nothing is written and the head is
        returned, except that a session's first commit is always written.
        """
        self.guard.check()
        self.strands.go_on()
        if status is not None and status not in _STATUSES:
            raise InvalidInput(
                f"there is no status {status!r:.80}: it is one of {', '.join(_STATUSES)}. A word of your own for where "
                "the session stands is its label: commit(label=...)"
            )
        x: dict[str, Any] = {}
        if note or model or usage or tools:
            about: dict[str, Any] = {"note": note, "model": model, "usage": usage, "tools": tools}
            x = _told({k: v for k, v in about.items() if v})
        if label is not None and check_name(label, "label", empty=True) != self.label:
            x["label"] = label
        if x and len(codec.encode(Wire(None).value(x, ("checkpoint",))).data) > MAX_ABOUT:
            what = "note, label, model, usage and tools of a checkpoint"
            msg = f"{what} may have {MAX_ABOUT} bytes: keep more in the state"
            raise LimitExceeded(msg)
        if self.catching_up is not None and self.point is not None:
            done = yield from self.catching_up.commit(empty=not (x or status or self.changed))
            if done:
                return Checkpoint(self.point)
        return (yield from self.write(Kind.COMMIT, x=x, status=status, empty=bool(x or status)))

    def write(
        self,
        kind: str,
        *,
        x: dict[str, Any] | None = None,
        extra: dict[str, Any] | None = None,
        status: str | Callable[[], str] | None = None,
        empty: bool = True,
        stamp: tuple[TrackedDict, str] | None = None,
        edit: Callable[[], None] | None = None,
        asked: tuple[Any, ...] = (),
    ) -> Flow[Checkpoint]:
        """Write one checkpoint; ``stamp`` is a record of the book and the key under which it gets (line, step).

        ``edit`` makes the edits that must become durable in this very commit, not in another one of this handle that
        happens to be written first; a ``status`` that depends on them is a function.
        """
        return (
            yield from self.within(
                self.write_inside(
                    kind, x=x, extra=extra, status=status, empty=empty, stamp=stamp, edit=edit, asked=asked
                )
            )
        )

    def write_inside(
        self,
        kind: str,
        *,
        x: dict[str, Any] | None = None,
        extra: dict[str, Any] | None = None,
        status: str | Callable[[], str] | None = None,
        empty: bool = True,
        stamp: tuple[TrackedDict, str] | None = None,
        edit: Callable[[], None] | None = None,
        asked: tuple[Any, ...] = (),
    ) -> Flow[Checkpoint]:
        """Write one checkpoint, for who is inside the gate already."""
        asked = asked or (kind, x, extra, status)
        if self.stale is not None or self.pending is not None:
            again = stamp is None and self.pending is not None and self.pending.asked == asked
            yield from self.settle()
            if again and self.point is not None and not self.takes and not self.document.collect():
                # The answer to this very commit was lost: it has landed now, once.
                return Checkpoint(self.point)
        before = self.point
        if kind not in _REOPENING:
            self.check_open()
        if stamp is not None:
            # Known only here: other commits of this handle may have landed while we waited for the gate.
            stamp[0][stamp[1]] = [self.line, self.step + 1]
        if self.run is not None:
            self.book.get("runs", {}).get(self.run, {}).pop(LEFT, None)
        if edit is not None:
            edit()
        if callable(status):
            status = status()
        pending = self._set_apart(kind, x, extra, status, asked, empty=empty)
        if pending is None:
            return Checkpoint(cast("Point", before))
        yield from self.send(pending)
        return Checkpoint(pending.point)

    def hold(self, kind: str, *, x: dict[str, Any], status: str) -> Flow[None]:
        """Seal the edits made so far as a checkpoint that becomes durable with the next one, or with :meth:`flush`."""
        yield from self.within(self._hold(kind, x, status))

    def _hold(self, kind: str, x: dict[str, Any], status: str) -> Flow[None]:
        if self.stale is not None or self.pending is not None:
            yield from self.settle()
        self.check_open()
        if not self.held:
            self._told = self.point
        pending = self._set_apart(kind, x, None, status, (kind, x, None, status), empty=True)
        assert pending is not None
        self.held.append(pending)
        self.point = pending.point
        self.pending = None
        if pending.item.agent:
            self._agent = pending.item.agent

    def flush(self) -> Flow[None]:
        """Make what is held durable."""
        if self.held:
            yield from self.within(self.settle())

    def within(self, flow: Flow[R]) -> Flow[R]:
        """Carry a flow out inside the gate."""
        with (yield from entered(self.gate)):
            if self._inside:
                # Of this very thread: a handler of a signal. It would wait for what it interrupts.
                raise Misuse(f"session {self.id!r} is being committed: do it after that, not in a signal's handler")
            self._inside = True
            try:
                return (yield from flow)
            finally:
                self._inside = False

    def _set_apart(
        self,
        kind: str,
        x: dict[str, Any] | None,
        extra: dict[str, Any] | None,
        status: str | None,
        asked: tuple[Any, ...],
        *,
        empty: bool,
    ) -> Pending | None:
        """Seal the edits made so far; those made from then on belong to the next commit. None: there are none."""
        document = self.document
        with document.lock:
            while True:
                edits, count = document.edits, len(self.takes)
                ops = document.collect()
                if self.point is not None and not ops and not empty and not self.takes:
                    return None
                marked, marks = self._marks()
                item, point, blobs = self.seal(
                    kind, [*ops, *marked], _told(x) if x else {}, {**extra} if extra else {}, status
                )
                self._pending = Pending(item, point, blobs, asked, None, document.age + 1, marks)
                # A handler of a signal may have made edits in this very thread: then it is sealed once more. The step
                # that sets them apart, with the inputs taken, follows at once: no interrupt comes between.
                if document.edits == edits and len(self.takes) == count:
                    document.age += 1
                    self.strands.written()
                    for draft in self.drafts:
                        draft.landed(ops, (x or {}).get("tool", ""))
                    return self._pending

    def _marks(self) -> tuple[list[list[Any]], Marks | None]:
        """The operations that write down in the book what the next commit takes, and what it says then."""
        if not self.takes and (self.point is not None or not self.inherited):
            return [], None
        kept = TAKEN in self.book
        marks = marks_of(self.document.root) if kept else dict(self.inherited)
        ops = take(marks, (e.stamp for e in self.takes), f"session {self.id!r}, inbox")
        return (ops if kept else start(marks)), marks

    def settle(self) -> Flow[None]:
        """Inside the gate: what is held is sent, and a commit whose fate we never learnt again, byte for byte."""
        if self.stale is not None:
            raise self.stale
        pending = self.pending or (self.held[-1] if self.held else None)
        if pending is not None:
            yield from (pending.settle() if pending.settle is not None else self.send(pending))

    def resend(self) -> Flow[None]:
        """A commit whose fate we never learnt is settled first: it would be lost, or land behind our back."""
        if self.pending is not None:
            yield from self.within(self.settle())

    def send(self, pending: Pending) -> Flow[None]:
        """Hand a sealed commit to the store, with what is held, and stand on it once it is durable."""
        item, point = pending.item, pending.point
        ahead = [p for p in self.held if p is not pending]
        blobs = dict(kept for p in (*ahead, pending) for kept in p.blobs.items())
        # Blobs are durable before the commit that names them; sent again, they are renewed, too.
        if blobs:
            for ref, held in blobs.items():
                yield Do(self.kernel.keep, (ref, held))
        faults.point("commit.before_write")
        began = perf_counter() if telemetry.sinks else 0.0
        sent.extend(p.item.id for p in (*ahead, pending))
        try:
            answer: Landed | PerdureError = yield Write(item, tuple(p.item for p in ahead))
            faults.point("commit.after_write")
        except BaseException as error:
            self._learnt(item, error)
            raise
        if isinstance(answer, PerdureError):
            self._learnt(item, answer)
            if isinstance(answer, Conflict | LeaseLost) and (lost := (yield Do(self._lost_tail))) is not None:
                self._lose(lost)
                raise lost from answer
            self.overtaken = isinstance(answer, LeaseLost)
            if isinstance(answer, Conflict):
                # The head moved: what we built on is no longer there, so this handle must be reloaded.
                answer = whose(answer)
                self._lose(answer)
            raise answer
        # In this order: a commit that is sent once more because of an interrupt is found to have landed.
        if pending.marks is not None:
            apply(start(pending.marks), self.document.root)
        self.point = point
        self.pending = None
        self.held.clear()
        if item.agent:
            self._agent = item.agent
        for landed in (*ahead, pending):
            if began:
                telemetry.committed(self.id, landed.item, perf_counter() - began, self.kernel.store.url)
            self.unpacked += 1
            if self.caretaker is not None:
                self.caretaker.landed(landed.point, self.calls)
        if self.caretaker is not None:
            self.caretaker.committed(self)

    def _lose(self, why: Conflict | TailLost) -> None:
        """Nothing that was sealed here can land any more: this handle must be reloaded."""
        self.stale, self.pending = why, None
        self.held.clear()

    def _learnt(self, item: Append, error: BaseException) -> None:
        """What an error says of a commit. Once nobody knows whether it has landed, an error of a later attempt that
        nothing was written is true of that attempt alone."""
        if isinstance(error, Unavailable) and self._unsure == item.id:
            raise still_unknown(item, error) from error
        if not isinstance(error, _NOTHING_WRITTEN):
            self._unsure = item.id

    def _lost_tail(self) -> TailLost | None:
        """Whether the store forgot what it had acknowledged to this handle; only who was told can know."""
        newest = self._told if self.held else self.point
        if newest is None or self.kernel.store.epoch == self._epoch:
            return None
        env, digest = newest
        try:
            there = self.kernel.store.slice(self.id, env.line, env.step, env.step).rows
        except Gone:
            return None
        except NotFound:
            there = ()
        if any(row.digest == digest for row in there):
            return None
        row = self.kernel.store.look(self.id)
        if row is not None and row.reason:
            return None
        left = [h.step for h in row.heads if h.branch == self.branch] if row else []
        return TailLost(self.id, env.step, left[0] if left else None)

    def seal(
        self, kind: str, ops: list[Any], x: dict[str, Any], extra: dict[str, Any], status: str | None
    ) -> tuple[Append, Point, dict[str, bytes | BlobRef]]:
        """Check and seal edits; nothing is changed if this raises."""
        if self.settings.validate is not None:
            self.settings.validate(self.document.root[STATE], ops)
        if self.takes:
            x["takes"] = [e.key for e in self.takes]
            if void := [e.key for e in self.takes if e.kind == VOID]:
                x[VOID] = void
            extra["took"] = [[e.key, e.kind, e.body] for e in self.takes]
        if self.run is not None:
            x.setdefault("run", self.run)
            if (beside := self.strands.mark()) is not None:
                extra[BESIDE] = beside
            if took := [e.key for e in self.takes if e.key in self.strands.took]:
                extra[TOOK] = took
        body, blobs = encode_commit(ops, extra, self.kernel.form)
        if self.settings.agent != self._agent and self.settings.agent:
            x["agent"] = self.settings.agent
        if blobs:
            x["blobs"] = sorted(blobs)
        if len(body.data) > MAX_COMMIT:
            raise LimitExceeded(
                f"this commit has {len(body.data)} bytes, over the limit of {MAX_COMMIT}: "
                "commit more often, or keep large values as single values so that they become blobs"
            )
        before = self.point
        if before is None and self._life:
            x[LIFE] = self._life
        if before is None and self.child_of is not None:
            x["child_of"] = self.child_of
        status = status or (before.envelope.status if before else Status.IDLE)
        item, point = seal_commit(
            self.kernel.keys, self.kernel.store_id, self.kernel.clock.wall(), self.id, self.branch, before, kind, body,
            x, self.lasting(status, x), status, self.fence,
        )  # fmt: skip
        return item, point, blobs

    def lasting(self, status: str, x: dict[str, Any]) -> Settings:
        """How the session was opened; while it waits for somebody's agreement it lives for as long as the request."""
        if self.settings.ttl is None or status != Status.WAITING_APPROVAL:
            return self.settings
        pending = [r["expires"] for r in self.book.get("approvals", {}).values() if r["status"] == "pending"]
        needed = -(-(max(pending, default=0) - self.kernel.clock.wall()) // 1000)
        if needed <= self.settings.ttl:
            return self.settings
        longer = copy(self.settings)
        longer.ttl = needed
        x[OWN_TTL] = self.settings.ttl
        return longer
