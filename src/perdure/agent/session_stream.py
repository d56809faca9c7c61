"""Reading along with a worker elsewhere: pieces of its answers on their way, and what became of them.

The pieces go through the store's own way beside the history, sealed like everything else, in batches, by a thread of
their own: whatever is slow or broken there, no commit waits for it. What counts is what was committed.
"""

# pyright: reportPrivateUsage=false
# A reader looks at the books of the loop, which only the agent runtime knows.
from __future__ import annotations

import asyncio
import hmac
import queue
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.agent.models import text_of
from perdure.agent.requests import AGENT, is_answer
from perdure.agent.run_events import Event
from perdure.errors import PerdureError
from perdure.model import MAIN, Status
from perdure.protocols import Live, Talking
from perdure.record import codec
from perdure.record.codec import Body
from perdure.state.document import plain
from perdure.state.values import Wire
from perdure.system.flow import Do
from perdure.system.lease_holders import is_dead

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from perdure.aio import AsyncDatabase, AsyncSession
    from perdure.history.checkpoint import Checkpoint
    from perdure.kernel import Kernel
    from perdure.model import SessionRow

BATCH = 0.05
"""Seconds for which pieces are gathered before they are told together."""
QUEUED = 200
"""Batches that may wait to be told; more are lost."""
IDLE = 5.0
"""Seconds after which a thread with nothing to tell ends."""
MAX_PIECE = 1 << 20


def live_of(kernel: Kernel) -> Live | None:
    """The store's way for pieces; None when it has none."""
    return kernel.store.live() if isinstance(kernel.store, Talking) else None


# -- sealing -------------------------------------------------------------------------------------------------------


def seal_piece(kernel: Kernel, session: str, value: Any) -> bytes:
    """Seal a batch of pieces, bound to its session."""
    body = codec.encode(Wire(None).value(value, ("piece",)))
    name = kernel.keys.current
    digest = _digest(kernel, name, session, body)
    return bytes((len(name),)) + name.encode() + bytes((len(digest),)) + digest + codec.seal(body)


def open_piece(kernel: Kernel, session: str, sealed: bytes) -> Any:
    """What a batch says; None when it is not what was sealed. Nothing rests on it, so nobody need be alarmed."""
    try:
        end = 1 + sealed[0]
        name = sealed[1:end].decode("ascii")
        begin = end + 1 + sealed[end]
        body = codec.unseal(sealed[begin:], "a piece of an answer", MAX_PIECE)
        if not hmac.compare_digest(_digest(kernel, name, session, body), sealed[end + 1 : begin]):
            return None
        return kernel.decode(body, "a piece of an answer")
    except (PerdureError, IndexError, UnicodeDecodeError):
        return None


def _digest(kernel: Kernel, name: str, session: str, body: Body) -> bytes:
    return codec.digest(kernel.keys, name, b"live\0", (session.encode(), body.data), "a piece of an answer")


# -- telling -------------------------------------------------------------------------------------------------------


class Speaker:
    """Tells the pieces of one run's answers; only as long as that costs nobody anything."""

    def __init__(self, db: AsyncDatabase, session: AsyncSession) -> None:
        self._kernel = db.kernel
        self._live = live_of(db.kernel)
        self._session = session.id
        self._branch = session.branch
        self._worker = session.fence or 0
        self._begun = False
        self._waiting: list[dict[str, Any]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._jobs: queue.Queue[Callable[[], None]] = queue.Queue(QUEUED)
        self._thread: threading.Thread | None = None
        self.problem = ""
        """Why nothing more is told, if that is so."""

    def tell(self, event: Event) -> None:
        """Take an event of the loop; never waits."""
        if self._live is None or self.problem:
            return
        if event.kind == "delta":
            self._add(event.data)
        elif event.kind in ("committed", "retracted"):
            self.flush()
            if self._begun:
                self._do(lambda live=self._live: live.clear(self._session))

    def _add(self, data: dict[str, Any]) -> None:
        if not self._begun and self._live is not None:
            # What a worker that died has left there is void.
            self._begun = True
            self._do(lambda live=self._live: live.clear(self._session))
        last = self._waiting[-1] if self._waiting else None
        if last is not None and (last["s"], last["a"]) == (data["step"], data["attempt"]):
            last["t"] += data["text"]
        else:
            piece = {"w": self._worker, "s": data["step"], "a": data["attempt"], "o": data["offset"], "t": data["text"]}
            self._waiting.append(piece if self._branch == MAIN else {**piece, "b": self._branch})
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BATCH, self.flush)

    def flush(self) -> None:
        """Tell what has been gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        if waiting and self._live is not None:
            piece = seal_piece(self._kernel, self._session, waiting)
            self._do(lambda live=self._live: live.publish(self._session, piece))

    def _do(self, job: Callable[[], None]) -> None:
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self.problem = "whoever reads along is told nothing more of this run: the store cannot keep up"
            return
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="perdure-live", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE)
            except queue.Empty:
                return
            try:
                job()
            except Exception as e:  # whatever it is, it must not reach the run
                self.problem = f"whoever reads along is told nothing more of this run: {type(e).__name__}"
                return

    async def close(self) -> None:
        """Tell what is left, as far as that takes no time."""
        self.flush()
        for _ in range(20):
            if self._jobs.empty() or self.problem:
                return
            await asyncio.sleep(0.01)


# -- reading along -------------------------------------------------------------------------------------------------


class _Attempt(NamedTuple):
    worker: int
    attempt: int
    step: int
    text: str


async def follow(
    db: AsyncDatabase, session: str, *, after: int | None = None, poll: float = 0.1
) -> AsyncGenerator[Event]:
    """What a worker elsewhere does in a session, as it happens; ends once a run that was seen has ended.

    Deltas are provisional: their step is ``committed`` later, with the whole text, or their attempt ``retracted``,
    because the worker died or asked anew. ``after`` is the step after which to begin; None: from now on.
    """
    reader = _Reader(db, session)
    await reader.begin(after)
    while True:
        for event in await reader.look():
            yield event
            if event.kind == "ended":
                return
        await asyncio.sleep(poll)


class _Reader:
    """One that reads along: where it stands, and the answer that it has seen a part of."""

    def __init__(self, db: AsyncDatabase, session: str) -> None:
        self._db = db
        self._session = session
        self._live = live_of(db.kernel)
        self._cursor = ""
        self._step = 0
        self._open: _Attempt | None = None
        self._worker = 0
        self._saw_work = False

    async def begin(self, after: int | None) -> None:
        """Where to begin."""
        if after is not None:
            self._step = after
        elif (row := await self._row()) is not None:
            self._step = _head(row)

    async def look(self) -> list[Event]:
        """What happened since the last look."""
        # In this order: what was said is older than the head, so a piece whose step is there already is old news.
        pieces = await self._hear()
        row = await self._row()
        events: list[Event] = []
        if row is None:
            return events
        if _head(row) != self._step:
            events += await self._commits(_head(row))
        for piece in pieces:
            events += self._piece(piece)
        if row.lease.holder:
            self._saw_work = True
        gone = not row.lease.holder or is_dead(row.lease.holder)
        if self._open is not None and (gone or row.lease.token != self._open.worker):
            events += self._retract()
        resting = gone and self._saw_work and not pieces and row.status != Status.RUNNING
        if resting and not await self._left():
            events.append(Event("ended", self._session, self._step, {"status": row.status}))
        return events

    async def _row(self) -> SessionRow | None:
        # Past the database's own look, which knows no session before its first checkpoint.
        return await self._db.bridge.perform(Do(self._db.kernel.store.look, (self._session,)))

    async def _left(self) -> bool:
        """Whether there is something that nobody has answered yet."""
        waiting = await self._db.bridge.perform(Do(self._db.kernel.store.inbox, (self._session, 100)))
        return any(e.kind == "message" for e in waiting)

    async def _hear(self) -> list[dict[str, Any]]:
        if self._live is None:
            return []
        try:
            sealed, self._cursor = await self._db.bridge.perform(Do(self._live.poll, (self._session, self._cursor)))
        except (PerdureError, OSError):
            # The history says it all, a little later.
            return []
        found: list[dict[str, Any]] = []
        for one in sealed:
            found += open_piece(self._db.kernel, self._session, one) or []
        return found

    def _piece(self, piece: dict[str, Any]) -> list[Event]:
        """A piece of the answer that is on its way."""
        if piece["s"] <= self._step or piece["w"] < self._worker or piece.get("b", MAIN) != MAIN:
            return []
        self._saw_work = True
        self._worker = piece["w"]
        events: list[Event] = []
        which = (piece["w"], piece["a"], piece["s"])
        if self._open is not None and self._open[:3] != which:
            events += self._retract()
        text = self._open.text if self._open is not None else ""
        if piece["o"] > len(text):
            # Something was lost on the way: what follows makes no sense before the commit brings it all.
            return events
        data = {"step": piece["s"], "attempt": piece["a"], "worker": piece["w"], "offset": piece["o"]}
        self._open = _Attempt(*which, text[: piece["o"]] + piece["t"])
        return [*events, Event("delta", self._session, self._step, {**data, "text": piece["t"]})]

    def _retract(self) -> list[Event]:
        if self._open is None:
            return []
        worker, attempt, step, _ = self._open
        self._open = None
        return [Event("retracted", self._session, self._step, {"step": step, "attempt": attempt, "worker": worker})]

    async def _commits(self, head: int) -> list[Event]:
        """The commits since the last look, oldest first."""
        self._saw_work = True
        events: list[Event] = []
        missing = max(head - self._step, 0)
        points = await self._db.history(self._session, limit=missing) if missing else []
        for point in sorted(points, key=lambda p: p.step):
            events += await self._commit(point)
        self._step = head
        return events

    async def _commit(self, point: Checkpoint) -> list[Event]:
        if not is_answer(point.more):
            data = {"kind": point.kind, "status": point.status, **_about(point.more)}
            return [Event("step", self._session, point.step, data)]
        reading = await self._db.read(self._session, point.step, migrate=False)
        sent = reading.book[AGENT]["sent"]
        text = text_of(plain(reading.messages[sent]))
        events: list[Event] = []
        if self._open is not None and (self._open.step != point.step or not text.startswith(self._open.text)):
            events = self._retract()
        self._open = None
        return [*events, Event("committed", self._session, point.step, {"step": point.step, "text": text})]


def _about(more: dict[str, Any]) -> dict[str, Any]:
    return {k: more[k] for k in ("tool", "effect", "approval", "error", "note") if k in more}


def _head(row: SessionRow) -> int:
    return next((h.step for h in row.heads if h.branch == MAIN), 0)
