"""Plans: what is written down before it is done, so that another process can finish it.

``again`` says that another process has begun a plan: then what is there already is left alone, and if it is there
twice, the checks will tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.campaigns.crash.worker import Worker

    Plan = dict[str, Any]
    Do = Callable[[Worker, Plan, bool], None]
    Make = Callable[[Worker, random.Random, int], Plan]

DOING: dict[str, Do] = {}
MAKING: dict[str, Make] = {}


def plan(name: str, make: Make) -> Callable[[Do], Do]:
    """Register what is done under a name, and how such a plan is made up."""

    def register(do: Do) -> Do:
        DOING[name], MAKING[name] = do, make
        return do

    return register


def perform(w: Worker, name: str) -> None:
    """Write a new plan down, and do it."""
    n = max(w.history.plans, default=0) + 1
    made = {"n": n, "op": name, **MAKING[name](w, w.rng, n)}
    w.journal.note("plan", plan=made)
    DOING[name](w, made, False)
    w.journal.note("done", n=n)


def take_up(w: Worker) -> None:
    """Finish what a dead process has begun."""
    left = w.history.open_plan
    if left is not None:
        DOING[left["op"]](w, left, True)
        w.journal.note("done", n=left["n"])


def one_of(name: str, count: int) -> Make:
    """Plans for one of a few sessions."""
    return lambda w, rng, n: {"session": f"{name}-{rng.randrange(count)}"}
