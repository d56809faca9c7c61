"""Ways to break what the crash suite is there to find, so that it can be shown to find it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.session.calls.lookups import Lookups
from tests.campaigns.crash.watched import Watched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.model import Append
    from perdure.system.flow import Flow


def sabotage(how: str | None) -> None:
    """Break this process, for good."""
    if how is not None:
        {"hasty": _hasty, "forgetful": _forgetful}[how]()


def _hasty() -> None:
    """Commits are acknowledged before they are written."""
    honest = Watched.append

    def append(self: Watched, batch: Sequence[Append]) -> Any:
        for item in batch:
            self._journal.note("ack", id=item.id.hex())
        return honest(self, batch)

    Watched.append = append  # type: ignore[method-assign]


def _forgetful() -> None:
    """Whatever was started and has no outcome is simply tried again."""

    def unsure(self: Lookups, *about: Any) -> Flow[bool]:
        yield from ()
        return True

    Lookups.unsure = unsure  # type: ignore[method-assign]
