"""Which effects were done on other lines of a session, so that none happens twice by going back in time."""

# pyright: reportPrivateUsage=false
# The handle is one thing in several rooms: they share its inner parts.
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import Gone
from perdure.history.hydrate import ancestry, load, origins
from perdure.kernel import Kernel
from perdure.model import Kind
from perdure.record.commit import Point
from perdure.state.document import BOOK, plain

if TYPE_CHECKING:
    from perdure.state.document import TrackedDict


class Foreign(NamedTuple):
    """An effect of another line."""

    effect: str
    line: int
    step: int
    settled: bool
    attempt: int = 0


class Elsewhere:
    """The effects of all other lines, by call digest."""

    def __init__(self, kernel: Kernel, session: str) -> None:
        self._kernel = kernel
        self._session = session
        self._parent: dict[str, list[Foreign]] = {}
        self._other: dict[str, str] = {}
        self._twins: dict[str, Foreign] = {}
        self._used: set[str] = set()

    def reuse(self, digest: str) -> tuple[str, Any] | None:
        """The outcome of the same call on the line we came from: (effect id, result), each given once."""
        for foreign in self._parent.get(digest, ()):
            if foreign.effect not in self._used and (found := self._outcome(foreign)) is not None:
                self._used.add(foreign.effect)
                return found
        return None

    def twin(self, effect: str, attempt: int) -> tuple[bool, tuple[str, Any] | None]:
        """Whether an effect that is open on our line went further on another, and its outcome if it has one there."""
        foreign = self._twins.get(effect)
        if foreign is None:
            return False, None
        return foreign.settled or foreign.attempt > attempt, self._outcome(foreign)

    def _outcome(self, foreign: Foreign) -> tuple[str, Any] | None:
        if not foreign.settled:
            return None
        try:
            book = load(self._kernel, self._session, foreign.line, foreign.step).doc[BOOK]
        except Gone:
            # Retention has dropped what it returned: that it was done must still be reported.
            return None
        for record in book["effects"].values():
            if record["id"] == foreign.effect and record["status"] == "done":
                return foreign.effect, plain(record["result"])
        return None

    def report(self, digest: str) -> str:
        """The id of the same call made on another line, or started on ours without a known outcome; "" if none."""
        for foreign in self._parent.get(digest, ()):
            if foreign.effect not in self._used:
                return foreign.effect
        return self._other.get(digest, "")


def find_elsewhere(kernel: Kernel, session: str, point: Point | None, book: TrackedDict) -> Elsewhere:
    """Look through the ends of all other lines."""
    found = Elsewhere(kernel, session)
    if point is None:
        return found
    lines = origins(kernel, session)
    if len(lines) == 1:
        return found
    mine = {e["id"] for e in book.get("effects", {}).values()} | {
        e[0] for d in book.get("done", {}).values() for e in d
    }
    found._used |= {e["reused"] for e in book.get("effects", {}).values() if "reused" in e}
    found._used |= set(book.get("reused", ()))
    past = ancestry(kernel, session, point.envelope.line, point.envelope.step)
    for line, (_, _, env) in lines.items():
        if line == point.envelope.line or env.kind == Kind.TAG:
            continue
        end = load(kernel, session, line, None)
        other: dict[str, Any] = end.doc[BOOK]
        entries: list[tuple[str, Foreign]] = []
        for record in other.get("effects", {}).values():
            if record["status"] in ("done", "started", "in_doubt", "unknown"):
                at = record.get("where") or [line, end.point.envelope.step if end.point else 0]
                settled = record["status"] == "done"
                entries.append((record["digest"], Foreign(record["id"], at[0], at[1], settled, record["attempt"])))
        for digest, done in other.get("done", {}).items():
            # Without a step there is no outcome: nobody knows what became of it.
            entries.extend((digest, Foreign(e[0], e[1], e[2], e[2] > 0)) for e in done)
        for digest, foreign in entries:
            if foreign.effect in mine:
                # The line on which it went furthest tells most.
                known = found._twins.get(foreign.effect, foreign)
                found._twins[foreign.effect] = max(known, foreign, key=lambda f: (f.settled, f.attempt))
                continue
            if line in past:
                found._parent.setdefault(digest, []).append(foreign)
            else:
                found._other.setdefault(digest, foreign.effect)
    return found
