"""What happens in a run, as it happens: events for a listener here, pieces of answers published to other processes.

Pieces go through the store's own way beside the history: sealed like everything else, in batches, by a thread of its
own, so that no commit waits for it whatever is slow or broken there. Nothing rests on a piece: what counts is what was
committed.
"""

from __future__ import annotations

import asyncio
import hmac
import queue
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import PerdureError
from perdure.model import MAIN
from perdure.protocols import Talking
from perdure.record import codec
from perdure.state.values import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.aio import AsyncDatabase, AsyncSession
    from perdure.kernel import Kernel
    from perdure.protocols import Live

BATCH = 0.05
"""Seconds for which pieces are gathered before they are published together."""
QUEUED = 200
"""Batches that may wait to be published; more are lost."""
IDLE = 5.0
"""Seconds after which a thread with nothing to publish ends."""
MAX_BATCH = 1 << 20
_WHAT = "a piece of an answer"


class Event(NamedTuple):
    """One thing that happened.

    ``delta``: a piece of an answer, with ``step``, ``attempt``, ``offset`` and ``text``, provisional until the step is
    ``committed`` (with the whole ``text``) or the attempt ``retracted``; ``call`` and ``outcome`` of a tool;
    ``waiting`` for somebody; ``ended``. Readers in other processes get ``step`` for commits that hold no answer, and
    ``rescan`` when what came after their position is gone.
    """

    kind: str
    session: str
    step: int
    data: dict[str, Any]
    position: str = ""
    """Where a reader in another process goes on after this event."""


class Feed:
    """Events for one listener, who may be slow: deltas that wait for it are put together."""

    MANY = 256
    """Events that wait before deltas are put together."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._some = asyncio.Event()
        self._over = False

    def put(self, event: Event) -> None:
        """Add an event; never waits."""
        last = self._events[-1] if len(self._events) >= self.MANY else None
        if last is not None and last.kind == event.kind == "delta" and _follows(last, event):
            joined = last.data["text"] + event.data["text"]
            self._events[-1] = last._replace(data={**last.data, "text": joined, "delta": None})
        else:
            self._events.append(event)
        self._some.set()

    def end(self) -> None:
        """Nothing more will come."""
        self._over = True
        self._some.set()

    async def get(self) -> Event | None:
        """The next event; None when there will be none."""
        while not self._events:
            if self._over:
                return None
            self._some.clear()
            await self._some.wait()
        return self._events.popleft()


def _follows(last: Event, event: Event) -> bool:
    a, b = last.data, event.data
    return (a["step"], a["attempt"]) == (b["step"], b["attempt"]) and a["offset"] + len(a["text"]) == b["offset"]


class Piece(NamedTuple):
    """A part of an answer on its way: whose (by the token of the lease), of which step and attempt, from where on."""

    worker: int
    step: int
    attempt: int
    offset: int
    text: str
    branch: str = MAIN


def live_of(kernel: Kernel) -> Live | None:
    """The store's way for pieces; None when it has none."""
    return kernel.store.live() if isinstance(kernel.store, Talking) else None


def seal_pieces(kernel: Kernel, session: str, pieces: list[Piece]) -> bytes:
    """Seal a batch of pieces, bound to its store and its session."""
    sealed = codec.seal(codec.encode(Wire(None).value([list(piece) for piece in pieces], ("pieces",))))
    name = kernel.keys.current
    digest = _digest(kernel, name, session, sealed)
    return bytes((len(name),)) + name.encode() + bytes((len(digest),)) + digest + sealed


def open_pieces(kernel: Kernel, session: str, sealed: bytes) -> list[Piece]:
    """The pieces of a batch; none when it is not what was sealed, or was sealed by another version of this."""
    try:
        end = 1 + sealed[0]
        name = sealed[1:end].decode("ascii")
        begin = end + 1 + sealed[end]
        if not hmac.compare_digest(_digest(kernel, name, session, sealed[begin:]), sealed[end + 1 : begin]):
            return []
        body = codec.unseal(sealed[begin:], _WHAT, MAX_BATCH)
        return [Piece(*values) for values in kernel.decode(body, _WHAT)]
    except (PerdureError, IndexError, UnicodeDecodeError, TypeError):
        return []


def _digest(kernel: Kernel, name: str, session: str, sealed: bytes) -> bytes:
    return codec.digest(kernel.keys, name, b"live\0", (kernel.store_id.encode(), session.encode(), sealed), _WHAT)


class Publisher:
    """Publishes the pieces of one run's answers; only as long as that costs nobody anything."""

    def __init__(self, db: AsyncDatabase, session: AsyncSession) -> None:
        self._kernel = db.kernel
        self._live = live_of(db.kernel)
        self._session = session.id
        self._branch = session.branch
        self._worker = session.fence or 0
        self._begun = False
        self._gathered: list[Piece] = []
        self._timer: asyncio.TimerHandle | None = None
        self._jobs: queue.Queue[Callable[[], None]] = queue.Queue(QUEUED)
        self._thread: threading.Thread | None = None
        self.problem = ""
        """Why nothing more is published, if that is so."""

    def publish(self, event: Event) -> None:
        """Take an event of the loop; never waits."""
        if self._live is None or self.problem:
            return
        if event.kind == "delta":
            if not self._begun:
                # What a worker that died has left there is void.
                self._begun = True
                self._clear(self._live)
            self._gather(event.data)
        elif event.kind in ("committed", "retracted"):
            self.flush()
            if self._begun:
                self._clear(self._live)

    def _clear(self, live: Live) -> None:
        self._do(lambda: live.clear(self._session))

    def _gather(self, data: dict[str, Any]) -> None:
        last = self._gathered[-1] if self._gathered else None
        if last is not None and (last.step, last.attempt) == (data["step"], data["attempt"]):
            self._gathered[-1] = last._replace(text=last.text + data["text"])
        else:
            piece = Piece(self._worker, data["step"], data["attempt"], data["offset"], data["text"], self._branch)
            self._gathered.append(piece)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BATCH, self.flush)

    def flush(self) -> None:
        """Publish what has been gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pieces, self._gathered = self._gathered, []
        if pieces and (live := self._live) is not None:
            sealed = seal_pieces(self._kernel, self._session, pieces)
            self._do(lambda: live.publish(self._session, sealed))

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
        """Publish what is left, as far as that takes no time."""
        self.flush()
        for _ in range(20):
            if self._jobs.empty() or self.problem:
                return
            await asyncio.sleep(0.01)
