"""Reading along in one branch of a session: every commit once, in order, and the answer that is on its way.

The place after an event names the last commit, by line, step and id, and how much of which attempt at an answer was
told, with a digest of that text. Whoever comes back with it, to this server or to another one, goes on right there.
Commits under one branch name are ordered by line and step: a rewind begins a new line and leaves the old one for good.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from perdure.agent.models import text_of
from perdure.agent.requests import AGENT, is_answer
from perdure.agent.session_stream import live_of, open_piece
from perdure.errors import InvalidInput, PerdureError
from perdure.history.checkpoint import Checkpoint
from perdure.history.hydrate import load, open_row, payload_of, point_of
from perdure.history.lineage import unverified
from perdure.model import MAIN
from perdure.record.packs import PackReader
from perdure.server.sse import RESCAN, Event
from perdure.shapes.events import Event as SessionEvent
from perdure.shapes.events import Rescan, commit_event
from perdure.state.delta import APPEND
from perdure.state.document import BOOK, STATE, Document, plain
from perdure.system.lease_holders import is_dead

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.kernel import Kernel
    from perdure.model import SessionRow
    from perdure.record.commit import Point

PAGE = 100
"""Commits that are read at once."""
LONGEST_TEXT = 1 << 20
"""Characters of an answer that are told with its commit; a longer one is read from the state."""
_PLACE = re.compile(
    r"([0-9]{1,15})\.([0-9]{1,15})\.([0-9a-f]{12})(?:~([0-9]{1,18})\.([0-9]{1,15})\.([0-9]{1,9})\.([0-9]{1,12})\.([0-9a-f]{8}))?"
)
_NOWHERE = "0" * 12


class Heard(NamedTuple):
    """How much of which attempt at an answer a reader has been told."""

    worker: int
    step: int
    attempt: int
    size: int
    digest: str


class Place(NamedTuple):
    """Where a reader stands: after this commit (step 0: before the first), having heard that much of the next."""

    line: int
    step: int
    id: str
    heard: Heard | None = None

    def __str__(self) -> str:
        tail = f"~{'.'.join(map(str, self.heard))}" if self.heard is not None else ""
        return f"{self.line}.{self.step}.{self.id}{tail}"


BEGINNING = Place(0, 0, _NOWHERE)


def parse(text: str) -> Place:
    """The place that was written as this text.

    >>> str(parse("0.3.aabbccddeeff~7.4.1.20.00ff00ff"))
    '0.3.aabbccddeeff~7.4.1.20.00ff00ff'
    """
    match = _PLACE.fullmatch(text)
    if match is None:
        raise InvalidInput("this is not the id of an event of this stream: leave it out to begin now")
    line, step, id, *rest = match.groups()
    heard = Heard(int(rest[0]), int(rest[1]), int(rest[2]), int(rest[3]), rest[4]) if rest[0] is not None else None
    return Place(int(line), int(step), id, heard)


class _Attempt:
    """An answer on its way, as far as it is known here, and how much of it the reader has been told."""

    def __init__(self, heard: Heard) -> None:
        self.which = heard[:3]
        self.told = heard.size
        self._digest = heard.digest
        self.text = ""

    @property
    def step(self) -> int:
        """The step it will be."""
        return self.which[1]

    def agrees(self, text: str) -> bool:
        """Whether what the reader has been told is how this text begins."""
        return len(text) >= self.told and _digest(text[: self.told]) == self._digest

    def tell(self) -> tuple[int, str]:
        """The offset and the text that are news to the reader, who has them from now on."""
        offset, news = self.told, self.text[self.told :]
        self.told, self._digest = len(self.text), _digest(self.text)
        return offset, news

    @property
    def heard(self) -> Heard:
        """What the reader has been told."""
        return Heard(*self.which, self.told, self._digest)


class Along:
    """One reader of one branch. All its methods block."""

    def __init__(self, kernel: Kernel, session: str, branch: str) -> None:
        self._kernel = kernel
        self._session = session
        self._branch = branch
        self._live = live_of(kernel)
        self._cursor = ""
        self._open: _Attempt | None = None
        self.place = BEGINNING
        self.busy = False
        """Whether somebody was writing the session at the last look."""

    def begin(self, place: Place | None) -> list[Event]:
        """Stand at a place (None: now); when nothing can be told from there on, an event says so."""
        row = self._kernel.store.look(self._session)
        now = self._head(row)
        if place is None:
            self.place = now
            return []
        if place.heard is not None:
            self._open = _Attempt(place.heard)
        self.place = place._replace(heard=None)
        if self._stands():
            return []
        told = list(self._retract())
        self.place = now
        return [
            *told,
            Event(RESCAN, str(now), Rescan(reason="what came after this place is gone: read the session again")),
        ]

    def look(self) -> Iterator[Event]:
        """What happened since the last look."""
        # In this order: what was said is older than the head, so a piece whose step is there already is old news.
        pieces = self._hear()
        row = self._kernel.store.look(self._session)
        if row is None:
            return
        head = self._head(row)
        if (head.line, head.step) != (self.place.line, self.place.step) or head.id != self.place.id:
            if head.step == 0 or (head.line, head.step) < (self.place.line, self.place.step) or not self._stands():
                # The session has ended, or ended and begun anew: there is no way from there to here.
                yield from self._retract()
                self.place = head
                yield Event(RESCAN, str(head), Rescan(reason="the session is another one now: read it again"))
                return
            yield from self._commits(head)
        self.busy = bool(row.lease.holder) and not is_dead(row.lease.holder)
        for piece in pieces:
            # Only who holds the lease can still commit what it says; what others left there is void.
            if self.busy and piece["w"] == row.lease.token and piece["s"] > self.place.step:
                yield from self._piece(piece)
        if self._open is not None and (not self.busy or row.lease.token != self._open.which[0]):
            yield from self._retract()

    def forget(self) -> None:
        """A look was broken off: what it had heard is heard again at the next one."""
        self._cursor = ""

    # -- commits --------------------------------------------------------------------------------------------------

    def _head(self, row: SessionRow | None) -> Place:
        heads = row.heads if row is not None else ()
        found = next((h for h in heads if h.branch == self._branch), None)
        return Place(found.line, found.step, found.id.hex()[:12]) if found is not None else BEGINNING

    def _stands(self) -> bool:
        """Whether the commit that the reader has seen last is still there."""
        if self.place.step == 0:
            return True
        try:
            rows = self._kernel.store.slice(self._session, self.place.line, self.place.step, self.place.step).rows
        except PerdureError:
            return False
        return any(r.step == self.place.step and r.id.hex()[:12] == self.place.id for r in rows)

    def _commits(self, head: Place) -> Iterator[Event]:
        """The commits up to the head, oldest first."""
        starts = sorted((s.line, s.step) for s in self._kernel.store.starts(self._session, self._branch))
        for line, first in starts:
            if line < self.place.line or line > head.line:
                continue
            low = self.place.step + 1 if line == self.place.line else first
            while True:
                page = self._page(line, first, low)
                for point, text in page:
                    yield from self._commit(point, text)
                last = page[-1][0].envelope.step if page else low + PAGE - 1
                # Retention may have left a gap wider than a page; where a line ends that was left, nobody knows.
                if last >= head.step if line == head.line else not page:
                    break
                low = last + 1

    def _page(self, line: int, first: int, low: int) -> list[tuple[Point, str | None]]:
        """Some commits of a line from a step on, verified, each with the answer it holds."""
        # One row more than wanted: each is verified on top of the digest of the one before it.
        before = low - 1 if low > first else low
        bundle = self._kernel.store.slice(self._session, line, before, low + PAGE - 1)
        packs = PackReader(self._kernel, self._session, bundle.packs)
        found: list[tuple[Point, str | None]] = []
        previous: Point | None = None
        for row in bundle.rows:
            if row.step < low:
                previous = unverified(self._kernel, self._session, row, packs)
                continue
            text: str | None = None
            if not row.envelope and packs.anchored(row.line, row.step) is not None:
                previous = point_of(self._kernel, self._session, row, packs, previous)
                if is_answer(previous.envelope.x):
                    text = self._text_from_state(previous)
            else:
                previous, body = open_row(self._kernel, self._session, row, packs, previous)
                if is_answer(previous.envelope.x):
                    text = _text_of_ops(payload_of(self._kernel, body, previous)[0])
                    text = self._text_from_state(previous) if text is None else text
            found.append((previous, text))
        return found

    def _text_from_state(self, point: Point) -> str:
        """The answer that a checkpoint holds, by the books of the loop."""
        env = point.envelope
        root = Document(load(self._kernel, self._session, env.line, env.step).doc, self._kernel.resolve).root
        return text_of(plain(root[STATE]["messages"][root[BOOK][AGENT]["sent"]]))

    def _commit(self, point: Point, text: str | None) -> Iterator[Event]:
        about = Checkpoint(point)
        if text is not None:
            if self._open is not None and (self._open.step != about.step or not self._open.agrees(text)):
                yield from self._retract()
            self._open = None
        self._move(about)
        yield self._told(commit_event(about, text, LONGEST_TEXT))

    def _move(self, c: Checkpoint) -> None:
        self.place = Place(c.line, c.step, c.id[:12])

    def _here(self) -> Place:
        return self.place._replace(heard=self._open.heard if self._open is not None and self._open.told else None)

    # -- answers on their way -------------------------------------------------------------------------------------

    def _hear(self) -> list[dict[str, Any]]:
        if self._live is None:
            return []
        try:
            sealed, self._cursor = self._live.hear(self._session, self._cursor)
        except (PerdureError, OSError):
            # The history says it all, a little later.
            return []
        found: list[dict[str, Any]] = []
        for one in sealed:
            found += open_piece(self._kernel, self._session, one) or []
        return [p for p in found if p.get("b", MAIN) == self._branch]

    def _piece(self, piece: dict[str, Any]) -> Iterator[Event]:
        """A piece of the answer that is on its way."""
        which = (piece["w"], piece["s"], piece["a"])
        if self._open is not None and self._open.which != which:
            yield from self._retract()
        if self._open is None:
            self._open = _Attempt(Heard(*which, 0, _digest("")))
        attempt = self._open
        if piece["o"] > len(attempt.text):
            # Something was lost on the way: what follows makes no sense before the commit brings it all.
            return
        attempt.text = attempt.text[: piece["o"]] + piece["t"]
        if len(attempt.text) <= attempt.told:
            return
        if not attempt.agrees(attempt.text):
            yield from self._retract()
            attempt = self._open = self._anew(attempt)
        offset, news = attempt.tell()
        yield self._told(self._about("delta", which, offset=offset, text=news))

    def _anew(self, attempt: _Attempt) -> _Attempt:
        again = _Attempt(Heard(*attempt.which, 0, _digest("")))
        again.text = attempt.text
        return again

    def _retract(self) -> Iterator[Event]:
        if self._open is None:
            return
        which, told = self._open.which, self._open.told
        self._open = None
        if told:
            yield self._told(self._about("retracted", which))

    def _about(self, event: Any, which: tuple[int, int, int], **more: Any) -> SessionEvent:
        """An event of one attempt at an answer."""
        worker, step, attempt = which
        return SessionEvent(
            event=event, session=self._session, branch=self._branch, step=step, attempt=attempt, worker=worker, **more
        )

    def _told(self, event: SessionEvent) -> Event:
        return Event(event.event, str(self._here()), event)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _text_of_ops(ops: list[Any]) -> str | None:
    """The answer among the messages that a commit has added; None when that cannot be told from the commit alone."""
    for op in ops:
        if op[0] == APPEND and list(op[1]) == [STATE, "messages"]:
            added: list[Any] = [plain(m) for m in op[2]]
            said = [cast("dict[str, Any]", m) for m in added if isinstance(m, dict)]
            answers = [m for m in said if m.get("role") == "assistant"]
            if len(answers) == 1:
                return text_of(answers[0])
    return None
