"""The answer to "why does a session stand where it stands": one line, what to do next, and how much it matters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.session.actions import Action

if TYPE_CHECKING:
    from collections.abc import Mapping

OK, WAIT, FAILING, ACT = "ok", "wait", "failing", "act"
"""Nothing is to be done; it goes on by itself; it is tried again by itself and gets no further; a person must act."""


class Why(NamedTuple):
    """One plain line, what to do next, and how much it matters."""

    line: str
    next: str
    severity: str = OK
    """ok, wait (it goes on by itself), failing (it is tried again, and gets no further) or act (a person has to)"""
    actions: tuple[Action, ...] = ()
    """What can be done, the first thing to try first; each alone is enough."""
    error: Mapping[str, str] | None = None
    """The exception of a tool that the line speaks of: its class, message and traceback."""
    objective: Mapping[str, Any] | None = None
    """What the session is to achieve, and whether that is open, reached or given up; None when none is set."""

    @property
    def do(self) -> str:
        """The one thing to do, by name; "" when there is none."""
        return self.actions[0].name.value if self.actions else ""

    def __str__(self) -> str:
        return f"{self.line} {self.next}".strip()
