"""Finds the situations that a session can be in: all that public operations lead to, each by a shortest way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure import PerdureError
from tests.campaigns.statements.desk import Cause
from tests.campaigns.statements.world import AGENTS, PROGRAMS, Skip, Snapshot, World

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FAMILIES = {"agent": AGENTS, "program": PROGRAMS}
ROOTS: dict[str, list[tuple[str, ...]]] = {
    "agent": [
        (),
        ("submit", "worker starts", "worker claims"),
        ("submit", "say fail", "worker starts", "worker claims", "run", "put down as failed"),
        ("submit", "say hello", "worker crashes", "worker crashes"),
        ("create", "say delegate", "run"),
        ("create", "say delegate", "run", "approve below"),
    ],
    "program": [()],
}
"""Where the search begins: at nothing, and behind some longer ways that lead to rarer places."""


def situations(
    folder: Path, deep: int, most: int | None = None, told: Callable[[str], None] = print
) -> dict[tuple[str, ...], Snapshot]:
    """Every situation within so many operations, by its dimensions; breadth first, so that ways are short."""
    Cause.broken = True
    found: dict[tuple[str, ...], Snapshot] = {}
    for family, operations in FAMILIES.items():
        ring = [lead(folder, operations, path) for path in ROOTS[family]]
        known: set[tuple[str, ...]] = set()
        for depth in range(1, deep + 1):
            following: list[Snapshot] = []
            for one in ring:
                for name, do in operations.items():
                    if most is not None and len(known) >= most:
                        break
                    world = World(folder, one)
                    try:
                        do(world)
                        signature = world.signature()
                    except (Skip, PerdureError):
                        world.close()
                        continue
                    if signature in known:
                        world.close()
                        continue
                    known.add(signature)
                    kept = world.keep((*one.path, name))
                    following.append(kept)
                    found.setdefault((family, *signature), kept)
            ring = following
            told(f"{family}: {len(known)} situations within {depth} operations")
    return found


def lead(folder: Path, operations: dict[str, Callable[[World], object]], path: tuple[str, ...]) -> Snapshot:
    """Go a way."""
    Cause.broken = True
    world = World(folder)
    for name in path:
        operations[name](world)
    return world.keep(path)


def values(found: dict[tuple[str, ...], Snapshot]) -> dict[str, set[str]]:
    """The values that were reached in each dimension."""
    reached: dict[str, set[str]] = {}
    for _, *signature in found:
        for one in signature:
            dimension, _, value = one.partition(" ")
            reached.setdefault(dimension, set()).update(value.split() if dimension in SETS else [value])
    return reached


def never_together(found: dict[tuple[str, ...], Snapshot], first: str) -> dict[str, dict[str, list[str]]]:
    """For each value of one dimension, the values of the others that were reached, and never with this one."""
    seen: dict[str, set[tuple[str, str]]] = {}
    for _, *signature in found:
        parts = {d: v.split() if d in SETS else [v] for d, _, v in (one.partition(" ") for one in signature)}
        others = {(d, v) for d, values in parts.items() if d != first for v in values}
        for value in parts[first]:
            seen.setdefault(value, set()).update(others)
    missing: dict[str, dict[str, list[str]]] = {}
    for value, together in sorted(seen.items()):
        for dimension, others in values(found).items():
            if dimension != first and (never := sorted(v for v in others if (dimension, v) not in together)):
                missing.setdefault(value, {})[dimension] = never
    return missing


SETS = ("inbox", "effects", "approvals", "runs", "said", "child")
"""Dimensions that may have several values at once."""
EXPECTED = {
    "status": {
        "none", "idle", "running", "sleeping", "waiting_approval", "waiting_result", "in_doubt", "paused",
        "cancelled", "failed", "closed", "expired",
    },
    "agent": {"yes", "no"},
    "board": {"none", "queued", "claimed", "due", "later", "resting", "parked", "paused"},
    "served": {"yes", "no"},
    "held": {"yes", "no"},
    "lease": {"held", "open", "free"},
    "tries": {"0", "1", "2", "3"},
    "inbox": {"empty", "message", "timer", "timer-due", "decision", "outcome", "failure", "cancel"},
    "effects": {"none", "planned", "started", "waiting", "in_doubt"},
    "approvals": {"none", "pending", "question", "decided", "expired"},
    "runs": {"none", "open", "retry", "function", "ask", "report", "failed", "again"},
    "child": {"none", "waiting_approval", "decision", "idle", "cancelled"},
    "said": {"nothing", "hello", "refund", "send", "render", "choose", "fail", "reject", "delegate"},
}  # fmt: skip
"""The values that there could be; those that were not reached are reported."""
