"""Which effects were done on other lines of a session, so that none happens twice by going back in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import Gone
from perdure.history.hydrate import ancestry, load, origins
from perdure.kernel import Kernel
from perdure.model import Kind
from perdure.state.document import BOOK, plain
from perdure.system.wording import call_words

if TYPE_CHECKING:
    from perdure.state.document import TrackedDict

    Book = TrackedDict | dict[str, Any]

OPEN = ("planned", "started", "in_doubt", "waiting")
"""Where a call without an outcome may stand."""
_MADE = ("done", "started", "in_doubt", "unknown", "raised")
"""Where one stands that was made, or may have been."""


class Foreign(NamedTuple):
    """An effect of another line."""

    effect: str
    line: int
    step: int
    settled: bool
    attempt: int = 0


class Outcome(NamedTuple):
    """What came of a call on another line."""

    effect: str
    result: Any
    args: dict[str, Any]
    edited: bool
    """Whether a person has had it made with these arguments instead of those that were asked for."""


class OtherBranches:
    """The effects of all other lines than the one whose line and step are given, by call digest."""

    def __init__(self, kernel: Kernel, session: str, at: tuple[int, int] | None, book: Book) -> None:
        self._kernel = kernel
        self._session = session
        self._parent: dict[str, list[Foreign]] = {}
        self._other: dict[str, str] = {}
        self._furthest: dict[str, Foreign] = {}
        """Of each effect the line on which it went furthest, which tells most."""
        self._awaited: dict[str, dict[str, Any]] = {}
        """Calls whose results come later, by their ids."""
        self._used: set[str] = set()
        self.kept: dict[str, dict[str, Any]] = {}
        """What calls on other lines returned and is kept for a while, by name; the newest of each."""
        self.edited: dict[str, list[str]] = {}
        """Calls that were made with other arguments than were asked for, by what was asked for: effect and call."""
        self.restored: set[str] = set()
        """Effects that were made before the store was put back to an older state."""
        if at is not None:
            self._look(*at, book)

    def _look(self, here: int, step: int, book: Book) -> None:
        """Look through the ends of all other lines, and for what was done before the store was put back."""
        for record in book.get("effects", {}).values():
            if "restored" in record and record["status"] in ("in_doubt", "done", "unknown"):
                self._other.setdefault(record["digest"], record["id"])
                self.restored.add(record["id"])
        lines = origins(self._kernel, self._session)
        if len(lines) == 1:
            return
        mine = {e["id"] for e in book.get("effects", {}).values()}
        mine |= {e[0] for done in book.get("done", {}).values() for e in done}
        self._used |= {e["reused"] for e in book.get("effects", {}).values() if "reused" in e}
        self._used |= set(book.get("reused", ()))
        past = ancestry(self._kernel, self._session, here, step)
        for line, (_, _, env) in lines.items():
            if line == here or env.kind == Kind.TAG:
                continue
            end = load(self._kernel, self._session, line, None)
            other: dict[str, Any] = end.doc[BOOK]
            for name, hit in other.get("cache", {}).items():
                if name not in self.kept or hit["at"] > self.kept[name]["at"]:
                    self.kept[name] = hit
            self.edited |= plain(other.get("edited", {}))
            entries: list[tuple[str, Foreign]] = []
            for record in other.get("effects", {}).values():
                if record["status"] == "waiting":
                    self._awaited[record["id"]] = record
                if changed := made_otherwise(record):
                    self.edited[record["asked"]] = changed
                if record["status"] in (*_MADE, "waiting"):
                    at = record.get("where") or [line, end.point.envelope.step if end.point else 0]
                    settled = record["status"] == "done"
                    entries.append((record["digest"], Foreign(record["id"], at[0], at[1], settled, record["attempt"])))
            for digest, done in other.get("done", {}).items():
                # Without a step there is no outcome: nobody knows what became of it.
                entries.extend((digest, Foreign(e[0], e[1], e[2], e[2] > 0)) for e in done)
            for digest, foreign in entries:
                known = self._furthest.get(foreign.effect, foreign)
                self._furthest[foreign.effect] = max(known, foreign, key=lambda f: (f.settled, f.attempt))
                if foreign.effect in mine:
                    continue
                if line in past:
                    self._parent.setdefault(digest, []).append(foreign)
                else:
                    self._other.setdefault(digest, foreign.effect)

    def reuse(self, digest: str) -> Outcome | None:
        """The outcome of the same call on the line we came from, each given once."""
        for foreign in self._parent.get(digest, ()):
            if foreign.effect not in self._used and (found := self._outcome(foreign)) is not None:
                self._used.add(foreign.effect)
                return found
        return None

    def awaited(self, digest: str) -> dict[str, Any] | None:
        """The same call on the line we came from, when its result is still to come: each given once."""
        for foreign in self._parent.get(digest, ()):
            if foreign.effect in self._used:
                continue
            if (there := self.waiting(foreign.effect)) is not None:
                self._used.add(foreign.effect)
            return there
        return None

    def twin(self, effect: str, attempt: int) -> tuple[bool, Outcome | None]:
        """Whether an effect that is open on our line went further on another, and its outcome if it has one there."""
        foreign = self._furthest.get(effect)
        if foreign is None:
            return False, None
        return foreign.settled or foreign.attempt > attempt, self._outcome(foreign)

    def waiting(self, effect: str) -> dict[str, Any] | None:
        """An effect of our line as it stands on another one, when its result is still to come there."""
        return None if effect not in self._awaited or self._furthest[effect].settled else self._awaited[effect]

    def _outcome(self, foreign: Foreign) -> Outcome | None:
        foreign = self._furthest[foreign.effect]
        if not foreign.settled:
            return None
        try:
            book = load(self._kernel, self._session, foreign.line, foreign.step).doc[BOOK]
        except Gone:
            # Retention has dropped what it returned: that it was done must still be reported.
            return None
        for record in book["effects"].values():
            if record["id"] == foreign.effect and record["status"] == "done":
                return Outcome(foreign.effect, plain(record["result"]), plain(record["args"]), "edited" in record)
        return None

    def report(self, digest: str) -> str:
        """The id of the same call made on another line, or started on ours without a known outcome; "" if none."""
        for foreign in self._parent.get(digest, ()):
            if foreign.effect not in self._used:
                return foreign.effect
        return self._other.get(digest, "")


def made_otherwise(record: TrackedDict | dict[str, Any]) -> list[str]:
    """The effect and the call in words, where it was made with other arguments than were asked for; else nothing."""
    if "asked" not in record or record["status"] not in _MADE:
        return []
    return [record["id"], call_words(record["tool"], plain(record["args"]))]


def done_elsewhere(kernel: Kernel, session: str, at: tuple[int, int] | None, book: Book) -> frozenset[str]:
    """The open effects at a line's step whose outcome another line has: whoever goes on takes it, without a call.

    Blocks.
    """
    open_here = [r for r in book.get("effects", {}).values() if r["status"] in OPEN and "read" not in r]
    if not open_here:
        return frozenset()
    others = OtherBranches(kernel, session, at, book)
    return frozenset(
        record["id"]
        for record in open_here
        if others.twin(record["id"], record["attempt"])[1] is not None
        or (record["status"] == "planned" and others.reuse(record["digest"]) is not None)
    )
