"""Following a session from anywhere, by one reader: ``perdure.follow``, the HTTP API, ``perdure tail``.

Every commit of a branch comes once, in order, with the answer that is on its way. The position after an event names the
last commit, by line, step and id, and how much of which attempt at an answer was told, with a digest of that text.
Whoever comes back with it, in another process or to another server, goes on right there. Commits under one branch name
are ordered by line and step: a rewind begins a new line and leaves the old one for good.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from perdure.agent.live_answers import Event, Piece, live_of, open_pieces
from perdure.agent.models import text_of
from perdure.agent.requests import AGENT, is_answer
from perdure.errors import Corrupted, Gone, InvalidInput, NotFound, PerdureError
from perdure.history.checkpoint import Checkpoint, Reading
from perdure.history.hydrate import find, load, locate, payload_of, steady, where_is
from perdure.history.reader import read_rows
from perdure.model import MAIN, Status
from perdure.state.delta import APPEND
from perdure.state.document import STATE, plain
from perdure.system.flow import check_awaited
from perdure.system.lease_holders import is_dead

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

    from perdure.aio import AsyncDatabase
    from perdure.kernel import Kernel
    from perdure.model import SessionRow
    from perdure.record.codec import Body, Point


# -- to other processes --------------------------------------------------------------------------------------------


PAGE = 100
"""Commits that are read at once."""
BUSY, QUIET = 0.1, 0.5
"""Seconds between two looks at a session that is being written, and at one that is not."""
RESCAN = "rescan"
"""The kind of an event that says: what came after your position is gone, read the session again."""


async def follow(
    db: AsyncDatabase, session: str, *, after: int | str | None = None, poll: float = 0.1
) -> AsyncGenerator[Event]:
    """What a worker elsewhere does in a session, as it happens; ends once a run that was seen has ended.

    Deltas are provisional: their step is ``committed`` later, with the whole text, or their attempt ``retracted``,
    because the worker died or asked anew. ``after`` is the step after which to begin, or the ``position`` of the last
    event that was seen; None: from now on.
    """

    check_awaited(db, "perdure.follow")
    blocking = db.driver.call
    reader = SessionReader(db.kernel, session)
    for event in await blocking(reader.begin, after):
        yield event
    async for event in read_along(reader, blocking, poll):
        if event is not None:
            yield event
        elif (end := await blocking(reader.ended)) is not None:
            yield end
            return


async def read_along(
    reader: SessionReader, blocking: Callable[..., Awaitable[Any]], poll: float | None = None
) -> AsyncGenerator[Event | None]:
    """What a reader finds, as it happens, for ever; None whenever there is nothing new.

    ``blocking`` calls a function in a thread. An error leaves the reader where it stands: read along anew.
    """
    while True:
        found = reader.read()
        while (event := await blocking(next, found, None)) is not None:
            yield event
        yield None
        await asyncio.sleep(poll if poll is not None else BUSY if reader.busy else QUIET)


# -- where a reader stands -----------------------------------------------------------------------------------------


class Told(NamedTuple):
    """How much of which attempt at an answer a reader has been told."""

    worker: int
    step: int
    attempt: int
    size: int
    digest: str


class Position(NamedTuple):
    """Where a reader stands: after this commit (step 0: before the first), having been told that much of the next."""

    line: int
    step: int
    id: str
    told: Told | None = None

    def __str__(self) -> str:
        tail = f"~{'.'.join(map(str, self.told))}" if self.told is not None else ""
        return f"{self.line}.{self.step}.{self.id}{tail}"


_ANY = "0" * 12
"""The id of a commit that was named by its step alone, and of none."""
_BEGINNING = Position(0, 0, _ANY)
_FORM = re.compile(
    r"([0-9]{1,15})\.([0-9]{1,15})\.([0-9a-f]{12})(?:~([0-9]{1,18})\.([0-9]{1,15})\.([0-9]{1,9})\.([0-9]{1,12})\.([0-9a-f]{8}))?"
)


def parse(text: str) -> Position:
    """The position that was written as this text.

    >>> str(parse("0.3.aabbccddeeff~7.4.1.20.00ff00ff"))
    '0.3.aabbccddeeff~7.4.1.20.00ff00ff'
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise InvalidInput("this is not the position of an event of this stream: leave it out to begin now")
    line, step, id, worker, *rest = match.groups()
    told = Told(int(worker), int(rest[0]), int(rest[1]), int(rest[2]), rest[3]) if worker is not None else None
    return Position(int(line), int(step), id, told)


class _Attempt:
    """An answer on its way, as far as it is known here, and how much of it the reader has been told."""

    def __init__(self, told: Told, text: str = "") -> None:
        self.told = told
        self.text = text

    @property
    def which(self) -> tuple[int, int, int]:
        """The worker, the step it will be, and the number of the attempt."""
        return self.told[:3]

    def agrees(self, text: str) -> bool:
        """Whether what the reader has been told is how this text begins."""
        return len(text) >= self.told.size and _told_digest(text[: self.told.size]) == self.told.digest

    def tell(self) -> tuple[int, str]:
        """The offset and the text that are news to the reader, who has them from now on."""
        offset = self.told.size
        self.told = self.told._replace(size=len(self.text), digest=_told_digest(self.text))
        return offset, self.text[offset:]


# -- the reader ----------------------------------------------------------------------------------------------------


class SessionReader:
    """Reads along in one branch of a session. All its methods block."""

    def __init__(self, kernel: Kernel, session: str, branch: str = MAIN) -> None:
        self._kernel = kernel
        self._session = session
        self._branch = branch
        self._live = live_of(kernel)
        self._cursor = ""
        self._attempt: _Attempt | None = None
        self._saw_work = False
        self.position = _BEGINNING
        """After the last commit that was told."""
        self.busy = False
        """Whether somebody was writing the session at the last look."""

    def begin(self, after: int | str | None) -> list[Event]:
        """Stand after a step, at an event's position or (None) now; when nothing is left there, an event says so."""
        row = find(self._kernel, self._session)
        now = self._head(row)
        if not isinstance(after, str):
            self.position = now if row is None or after is None else self._at_step(row, now, after)
            return []
        self.position = parse(after)
        if self.position.told is not None:
            self._attempt = _Attempt(self.position.told)
            self.position = self.position._replace(told=None)
        if self._is_there():
            return []
        return list(self._begin_again(now, "what came after this place is gone: read the session again"))

    def _at_step(self, row: SessionRow, now: Position, step: int) -> Position:
        if not 0 < step < now.step:
            return now if step > 0 else _BEGINNING
        line, _ = steady(self._kernel, row, lambda r: locate(self._kernel, r, step, self._branch))
        return Position(line, step, _ANY)

    def read(self) -> Iterator[Event]:
        """What happened since the last time. If it breaks off, or is left, the next time tells the rest."""
        try:
            yield from self._read()
        except BaseException:
            # What was polled is polled again: only what has not been told of it is news.
            self._cursor = ""
            raise

    def _read(self) -> Iterator[Event]:
        # In this order: a piece is older than the head, so one whose step is there already is old news.
        pieces = self._poll()
        row = find(self._kernel, self._session)
        if row is None:
            return
        head = self._head(row)
        if head != self.position:
            self._saw_work = True
            if head.step == 0 or head[:2] < self.position[:2] or not self._is_there():
                # The session has ended, or ended and begun anew: there is no way from there to here.
                yield from self._begin_again(head, "the session is another one now: read it again")
                return
            yield from self._commits(head)
        self.busy = _is_held(row)
        self._saw_work |= bool(row.lease.holder)
        for piece in pieces:
            # Only who holds the lease can still commit what it says; what others left there is void.
            if self.busy and piece.worker == row.lease.token and piece.step > self.position.step:
                yield from self._piece(piece)
        if self._attempt is not None and not (self.busy and row.lease.token == self._attempt.told.worker):
            yield from self._retract()

    def ended(self) -> Event | None:
        """The event that says so, once a run was seen, all of it was told, and there is nothing left to do."""
        if self.busy or not self._saw_work:
            return None
        if any(entry.kind == "message" for entry in self._kernel.store.inbox(self._session, 100)):
            return None
        # After the inbox: whoever has emptied it meanwhile has moved the head.
        row = find(self._kernel, self._session)
        if row is None or _is_held(row) or row.status == Status.RUNNING or self._head(row) != self.position:
            return None
        return self._event("ended", {"status": row.status})

    def _event(self, kind: str, data: dict[str, Any]) -> Event:
        told = self._attempt.told if self._attempt is not None and self._attempt.told.size else None
        return Event(kind, self._session, self.position.step, data, str(self.position._replace(told=told)))

    # -- commits --------------------------------------------------------------------------------------------------

    def _head(self, row: SessionRow | None) -> Position:
        heads = row.heads if row is not None else ()
        found = next((h for h in heads if h.branch == self._branch), None)
        return Position(found.line, found.step, found.id.hex()[:12]) if found is not None else _BEGINNING

    def _is_there(self) -> bool:
        """Whether the commit that the reader has seen last is still there."""
        line, step, id, _ = self.position
        if id == _ANY:
            return True
        try:
            rows = self._kernel.store.slice(self._session, line, step, step).rows
        except (NotFound, Gone):
            return False
        return any(r.step == step and r.id.hex()[:12] == id for r in rows)

    def _begin_again(self, head: Position, reason: str) -> Iterator[Event]:
        yield from self._retract()
        self.position = head
        yield self._event(RESCAN, {"reason": reason})

    def _commits(self, head: Position) -> Iterator[Event]:
        """The commits up to the head, oldest first."""
        store = self._kernel.store
        for line, first in sorted((s.line, s.step) for s in store.starts(self._session, self._branch)):
            if not self.position.line <= line <= head.line:
                continue
            at = self.position.step if line == self.position.line else first - 1
            last = head.step if line == head.line else store.slice(self._session, line, first, first).last
            due = at + 1
            # Retention may have left a gap that is wider than a page.
            for low in range(at, last, PAGE):
                high = min(low + PAGE, last)
                for row in read_rows(self._kernel, self._session, line, low + 1, high, open_end=high < last):
                    if row.since > due:
                        raise Corrupted(where_is(self._session, line, due), "it is missing")
                    due = row.point.envelope.step + 1
                    yield from self._commit(Checkpoint(row.point), self._answer(row.point, row.body))
        self.position = head

    def _commit(self, c: Checkpoint, answer: str | None) -> Iterator[Event]:
        if answer is not None:
            if self._attempt is not None and (self._attempt.told.step != c.step or not self._attempt.agrees(answer)):
                yield from self._retract()
            self._attempt = None
        self.position = Position(c.line, c.step, c.id[:12])
        data: dict[str, Any] = {
            "session": c.session, "branch": c.branch, "line": c.line, "step": c.step, "id": c.id, "kind": c.kind,
            "status": c.status, "at": c.at,
        }  # fmt: skip
        data |= {k: v for k, v in c.more.items() if k in ("tool", "effect", "approval", "error", "note", "agent")}
        yield self._event("step", data) if answer is None else self._event("committed", {**data, "text": answer})

    def _answer(self, point: Point, body: Body | None) -> str | None:
        """The text of the answer that a commit holds; None when it holds none."""
        env = point.envelope
        if not is_answer(env.x):
            return None
        text = _answer_among(payload_of(self._kernel, body, point)[0]) if body is not None else None
        if text is not None:
            return text
        reading = Reading(self._kernel, load(self._kernel, self._session, env.line, env.step))
        return text_of(plain(reading.messages[reading.book[AGENT]["sent"]]))

    # -- answers on their way -------------------------------------------------------------------------------------

    def _poll(self) -> list[Piece]:
        if self._live is None:
            return []
        try:
            batches, self._cursor = self._live.poll(self._session, self._cursor)
        except (PerdureError, OSError):
            # The history says it all, a little later.
            return []
        pieces = [piece for batch in batches for piece in open_pieces(self._kernel, self._session, batch)]
        return [piece for piece in pieces if piece.branch == self._branch]

    def _piece(self, piece: Piece) -> Iterator[Event]:
        """A piece of the answer that is on its way."""
        nothing = Told(piece.worker, piece.step, piece.attempt, 0, _told_digest(""))
        if self._attempt is not None and self._attempt.which != nothing[:3]:
            yield from self._retract()
        attempt = self._attempt = self._attempt or _Attempt(nothing)
        if piece.offset > len(attempt.text):
            # Something was lost on the way: what follows makes no sense before the commit brings it all.
            return
        attempt.text = attempt.text[: piece.offset] + piece.text
        if len(attempt.text) <= attempt.told.size:
            return
        if not attempt.agrees(attempt.text):
            yield from self._retract()
            attempt = self._attempt = _Attempt(nothing, attempt.text)
        offset, news = attempt.tell()
        data = {"step": piece.step, "attempt": piece.attempt, "worker": piece.worker, "offset": offset, "text": news}
        yield self._event("delta", data)

    def _retract(self) -> Iterator[Event]:
        attempt, self._attempt = self._attempt, None
        if attempt is not None and attempt.told.size:
            worker, step, number = attempt.which
            yield self._event("retracted", {"step": step, "attempt": number, "worker": worker})


def _is_held(row: SessionRow) -> bool:
    return bool(row.lease.holder) and not is_dead(row.lease.holder)


def _told_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _answer_among(ops: list[Any]) -> str | None:
    """The answer among the messages that a commit has added; None when that cannot be told from the commit alone."""
    for op in ops:
        if op[0] == APPEND and list(op[1]) == [STATE, "messages"]:
            added: list[Any] = [plain(m) for m in op[2]]
            said = [cast("dict[str, Any]", m) for m in added if isinstance(m, dict)]
            answers = [m for m in said if m.get("role") == "assistant"]
            if len(answers) == 1:
                return text_of(answers[0])
    return None
