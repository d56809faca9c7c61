"""Migrations: functions that turn a state of one schema version into the next, chained by the versions they name."""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any

from perdure.errors import Incompatible, InvalidInput
from perdure.state.values import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

State = dict[str, Any]


class Migrations:
    """A set of migrations; the shortest chain between two versions is taken.

    >>> ms = Migrations()
    >>> @ms.add("1.0.0", "2.0.0")
    ... def rename(state):
    ...     state["vars"]["profile"] = state["vars"].pop("pref")
    ...     return state
    >>> ms.upgrade({"vars": {"pref": 1}}, "1.0.0", "2.0.0")
    {'vars': {'profile': 1}}
    """

    def __init__(self) -> None:
        self._steps: dict[str, dict[str, Callable[[State], State | None]]] = {}

    def add(self, old: str, new: str) -> Callable[[Callable[[State], State | None]], Callable[[State], State | None]]:
        """Register a function from one version to another; it may change the state it is given or return a new one."""
        if old == new:
            raise InvalidInput(f"a migration leads from one version to another, not from {old!r} to itself")

        def register(fn: Callable[[State], State | None]) -> Callable[[State], State | None]:
            if new in self._steps.get(old, {}):
                raise InvalidInput(f"there is already a migration from {old!r} to {new!r}")
            self._steps.setdefault(old, {})[new] = fn
            return fn

        return register

    def steps(self) -> list[tuple[str, str]]:
        """All migrations there are, from which version to which, in order."""
        return sorted((old, new) for old, following in self._steps.items() for new in following)

    def path(self, old: str, new: str) -> list[str] | None:
        """The versions from ``old`` to ``new``, both included; None when no chain leads there."""
        came: dict[str, str] = {old: old}
        queue = deque([old])
        while queue:
            at = queue.popleft()
            if at == new:
                route = [at]
                while route[-1] != old:
                    route.append(came[route[-1]])
                return route[::-1]
            for following in self._steps.get(at, {}):
                if following not in came:
                    came[following] = at
                    queue.append(following)
        return None

    def upgrade(self, state: State, old: str, new: str, what: str = "the state") -> State:
        """Carry a plain state from one version to another."""
        route = self.path(old, new)
        if route is None:
            raise no_path(what, old, new)
        for a, b in itertools.pairwise(route):
            answer = self._steps[a][b](state)
            state = state if answer is None else answer
            # What a migration makes of a state must be a state: found out here, with its name, not at some commit.
            Wire(lambda _, __: "").value(state, (f"{a}->{b}",))
        return state


registry = Migrations()
"""Where :func:`migration` puts what it decorates; used by databases that are not given migrations of their own."""


def migration(old: str, new: str) -> Callable[[Callable[[State], State | None]], Callable[[State], State | None]]:
    """Declare a migration between two schema versions."""
    return registry.add(old, new)


def no_path(what: str, found: str, wanted: str) -> Incompatible:
    """The error for a state that no migration leads to this program from."""
    return Incompatible(
        f"{what} was written with schema {found}, this program has {wanted}, and no migration leads there: "
        f'write one, @migration("{found}", "{wanted}"), or open it with the program that wrote it',
        found,
        wanted,
    )
