"""Asks why in a situation, and holds every statement of the answer against what then happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from perdure.fleet.why import reading as asked
from tests.campaigns.statements.desk import Cause
from tests.campaigns.statements.doors import DOORS, Refused, carry_out, offers
from tests.campaigns.statements.oracle import gets_further, goes_round, left_open
from tests.campaigns.statements.world import S, Snapshot, World

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from perdure.fleet.why.answer import Why

LONGEST = 12
"""Actions, at most, until a session rests."""


class False_(NamedTuple):
    """A statement that is not so."""

    path: tuple[str, ...]
    said: str
    what: str

    def __str__(self) -> str:
        return f"{' > '.join(self.path)}\n  said: {self.said}\n  but: {self.what}"


class Judged(NamedTuple):
    """What came of one situation."""

    wrong: list[False_]
    statements: int
    """Held against what then happened."""
    actions: int
    """Carried out, each door by itself."""


def judge(folder: Path, found: Snapshot, doors: Sequence[str] = DOORS) -> Judged:
    """Judge what is said in one situation."""
    wrong: list[False_] = []
    statements = actions = 0
    Cause.broken = True
    w = World(folder, found)
    try:
        if w.row() is None:
            return Judged([], 0, 0)
        said = asked.why(w.db, S)

        def not_so(what: str) -> None:
            wrong.append(False_(found.path, str(said), what))

        statements += 1
        if said.severity == "ok" and (open_ := left_open(w)):
            not_so(f"nothing is to be done, while there is: {', '.join(open_)}")
        if said.severity in ("ok", "wait") and (tries := goes_round(w)):
            not_so(f"all is well, while it was tried {tries} times at the same place")
        if said.severity == "act" and not said.actions:
            not_so("somebody has to act, and nobody says how")
        if said.severity in ("wait", "failing"):
            statements += 1
            if not gets_further(w, 3.0 if "woken in" in said.line else 1.0):
                not_so("it goes on by itself, and it did not")
        for action in said.actions:
            for door in doors:
                if offers(action, door):
                    actions += 1
                    if (what := _followed(folder, found, action.name.value, door)) is not None:
                        not_so(f"{action.name.value} by {door}: {what}")
    finally:
        w.close()
    return Judged(wrong, statements, actions)


def _followed(folder: Path, found: Snapshot, name: str, door: str) -> str | None:
    """Carry an action out and go on with whatever is said next, until the session rests; what went wrong."""
    Cause.broken = True
    w = World(folder, found)
    try:
        said = asked.why(w.db, S)
        first = next(a for a in said.actions if a.name.value == name)
        before = _standing(w, said)
        done: set[tuple[object, ...]] = {(*first, *w.signature())}
        # Whoever acts has seen to the cause.
        Cause.broken = False
        carry_out(w, first, door)
        if _standing(w, asked.why(w.db, S)) == before:
            return "nothing has changed"
        for _ in range(LONGEST):
            w.pass_time(1.0)
            said = asked.why(w.db, S)
            if said.severity == "ok":
                return f"at rest with {', '.join(open_)}" if (open_ := left_open(w)) else None
            if said.severity in ("wait", "failing"):
                if not gets_further(w, 3.0 if "woken in" in said.line else 1.0):
                    return f"then it goes on by itself, and does not: {said}"
                continue
            if not said.actions:
                return f"then nobody says what to do: {said}"
            step = (*said.actions[0], *w.signature())
            if step in done:
                return f"in a circle: {said}"
            done.add(step)
            carry_out(w, said.actions[0], "library")
        return f"no rest after {LONGEST} actions: {said}"
    except Refused as e:
        return f"refused: {e}"
    finally:
        w.close()


def _standing(w: World, said: Why) -> tuple[object, ...]:
    return (*w.signature(), str(said), w.mark())
