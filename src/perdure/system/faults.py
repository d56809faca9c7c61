"""Named places where a crash is interesting, for the crash suite. No behaviour of its own.

A store calls :func:`point` around each step that a kill, a full disk or a failing sync could
separate from the next one. Nothing happens there unless a test has installed a hook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

hook: Callable[[str], None] | None = None
"""Called with the name of each point that is passed; it may raise, or end the process."""


def point(name: str) -> None:
    """Pass a named point.

    >>> point("sqlite.append.before_commit")
    """
    if hook is not None:
        hook(name)
