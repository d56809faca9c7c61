"""Which effects were done on other lines of a session, so that none happens twice by going back in time."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import Gone
from perdure.history.hydrate import ancestry, load, origins
from perdure.kernel import Kernel
from perdure.model import Kind
from perdure.session.calls.identity import is_unknown
from perdure.session.calls.left_behind import is_left_open
from perdure.session.calls.records import GIVEN_UP, LEFT, OPEN, PROBLEM, RECORD, run_of
from perdure.session.tools.call_state import WRITES
from perdure.state.document import BOOK, plain
from perdure.system.wording import call_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.session.calls.identity import Asked
    from perdure.state.delta import Op
    from perdure.state.document import TrackedDict

    Book = TrackedDict | dict[str, Any]

_BEGUN = ("started", "in_doubt", "waiting")
"""Where one without an outcome stands that was made, or may have been."""
_MADE = ("done", "started", "in_doubt", "unknown", "raised")
"""Where one stands that was made, or may have been."""


class Foreign(NamedTuple):
    """An effect of another line."""

    effect: str
    line: int
    step: int
    settled: bool
    attempt: int = 0
    place: str = ""
    """Its place in the journal there, which says by what it is known; "" when its record is retired."""


class Outcome(NamedTuple):
    """What came of a call on another line."""

    effect: str
    result: Any
    args: dict[str, Any]
    edited: bool
    """Whether a person has had it made with these arguments instead of those that were asked for."""
    error: str | None = None
    """Why it has certainly not happened; None when it has."""
    writes: tuple[Op, ...] = ()
    """What it wrote into the state."""
    given_up: bool = False
    """Whether a person has given it up."""
    problem: str = ""
    """Why what it returned cannot be kept."""


class OtherBranches:
    """The effects of all other lines than the one whose line and step are given, by call digest."""

    def __init__(self, kernel: Kernel, session: str, at: tuple[int, int] | None, book: Book) -> None:
        self._kernel = kernel
        self._session = session
        self._parent: dict[str, list[Foreign]] = {}
        self._other: dict[str, list[Foreign]] = {}
        self._furthest: dict[str, Foreign] = {}
        """Of each effect the line on which it went furthest, which tells most."""
        self._begun: dict[str, dict[str, Any]] = {}
        """Calls that were made, or may have been, and have no outcome where they were, by their ids."""
        self._refuted: dict[str, tuple[int, int]] = {}
        """Calls that had been made, as far as anybody knew, and certainly have not happened: where that is written."""
        self._used: set[str] = set()
        self._branches: dict[str, str] = {}
        """The branch of the line on which an effect was found."""
        self._branch = ""
        self._unknown: dict[str, dict[str, Any]] = {}
        """Records of calls of which nobody knows what became of them: they are the same for another version of their
        tool. By their ids."""
        self._known: dict[str, dict[str, Any]] = {}
        """Records of calls that are not retired where they were made, by their ids."""
        self._places: dict[tuple[int, int], dict[str, tuple[str, dict[str, Any]]]] = {}
        """Of checkpoints of which the records are retired since: the places of their effects and the records, by id."""
        self._book = book
        self.kept: dict[str, dict[str, Any]] = {}
        """What calls on other lines returned and is kept for a while, by name; the newest of each."""
        self.edited: dict[str, list[str]] = {}
        """Calls that were made with other arguments than were asked for, by what was asked for: effect, call, place."""
        self.restored: set[str] = set()
        """Effects that were made before the store was put back to an older state."""
        if at is not None:
            self._look(*at, book)

    def _look(self, here: int, step: int, book: Book) -> None:
        """Look through the ends of all other lines, and for what was done before the store was put back."""
        for record in book.get("effects", {}).values():
            if "restored" in record:
                self.restored.add(record["id"])
        lines = origins(self._kernel, self._session)
        if len(lines) == 1:
            return
        self._branch = lines[here][2].branch
        # Of those that a rewind has left nobody has asked here yet.
        mine = {e["id"] for e in book.get("effects", {}).values() if not is_left_open(e)}
        mine |= {e[0] for done in book.get("done", {}).values() for e in done}
        mine |= {e["id"] for e in book.get("raised", {}).values()} | {e[0] for e in book.get("refuted", ())}
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
            self.edited |= {asked: [*call, ""] for asked, call in plain(other.get("edited", {})).items()}
            entries: list[tuple[str, Foreign]] = []
            for place, record in other.get("effects", {}).items():
                if record["status"] in _BEGUN:
                    self._begun[record["id"]] = record
                self._known[record["id"]] = record
                if is_unknown(record):
                    self._unknown[record["id"]] = record
                if changed := made_otherwise(record):
                    self.edited[record["asked"]] = [*changed, place]
                if record["status"] in (*_MADE, "waiting"):
                    at = record.get("where") or [line, end.point.envelope.step if end.point else 0]
                    settled = record["status"] == "done"
                    foreign = Foreign(record["id"], at[0], at[1], settled, record["attempt"], place)
                    entries.append((record["digest"], foreign))
                elif is_refuted(record) and "where" in record:
                    self._refuted[record["id"]] = record["where"][0], record["where"][1]
            self._refuted |= {effect: (at, step) for effect, at, step in other.get("refuted", ())}
            for one in other.get("raised", {}).values():
                if RECORD in one:
                    self._unknown[one["id"]] = self._known[one["id"]] = one[RECORD]
            for digest, done in other.get("done", {}).items():
                # Without a step there is no outcome: it was made, and nobody knows what became of it.
                entries.extend((digest, Foreign(e[0], e[1], e[2], e[2] > 0, attempt=1)) for e in done)
            for digest, foreign in entries:
                self._branches.setdefault(foreign.effect, env.branch)
                known = self._furthest.get(foreign.effect, foreign)
                self._furthest[foreign.effect] = max(known, foreign, key=lambda f: (f.settled, f.attempt))
                if foreign.effect in mine:
                    continue
                if line in past:
                    self._parent.setdefault(digest, []).append(foreign)
                else:
                    self._other.setdefault(digest, []).append(foreign)

    def _same(self, calls: dict[str, list[Foreign]], call: Asked) -> Iterator[Foreign]:
        """Those that are this call by tool and arguments; by any version, where nobody knows what became of them."""
        if not calls:
            return
        seen: set[str] = set()
        for foreign in (f for digest in call.digests for f in calls.get(digest, ())):
            if foreign.effect not in seen and self._is_of(call, foreign):
                seen.add(foreign.effect)
                yield foreign
        if not self._unknown:
            return
        for foreign in (f for of_one in calls.values() for f in of_one if f.effect in self._unknown):
            if foreign.effect not in seen and not foreign.settled and call.is_same(self._unknown[foreign.effect]):
                seen.add(foreign.effect)
                yield foreign

    def _is_of(self, call: Asked, foreign: Foreign) -> bool:
        """Whether what has a digest of the call is that call: a default may be another one by now."""
        record = self._known.get(foreign.effect)
        if record is None and foreign.settled:
            record = self._retired(foreign)[1]
        return record is None or call.is_same(record)

    def _retired(self, foreign: Foreign) -> tuple[str, dict[str, Any] | None]:
        """The place and the record of a settled call, as they were when it got its outcome."""
        at = foreign.line, foreign.step
        if at not in self._places:
            effects: dict[str, Any] = {}
            with suppress(Gone):
                effects = load(self._kernel, self._session, *at).doc[BOOK].get("effects", {})
            self._places[at] = {record["id"]: (name, record) for name, record in effects.items()}
        return self._places[at].get(foreign.effect, ("", None))

    def _is_meant(self, place: str, foreign: Foreign) -> bool | None:
        """Whether an equal call at our place is that call; None when that cannot be known."""
        there = foreign.place
        if not there and foreign.settled:
            there = self._retired(foreign)[0]
        return is_same_call(place, there) if there else None

    def reuse(self, call: Asked, place: str) -> Outcome | None:
        """The outcome of the same call on the line we came from, each given once."""
        for foreign in self._same(self._parent, call):
            if (
                foreign.effect not in self._used
                and self._is_meant(place, foreign)
                and (found := self._outcome(self._furthest[foreign.effect])) is not None
            ):
                self._used.add(foreign.effect)
                return found
        return None

    def gives(self, record: TrackedDict | dict[str, Any], place: str) -> bool:
        """Whether a planned call is given the outcome that its line had before; whose tool is not known here."""
        return any(
            foreign.effect not in self._used
            and self._is_meant(place, foreign)
            and self._outcome(self._furthest[foreign.effect]) is not None
            for foreign in self._parent.get(record["digest"], ())
        )

    def begun(self, call: Asked, place: str) -> dict[str, Any] | None:
        """The same call on another line, when it has no outcome on any; who takes it up says so: ``use``."""
        known = (*self._same(self._parent, call), *self._same(self._other, call))
        unused = (f.effect for f in known if f.effect not in self._used and self._is_meant(place, f))
        effect = next(unused, "")
        return self._begun[effect] if self.is_open(effect) else None

    def is_open(self, effect: str) -> bool:
        """Whether a call was begun on another line, and no line knows what became of it."""
        return effect in self._begun and not self._furthest[effect].settled and effect not in self._refuted

    def told(self, effect: str) -> tuple[str, str]:
        """Where a call of another line was made, and what is known of it there: done, waiting, or "" for nothing."""
        if effect in self.restored:
            records = self._book.get("effects", {}).values()
            status = next((r["status"] for r in records if r["id"] == effect), "")
            return "before the store was put back", status if status == "done" else ""
        where = "before a rewind" if self._branches.get(effect) == self._branch else "on another branch"
        if effect not in self._furthest or self._furthest[effect].settled:
            return where, "done"
        return where, "waiting" if self._begun.get(effect, {}).get("status") == "waiting" else ""

    def use(self, effect: str) -> None:
        """A call of ours has become that one: no other does."""
        self._used.add(effect)

    def twin(self, effect: str, attempt: int) -> tuple[bool, Outcome | None]:
        """Whether an effect that is open on our line went further on another, and its outcome if it has one there."""
        foreign = self._furthest.get(effect)
        if (foreign is None or not foreign.settled) and effect in self._refuted:
            return True, self._outcome(Foreign(effect, *self._refuted[effect], settled=True))
        if foreign is None:
            return False, None
        return foreign.settled or foreign.attempt > attempt, self._outcome(self._furthest[effect])

    def open_there(self, effect: str) -> dict[str, Any] | None:
        """An effect of our line as it stands on another one, when it was begun and has no outcome there."""
        return self._begun[effect] if self.is_open(effect) else None

    def _outcome(self, foreign: Foreign) -> Outcome | None:
        if not foreign.settled:
            return None
        try:
            book = load(self._kernel, self._session, foreign.line, foreign.step).doc[BOOK]
        except Gone:
            # Retention has dropped what it returned: that it was done must still be reported.
            return None
        for record in book["effects"].values():
            if record["id"] == foreign.effect and record["status"] in ("done", "failed"):
                error = record["error"] if record["status"] == "failed" else None
                result = plain(record.get("result"))
                writes = tuple(plain(record.get(WRITES, ())))
                return Outcome(
                    foreign.effect, result, plain(record["args"]), "edited" in record, error, writes,
                    GIVEN_UP in record, record.get(PROBLEM, ""),
                )  # fmt: skip
        return None

    def report(self, call: Asked, place: str) -> str:
        """The id of a call made on another line, or started on ours without a known outcome, that is or may be the one
        at this place; "" if none."""
        for foreign in self._same(self._parent, call):
            if (
                foreign.effect not in self._used
                and foreign.effect not in self._refuted
                and self._is_meant(place, foreign) is not False
            ):
                return foreign.effect
        if self.restored:
            # As it is by now: a person may have settled it since.
            for there, record in self._book.get("effects", {}).items():
                made = "restored" in record and record["status"] in ("in_doubt", "done", "unknown")
                if made and call.is_same(record) and is_same_call(place, there) is not False:
                    return record["id"]
        others = (f.effect for f in self._same(self._other, call) if self._is_meant(place, f) is not False)
        return next((effect for effect in others if effect not in self._refuted and effect not in self._used), "")


def is_same_call(here: str, there: str) -> bool | None:
    """Whether calls of a tool with equal arguments, at two places of two lines, are one call; None: nobody can know.

    With another key it is another call. Without any it is the same one in the same run, and outside of runs; in a run
    of another key, or once with a key and once without, it may be meant as another one.

    >>> is_same_call("k:pay:july", "k:pay:august"), is_same_call("r:july:1", "r:july:2")
    (False, True)
    >>> is_same_call("r:july:1", "r:august:1"), is_same_call("r:july:1", "c:1"), is_same_call("k:pay:july", "c:1")
    (None, None, None)
    """
    there = there.split(":", 2)[2] if there.startswith(LEFT) else there
    if here.startswith("k:") and there.startswith("k:"):
        return here == there
    keyed = here.startswith("k:") or there.startswith("k:")
    return True if not keyed and run_of(here) == run_of(there) else None


def is_refuted(record: TrackedDict | dict[str, Any]) -> bool:
    """Whether a call that was begun has not happened, or was given up: that holds on every line that has it."""
    return record["status"] == "failed" and record["attempt"] > 0 and "read" not in record


def made_otherwise(record: TrackedDict | dict[str, Any]) -> list[str]:
    """The effect and the call in words, where it was made with other arguments than were asked for; else nothing."""
    if "asked" not in record or record["status"] not in _MADE:
        return []
    return [record["id"], call_words(record["tool"], plain(record["args"]))]


def done_elsewhere(kernel: Kernel, session: str, at: tuple[int, int] | None, book: Book) -> frozenset[str]:
    """The open effects at a line's step whose outcome another line has: whoever goes on takes it, without a call.

    Blocks.
    """
    open_here = {p: r for p, r in book.get("effects", {}).items() if r["status"] in OPEN and "read" not in r}
    if not open_here:
        return frozenset()
    others = OtherBranches(kernel, session, at, book)
    return frozenset(
        record["id"]
        for place, record in open_here.items()
        if others.twin(record["id"], record["attempt"])[1] is not None
        or (record["status"] == "planned" and others.gives(record, place))
    )
