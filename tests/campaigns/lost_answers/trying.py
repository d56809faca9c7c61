"""One case, cut at its first statement, at its second, and so on, until it goes through uncut; and what came of it."""

from __future__ import annotations

import traceback
from collections import Counter
from typing import TYPE_CHECKING, Any

from perdure.errors import Conflict, OutcomeUnknown, PerdureError, StoreError, Unavailable
from tests.campaigns.lost_answers import session_cases, store_cases, upkeep_cases
from tests.campaigns.lost_answers.scene import CASES, Wrong
from tests.proxy import AFTER, BEFORE, TORN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tests.campaigns.lost_answers.scene import Act, Declared, Scene
    from tests.proxy import Proxy

__all__ = ["CASES", "HOWS", "Tally", "cut_everywhere", "session_cases", "store_cases", "upkeep_cases"]

HOWS = (AFTER, BEFORE, TORN)
MOST = 400
"""Statements that no case has: more means that it never goes through."""


class Tally:
    """What a number of attempts came to."""

    def __init__(self, store: str, how: str) -> None:
        self.store = store
        self.how = how
        self.attempts = 0
        self.cut = 0
        self.ends: Counter[str] = Counter()
        self.problems: list[tuple[str, str]] = []

    @property
    def lost(self) -> int:
        """Acknowledged or repeated, and not there."""
        return sum(kind == "lost" for kind, _ in self.problems)

    @property
    def duplicated(self) -> int:
        """There twice."""
        return sum(kind == "duplicated" for kind, _ in self.problems)

    @property
    def figures(self) -> dict[str, int]:
        """By name."""
        other = len(self.problems) - self.lost - self.duplicated
        seen = {"attempts": self.attempts, "cut": self.cut, "lost": self.lost, "duplicated": self.duplicated}
        return {**seen, "other": other, **{end: self.ends[end] for end in ("done", "unknown", "unavailable")}}

    def __str__(self) -> str:
        return f"{self.store:13}{self.how:12}" + "   ".join(f"{name} {n:3}" for name, n in self.figures.items())


def attempt(declared: Declared, x: Scene, fault: Callable[[Proxy], None], tally: Tally) -> None:
    """One attempt at a case: prepare, do it while the fault is there, do it again if need be, check directly."""
    proxy = x.proxy
    assert proxy is not None
    x.begin()
    tally.attempts += 1
    play = declared.play(x)
    act = next(play)
    before = x.stored() if declared.single else None
    fault(proxy)
    try:
        result = act()
    except StoreError as error:
        x.said = error
        result = None
    x.cut = proxy.cuts > 0
    tally.cut += x.cut
    proxy.heal()
    if x.said is not None:
        result = _again(declared, x, act, before)
    try:
        play.send(result)
    except StopIteration:
        pass
    else:
        raise AssertionError(f"{declared.name} does more than one thing")
    tally.ends[_end(x)] += 1


def _again(declared: Declared, x: Scene, act: Act, before: Any) -> Any:
    """The first try ended in an error: it must be one that says what is known, and doing it again must settle it."""
    said = x.said
    if isinstance(said, Unavailable):
        if declared.single and x.stored() != before:
            raise Wrong("wrong", f"said that nothing was written, and something was: {said}")
    elif isinstance(said, OutcomeUnknown):
        if declared.named and not said.id:
            raise Wrong("wrong", f"the outcome is unknown, and so is whose: {said}")
    else:
        raise Wrong("wrong", f"ended with {type(said).__name__}: {said}")
    try:
        result = act()
    except Conflict as conflict:
        if not declared.settles or not isinstance(said, OutcomeUnknown):
            raise
        head = conflict.head
        if said.id and (head is None or head.id != said.id):
            raise Wrong("wrong", f"done again it met {head}, and not what it had written") from conflict
        result = None
    if isinstance(said, OutcomeUnknown) and declared.named and not x.landed:
        raise Wrong("lost", f"{said.id.hex()} was unknown, was done again, and is not there")
    return result


def _end(x: Scene) -> str:
    if x.said is None:
        return "done"
    return "unknown" if isinstance(x.said, OutcomeUnknown) else "unavailable"


def cut_everywhere(
    x: Scene,
    how: str,
    tally: Tally,
    names: Iterable[str],
    *,
    lasting: bool = False,
    strides: Mapping[str, int] | None = None,
) -> None:
    """Each case, cut at each of its statements in turn (of a case with a stride, at each so-manieth of them);
    ``lasting``: there and at every statement after it."""
    for name in names:
        for at in range(1, MOST, (strides or {}).get(name, 1)):
            attempts = tally.cut

            def fault(proxy: Proxy, at: int = at) -> None:
                if lasting:
                    proxy.cut_on(how, at)
                else:
                    proxy.cut(how, at)

            guarded(CASES[name], x, fault, tally, f"cut {how} statement {at}")
            if tally.cut == attempts:
                break
        else:
            tally.problems.append(("wrong", f"{name}: never goes through"))


def guarded(declared: Declared, x: Scene, fault: Callable[[Proxy], None], tally: Tally, what: str) -> None:
    """One attempt; whatever goes wrong is written down with its circumstances."""
    where = f"{tally.store}, {declared.name!r}, {what}"
    try:
        attempt(declared, x, fault, tally)
    except Wrong as wrong:
        tally.problems.append((wrong.kind, f"{where}: {wrong}"))
    except (PerdureError, AssertionError, LookupError) as error:
        trace = "".join(traceback.format_exception(error)[-3:])
        tally.problems.append(("wrong", f"{where}: after {x.said!r}: {type(error).__name__}: {error}\n{trace}"))
    finally:
        assert x.proxy is not None
        if x.proxy.cuts:
            # It ended before it was seen how it ended.
            tally.cut += 1
        x.proxy.heal()
