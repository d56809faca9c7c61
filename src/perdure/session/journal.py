"""The heart of a session handle: its document, its head, and the one way a checkpoint gets written.

Only flows live here; the handles with blocking and awaited methods are put together in ``session`` and ``bridge``.
"""

# pyright: reportPrivateUsage=false
# The handle is one thing in several rooms: they share its inner parts.
from __future__ import annotations

import os
import threading
from time import perf_counter
from typing import TYPE_CHECKING, Any

from perdure import telemetry
from perdure.errors import (
    Conflict,
    ForkedProcess,
    Gone,
    HandleClosed,
    LeaseLost,
    LimitExceeded,
    Misuse,
    NotFound,
    PerdureError,
    TailLost,
)
from perdure.history.checkpoint import Checkpoint, StateView
from perdure.history.expiry import Origin
from perdure.history.hydrate import load_head, look
from perdure.kernel import Kernel
from perdure.model import Append, Kind, Landed, Lease, Status
from perdure.record import codec
from perdure.record.commit import Loaded, Point, Settings, encode, seal_commit
from perdure.state.document import BOOK, STATE, Document, TrackedDict, genesis
from perdure.state.values import BlobRef, Wire
from perdure.system import faults
from perdure.system.flow import Do, Enter, Flow, Write

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.session.catch_up import Replay

MAX_COMMIT = codec.MAX_ROW
"""The most bytes one commit may carry, blobs apart."""
_Lock = type(threading.Lock())
_CLOSED = Status.CLOSED.value
_REOPENING = (Kind.MIGRATED, Kind.REOPENED)
MAX_ABOUT = 4096
"""The most bytes a checkpoint may say about itself in the clear."""


def _never(_: bool) -> bool:
    """A gate of the event loop can only be awaited."""
    return False


class SessionCore(StateView):
    """A session being written. See :class:`perdure.Session`."""

    def __init__(
        self, kernel: Kernel, session: str, branch: str, lease: Lease | None, settings: Settings, gate: Any
    ) -> None:
        self.kernel = kernel
        self.id = session
        self.branch = branch
        self.origin = Origin("created")
        """How the handle came to its state, and why an earlier session of this id is gone."""
        self._settings = settings
        self._lease = lease
        self._gate = gate
        self._enter: Callable[[bool], bool] = gate.acquire if isinstance(gate, _Lock) else _never
        """Takes the gate when nobody has it, without a round through the driver."""
        self._pid = os.getpid()
        self._epoch = kernel.store.epoch
        self._closed = False
        self._stale: Conflict | TailLost | None = None
        self._point: Point | None = None
        self.document = Document(genesis(), kernel.resolve)
        self._pending: tuple[Append, Point, dict[str, bytes | BlobRef]] | None = None
        self._asked: tuple[Any, ...] = ()
        """What the pending commit was asked for with: the same asked again is the same commit."""
        self._taking: list[Any] = []
        self._loose = 0
        self._agent = ""
        """Who works on the session, as far as the store was told."""
        self._replay: Replay | None = None
        self._run: str | None = None
        self._elsewhere: Any = None
        self._on_commit: Callable[[SessionCore], None] | None = None
        self._on_point: Callable[[Point], None] | None = None

    # -- what it is ---------------------------------------------------------------------------------------------

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
        return self._settings.owner

    @property
    def step(self) -> int:
        """The newest step; 0 before the first commit."""
        return self._point.envelope.step if self._point else 0

    @property
    def status(self) -> str:
        """The status the newest checkpoint records."""
        return self._point.envelope.status if self._point else Status.IDLE

    @property
    def head(self) -> Checkpoint | None:
        """The newest checkpoint."""
        return Checkpoint(self._point) if self._point else None

    @property
    def fence(self) -> int | None:
        """The fencing token of this handle's lease; None for an optimistic writer."""
        return self._lease.token if self._lease else None

    @property
    def changed(self) -> bool:
        """Whether there are edits that no commit has taken yet."""
        return any(op[1][0] == STATE for op in self.document.collect())

    @property
    def _book(self) -> TrackedDict:
        return self.document.root[BOOK]

    def set_summary(self, text: str) -> None:
        """Replace the summary."""
        self.state["summary"] = text

    def remember(self, name: str, value: Any, source: str = "") -> None:
        """Put a fact down with its time (ms) and source."""
        self.facts[name] = {"value": value, "time": self.kernel.clock.wall(), "source": source}

    # -- guards -------------------------------------------------------------------------------------------------

    def _usable(self) -> None:
        if self._closed:
            msg = f"this handle of session {self.id!r} was closed: open the session again"
            raise HandleClosed(msg)
        if os.getpid() != self._pid:
            msg = f"this handle of session {self.id!r} was opened before a fork: open the database anew in the child"
            raise ForkedProcess(msg)

    # -- loading ------------------------------------------------------------------------------------------------

    def _adopt(self, loaded: Loaded) -> None:
        self.document.replace(loaded.doc)
        self._point = loaded.point
        self._loose = loaded.loose
        self._pending = None
        self._stale = None
        self._epoch = self.kernel.store.epoch
        self._taking = []
        self._elsewhere = None

    def _load(self) -> Flow[None]:
        """Read the head of the branch; a session without checkpoints begins empty."""
        try:
            row = yield Do(look, (self.kernel, self.id))
        except NotFound:
            self._agent = ""
            self._adopt(Loaded(genesis(), None, 0))
            return
        self._agent = row.agent
        loaded: Loaded = yield Do(load_head, (self.kernel, row, self.branch))
        self._adopt(loaded)

    def _reload_flow(self) -> Flow[None]:
        """Throw uncommitted edits away and read the head anew."""
        self._usable()
        yield from self._load()

    # -- committing ---------------------------------------------------------------------------------------------

    def _commit_flow(
        self,
        note: str = "",
        *,
        status: str | None = None,
        model: dict[str, Any] | None = None,
        usage: dict[str, Any] | None = None,
        tools: str | None = None,
    ) -> Flow[Checkpoint]:
        """Make all edits durable as one checkpoint. When this returns, they survive kill -9.

        ``model`` (name, version, temperature, top_p, seed), ``usage`` (tokens, cost) and ``tools`` (the version of
        the tool schemas) are recorded with the checkpoint. Without edits nothing is written and the head is
        returned, except that a session's first commit is always written.
        """
        self._usable()
        if self._replay is not None and self._point is not None:
            done = yield from self._replay.commit(self)
            if done:
                return Checkpoint(self._point)
        x: dict[str, Any] = {}
        if note or model or usage or tools:
            about: dict[str, Any] = {"note": note, "model": model, "usage": usage, "tools": tools}
            x = {k: v for k, v in about.items() if v}
        if x and len(codec.encode(Wire(None).value(x, ("checkpoint",))).data) > MAX_ABOUT:
            msg = f"note, model, usage and tools of a checkpoint may have {MAX_ABOUT} bytes: keep more in the state"
            raise LimitExceeded(msg)
        return (yield from self._write(Kind.COMMIT, x=x, status=status, empty=bool(x or status)))

    def _write(
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
        asked = asked or (kind, x, extra, status)
        if not self._enter(False):
            yield Enter(self._gate)
        try:
            if self._stale is not None or self._pending is not None:
                again = stamp is None and self._asked == asked
                yield from self._settle_pending()
                if again and self._point is not None and not self._taking and not self.document.collect():
                    # The answer to this very commit was lost: it has landed now, once.
                    return Checkpoint(self._point)
            before = self._point
            if before is not None and before.envelope.status == _CLOSED and kind not in _REOPENING:
                msg = f"session {self.id!r} is closed: open it with reopen=True to go on"
                raise Misuse(msg)
            if stamp is not None:
                # Known only here: other commits of this handle may have landed while we waited for the gate.
                stamp[0][stamp[1]] = [self._point.envelope.line if self._point else 0, self.step + 1]
            if edit is not None:
                edit()
            if callable(status):
                status = status()
            ops = self.document.collect()
            if before is not None and not ops and not empty and not self._taking:
                return Checkpoint(before)
            item, point, blobs = self._seal(kind, ops, {**x} if x else {}, {**extra} if extra else {}, status)
            # From here on nothing is waited for before the edits are set apart: those made meanwhile are new ones.
            self._pending, self._asked = (item, point, blobs), asked
            self.document.settle()
            self._taking = []
            yield from self._send()
            return Checkpoint(point)
        finally:
            self._gate.release()

    def _settle_pending(self) -> Flow[None]:
        """A commit whose fate we never learnt is sent again, byte for byte, before anything else."""
        if self._stale is not None:
            raise self._stale
        if self._pending is not None:
            yield from self._send()

    def _resend(self) -> Flow[None]:
        """A commit whose fate we never learnt is settled first: it would be lost, or land behind our back."""
        if self._pending is not None:
            yield Enter(self._gate)
            try:
                yield from self._settle_pending()
            finally:
                self._gate.release()

    def _send(self) -> Flow[None]:
        assert self._pending is not None
        item, point, blobs = self._pending
        # Blobs are durable before the commit that names them; sent again, they are renewed, too.
        if blobs:
            for ref, held in blobs.items():
                yield Do(self.kernel.keep, (ref, held))
        faults.point("commit.before_write")
        began = perf_counter() if telemetry.sinks else 0.0
        answer: Landed | PerdureError = yield Write(item)
        faults.point("commit.after_write")
        if isinstance(answer, PerdureError):
            if isinstance(answer, Conflict | LeaseLost) and (lost := (yield Do(self._lost_tail))) is not None:
                self._stale, self._pending = lost, None
                raise lost from answer
            if isinstance(answer, Conflict):
                # The head moved: what we built on is no longer there, so this handle must be reloaded.
                self._stale, self._pending = answer, None
            raise answer
        self._pending = None
        self._point = point
        if item.agent:
            self._agent = item.agent
        if began:
            telemetry.committed(self.id, item, perf_counter() - began, self.kernel.store.url)
        if self._on_point is not None:
            self._on_point(point)
        self._loose += 1
        if self._on_commit is not None:
            self._on_commit(self)

    def _lost_tail(self) -> TailLost | None:
        """Whether the store forgot what it had acknowledged to this handle; only who was told can know."""
        if self._point is None or self.kernel.store.epoch == self._epoch:
            return None
        env, digest = self._point
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

    def _seal(
        self, kind: str, ops: list[Any], x: dict[str, Any], extra: dict[str, Any], status: str | None
    ) -> tuple[Append, Point, dict[str, bytes | BlobRef]]:
        """Check and seal; nothing is changed if this raises."""
        if self._settings.validate is not None:
            self._settings.validate(self.state, ops)
        if self._taking:
            x["takes"] = [e.key for e in self._taking]
            extra["took"] = [[e.key, e.kind, e.body] for e in self._taking]
        body, blobs = encode(ops, extra, self.kernel.form)
        if self._run is not None:
            x.setdefault("run", self._run)
        if self._settings.agent != self._agent and self._settings.agent:
            x["agent"] = self._settings.agent
        if blobs:
            x["blobs"] = sorted(blobs)
        if len(body.data) > MAX_COMMIT:
            msg = (
                f"this commit has {len(body.data)} bytes, over the limit of {MAX_COMMIT}: "
                "commit more often, or keep large values as single values so that they become blobs"
            )
            raise LimitExceeded(msg)
        before = self._point
        item, point = seal_commit(
            self.kernel.keys, self.kernel.clock.wall(), self.id, self.branch, before, kind, body, x, self._settings,
            status or (before.envelope.status if before else Status.IDLE), self.fence,
        )  # fmt: skip
        return item, point, blobs
