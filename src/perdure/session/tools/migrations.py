"""How calls of a tool go from one version of it to the next: what a program declares with ``@tool_migration``.

Nothing is applied here to a session: ``agent.upgrades`` carries open calls over, ``calls.same_calls`` finds the one
that was made for another version.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# What a migration is given and makes is any JSON.
from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from perdure.state.document import plain
from perdure.state.migrations import Migrations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Change = Callable[[Any], Any]

of_arguments: dict[str, Migrations] = {}
of_results: dict[tuple[str, str, str], Change] = {}
renamings: dict[str, tuple[str, str]] = {}
"""By the old name of a tool: from which version on it has another one, and which."""


def tool_migration(
    tool: str, old: str, new: str, *, results: Change | None = None, renamed: str | None = None
) -> Callable[[Change], Change]:
    """Declare how the arguments of open calls of a tool go from one version of it to the next.

    The function may change the arguments it is given or return new ones; ``results`` does the same for results that
    are recorded and that the model has not been told yet. With ``renamed`` the tool has that name from the new version
    on. Steps are chained. A call that waits for an approval is asked for again: what was to be approved has changed. So
    is one that was begun, when its arguments change, whatever its tool declares: it gets another id. By the same steps
    an earlier call is found of which nobody knows what it did, when it is asked for once more.

    >>> @tool_migration("refund_in_docs", "1", "2")
    ... def in_cents(arguments):
    ...     arguments["cents"] = round(arguments.pop("amount") * 100)
    """

    def register(fn: Change) -> Change:
        of_arguments.setdefault(tool, Migrations()).add(old, new)(fn)
        if results is not None:
            of_results[tool, old, new] = results
        if renamed is not None:
            renamings[tool] = (new, renamed)
        return fn

    return register


def declared() -> list[str]:
    """The migrations of tools that this program declares, in order: with another one it can go on with other calls."""
    steps = [f"{tool} {old} {new}" for tool, known in of_arguments.items() for old, new in known.steps()]
    return sorted(steps + [f"{old} {at} is {new}" for old, (at, new) in renamings.items()])


def steps_of(tool: str, old: str, new: str) -> list[tuple[str, str, str]] | None:
    """The declared steps from one version of a tool to another; None when they do not lead there."""
    if old == new:
        return []
    route = of_arguments[tool].path(old, new) if tool in of_arguments else None
    return None if route is None else [(tool, a, b) for a, b in itertools.pairwise(route)]


def steps_between(tool: str, version: str, to: str, new: str) -> list[tuple[str, str, str]] | None:
    """The same from one tool to one that it may be called by now; None when they do not lead there."""
    steps: list[tuple[str, str, str]] = []
    seen = {tool}
    while tool != to:
        at, known_as = renamings.get(tool, ("", ""))
        if not known_as or known_as in seen or (more := steps_of(tool, version, at)) is None:
            return None
        steps += more
        tool, version = known_as, at
        seen.add(tool)
    more = steps_of(tool, version, new)
    return None if more is None else steps + more


def migrated(arguments: Any, steps: Sequence[tuple[str, str, str]]) -> Any:
    """Arguments of a call as these steps make them; what a step raises goes to the caller."""
    for tool, old, new in steps:
        arguments = of_arguments[tool].upgrade(plain(arguments), old, new, f"a call of {tool}")
    return arguments
